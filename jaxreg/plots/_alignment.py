"""The alignment of dropout's noise with the curvature during training."""

import re
from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from jaxreg.plots._axes import colors, new_figure
from jaxreg.plots._marks import stroke

_SEED = re.compile(r", seed \d+|seed \d+, ")


def alignment(series: Mapping[str, Mapping[str, ArrayLike]], *, title: str = "") -> Figure:
  """Draws the traces for the noise's covariance and for isotropic noise of its size, and their ratio.

  Args:
    series: by label, `steps`, `trace`, `isotropic` and `ratio`, each `[n]`. Labels that differ only in a part
      `seed 0`, set off by commas, share a colour and a key.
    title: above the figure.

  Returns:
    A figure of two axes.

  References:
    Zhang, Zhou and Xu, `Dropout in training neural networks`, 2021, figure 4.
  """
  groups: dict[str, list[Mapping[str, ArrayLike]]] = {}
  for label, values in series.items():
    groups.setdefault(_SEED.sub("", label), []).append(values)
  # Below the axes: on them, the legend would cover the curves.
  rows = -(-(len(groups) + 2) // 2)
  figure = new_figure(10, 4 + 0.22 * rows, title)
  both, ratio = figure.subplots(1, 2)
  for color, (label, group) in zip(colors(len(groups)), groups.items(), strict=True):
    least = min(np.asarray(values["ratio"]).min() for values in group)
    number = f", {len(group)} seeds" if len(group) > 1 else ""
    name: str | None = f"{label}{number}: ratio at least {least:.1f}"
    for values in group:
      style = {"color": color, "marker": "o" if np.size(values["steps"]) == 1 else ""}
      both.plot(values["steps"], values["trace"], **style)
      both.plot(values["steps"], values["isotropic"], ":", markerfacecolor="none", **style)
      ratio.plot(values["steps"], values["ratio"], label=name, **style)
      name = None
  both.set_ylabel("trace")
  ratio.set_ylabel(r"ratio Tr$(H \Sigma)$ / Tr$(H \bar\Sigma)$")
  ratio.axhline(1, color="tab:gray", linewidth=1)
  marks = (stroke(r"Tr$(H \Sigma)$, the noise"), stroke(r"Tr$(H \bar\Sigma)$, isotropic noise", ":"))
  for axis in (both, ratio):
    axis.set_yscale("log")
    axis.set_xlabel("training step")
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)
  handles = [*ratio.get_legend_handles_labels()[0], *marks]
  figure.legend(handles=handles, loc="outside lower center", ncols=2, fontsize="small", frameon=False)
  return figure

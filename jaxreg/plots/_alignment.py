"""The alignment of dropout's noise with the curvature during training."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from jaxreg.plots._axes import new_figure
from jaxreg.plots._marks import stroke


def alignment(series: Mapping[str, Mapping[str, ArrayLike]], *, title: str = "") -> Figure:
  """Draws the traces for the noise's covariance and for isotropic noise of its size, and their ratio.

  Args:
    series: by label, `steps`, `trace`, `isotropic` and `ratio`, each `[n]`.
    title: above the figure.

  Returns:
    A figure of two axes.

  References:
    Zhang, Zhou and Xu, `Dropout in training neural networks`, 2021, figure 4.
  """
  figure = new_figure(10, 4, title)
  both, ratio = figure.subplots(1, 2)
  for number, (label, values) in enumerate(series.items()):
    color = f"C{number}"
    both.plot(values["steps"], values["trace"], color=color, label=label)
    both.plot(values["steps"], values["isotropic"], ":", color=color)
    least = np.asarray(values["ratio"]).min()
    ratio.plot(values["steps"], values["ratio"], color=color, label=f"{label}: least {least:.1f}")
  both.set_ylabel("trace")
  ratio.set_ylabel(r"ratio Tr$(H \Sigma)$ / Tr$(H \bar\Sigma)$")
  ratio.axhline(1, color="tab:gray", linewidth=1)
  marks = (stroke(r"Tr$(H \Sigma)$, the noise"), stroke(r"Tr$(H \bar\Sigma)$, isotropic noise", ":"))
  for axis in (both, ratio):
    axis.set_yscale("log")
    axis.set_xlabel("training step")
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)
    handles, _ = axis.get_legend_handles_labels()
    axis.legend(handles=[*handles, *(marks if axis is both else ())], fontsize="small", frameon=False)
  return figure

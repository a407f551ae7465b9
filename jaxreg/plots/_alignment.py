"""The alignment of dropout's noise with the curvature during training."""

import re
from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import ArrayLike

from jaxreg._figures import WIDTH, colors, legend_below, new_figure, stroke, tidy, verbatim

FEW = 6  # more groups have no colours that one can tell apart
_SEED = re.compile(r", seed \d+|seed \d+, ")


def alignment(series: Mapping[str, Mapping[str, ArrayLike]], *, title: str = "") -> Figure:
  """Draws the traces for the noise's covariance and for isotropic noise of its size, and their ratio.

  More than six groups of labels stand in rows of panels, by the first part of their labels, such as `lr 0.5`.
  A colour then means the rest of the label in all rows.

  Args:
    series: by label, `steps`, `trace`, `isotropic` and `ratio`, each `[n]`. Labels that differ only in a part
      `seed 0`, set off by commas, share a colour and a key.

  References:
    Zhang, Zhou and Xu, `Dropout in training neural networks`, 2021, figure 4.
  """
  groups: dict[str, list[Mapping[str, ArrayLike]]] = {}
  for label, values in series.items():
    groups.setdefault(_SEED.sub("", label), []).append(values)
  rows: dict[str, dict[str, list[Mapping[str, ArrayLike]]]] = {"": groups}
  if len(groups) > FEW:
    rows = {}
    for label, group in groups.items():
      first, _, rest = label.partition(", ")
      rows.setdefault(first, {})[rest] = group
  names = list(dict.fromkeys(name for row in rows.values() for name in row))
  styles = dict(zip(names, colors(len(names)), strict=True))
  height = len(rows) * (3.4 if len(rows) == 1 else 2.2)
  figure = new_figure(WIDTH, 0.4 + height + 0.22 * -(-(len(names) + 2) // 2), title)
  axes = figure.subplots(len(rows), 2, squeeze=False, sharex="col", sharey="col")
  keys: dict[str, Line2D] = {}
  for (row, members), (both, ratio) in zip(rows.items(), axes, strict=True):
    for name, group in members.items():
      least = min(np.asarray(values["ratio"]).min() for values in group)
      number = f", {len(group)} seeds" if len(group) > 1 else ""
      for values in group:
        style = {"color": styles[name], "marker": "o" if np.size(values["steps"]) == 1 else ""}
        both.plot(values["steps"], values["trace"], **style)
        both.plot(values["steps"], values["isotropic"], ":", markerfacecolor="none", **style)
        [line] = ratio.plot(values["steps"], values["ratio"], **style)
      label = f"{verbatim(name)}{number}" if row else f"{verbatim(name)}{number}: ratio at least {least:.1f}"
      line.set_label(label)
      keys.setdefault(name, Line2D([], [], color=styles[name], label=label))
    ratio.axhline(1, color="tab:gray", linewidth=1)
    both.set_ylabel("trace")
    ratio.set_ylabel(r"ratio Tr$(H \Sigma)$ / Tr$(H \bar\Sigma)$" if not row else "ratio")
    for axis in (both, ratio):
      axis.set_yscale("log")
      tidy(axis, verbatim(row))
  for axis in axes[-1]:
    axis.set_xlabel("training step")
  marks = (stroke(r"Tr$(H \Sigma)$, the noise"), stroke(r"Tr$(H \bar\Sigma)$, isotropic noise", ":"))
  legend_below(figure, [*keys.values(), *marks])
  return figure

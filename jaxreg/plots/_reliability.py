"""Whether a classifier is right as often as it is confident."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from jaxreg.plots._axes import log_ticks, new_figure


def reliability(curves: Mapping[str, Mapping[str, Any]], *, title: str = "") -> Figure:
  """Reliability diagrams: accuracy against mean confidence in bins, with the share of examples below.

  A perfectly calibrated classifier lies on the diagonal, an overconfident one under it. The label says the
  expected calibration error.

  Args:
    curves: by label, the sums `confidence`, `correct` and `count` `[bins]` of `calibration.ece_bins`.
    title: above the figure.

  Returns:
    A figure of two axes.

  Raises:
    ValueError: if there is nothing to draw.

  References:
    Guo et al., `On Calibration of Modern Neural Networks`, 2017, Fig. 1.
  """
  if not curves:
    raise ValueError("curves must have at least one entry, got none")
  # The legend of many stands beside the curves, which else it would cover.
  many = len(curves) > 3
  figure = new_figure(8 if many else 5, 5.5, title)
  upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
  upper.plot([0, 1], [0, 1], color="gray", linewidth=0.8, linestyle=":")
  for place, (label, bins) in enumerate(curves.items()):
    confidence, correct, count = (
      np.asarray(bins[name], float) for name in ("confidence", "correct", "count")
    )
    total = count.sum() or 1
    error = np.abs(correct - confidence).sum() / total
    some = count > 0
    mean_confidence = confidence[some] / count[some]
    [line] = upper.plot(
      mean_confidence,
      correct[some] / count[some],
      "o-",
      markersize=4,
      label=f"{label}, ECE {100 * error:.2f} %",
    )
    edges = np.linspace(0, 1, len(count) + 1)
    width = np.diff(edges) / len(curves)
    lower.bar(
      edges[:-1] + place * width, 100 * count / total, width, align="edge", color=line.get_color(), alpha=0.7
    )
  upper.set_title("accuracy", loc="left", fontsize="medium")
  upper.set_xlim(0, 1)
  upper.set_ylim(0, 1)
  if many:
    figure.legend(*upper.get_legend_handles_labels(), loc="outside right upper", frameon=False)
  else:
    upper.legend(frameon=False)
  lower.set_title("examples (%)", loc="left", fontsize="medium")
  # Most are in the last bin; the others would be invisible beside it.
  lower.set_yscale("log")
  log_ticks(lower.yaxis, *lower.get_ylim())
  lower.set_xlabel("confidence")
  for axis in (upper, lower):
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.3)
  return figure

"""Reliability diagrams: a classifier's accuracy against its confidence."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from jaxreg.calibration import Bins
from jaxreg.plots._axes import WIDTH, new_figure, tidy
from jaxreg.plots._names import paper_name

QUANTILE = 1.959964  # the normal distribution's quantile for 95 % intervals
FEW = 20  # a bin with fewer examples says little: no line goes through it


def reliability(curves: Mapping[str, Bins], *, title: str = "") -> Figure:
  """Draws reliability diagrams: accuracy against mean confidence in bins, with example counts below.

  A perfectly calibrated classifier lies on the diagonal, an overconfident one below it. The label gives the
  expected calibration error. Bars are 95 % intervals of the accuracy (Wilson's score). A bin with fewer than
  20 examples is a hollow point, and no line goes through it.

  Args:
    curves: by label, the sums of `calibration.ece_bins` or `adaptive_bins`, `[num_bins]`.
    title: above the figure.

  Returns:
    A figure of two axes.

  References:
    Guo et al., `On Calibration of Modern Neural Networks`, 2017, Fig. 1.
    Wilson, `Probable Inference, the Law of Succession, and Statistical Inference`, 1927.
  """
  if not curves:
    raise ValueError("curves must have at least one entry, got none")
  figure = new_figure(WIDTH, 6.6 + 0.22 * (len(curves) // 2), title)
  upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
  upper.plot([0, 1], [0, 1], color="gray", linewidth=0.8, linestyle=":", label="_diagonal")
  for place, (label, bins) in enumerate(curves.items()):
    color = f"C{place % 10}"
    confidence, correct, count = (np.asarray(sums, float) for sums in bins)
    error = np.abs(correct - confidence).sum() / (count.sum() or 1)
    some = count > 0
    mean, accuracy = confidence[some] / count[some], correct[some] / count[some]
    enough = count[some] >= FEW
    upper.plot(
      mean,
      np.where(enough, accuracy, np.nan),
      "o-",
      color=color,
      markersize=4,
      clip_on=False,  # an accuracy of 0 or 1 lies on the edge
      label=f"{paper_name(label)}, ECE {100 * error:.2f} %",
    )
    upper.plot(
      mean[~enough], accuracy[~enough], "o", color=color, markersize=4, fillstyle="none", clip_on=False
    )
    low, high = wilson(correct[some], count[some])
    upper.vlines(mean, low, high, color=color, linewidth=0.8, alpha=0.6)
    edges = np.linspace(0, 1, len(count) + 1)
    width = np.diff(edges) / len(curves)
    lower.bar(edges[:-1] + place * width, count, width, align="edge", color=color, alpha=0.7)
  tidy(upper, "accuracy")
  upper.set_xlim(0, 1)
  upper.set_ylim(0, 1)
  handles, labels = upper.get_legend_handles_labels()
  marks: dict[str, Any] = {"color": "dimgray", "linestyle": ""}
  handles += [
    Line2D([], [], color="gray", linewidth=0.8, linestyle=":"),
    Line2D([], [], **marks, marker="|", markersize=9),
    Line2D([], [], **marks, marker="o", markersize=4, fillstyle="none"),
    Line2D([], [], color="gray", linewidth=0.8, linestyle="--"),
  ]
  labels += [
    "perfectly calibrated",
    "95 % interval of the accuracy",
    f"fewer than {FEW} examples",
    f"{FEW} examples",
  ]
  # Below the axes: inside, it would hide points of rare confidences.
  figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize="small", frameon=False)
  tidy(lower, "examples in the bin")
  # Most examples are in the last bin; on a linear axis the others would be invisible.
  lower.set_yscale("log")
  lower.set_ylim(
    bottom=min([0.7, *(0.7 * bar.get_height() for bar in lower.patches if bar.get_height() > 0)])
  )
  lower.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
  lower.yaxis.set_minor_formatter(lambda *_: "")
  lower.axhline(FEW, color="gray", linewidth=0.8, linestyle="--")
  lower.set_xlabel("confidence")
  return figure


def wilson(correct: np.ndarray, count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Computes Wilson's 95 % interval for a fraction, which stays in [0, 1] and has a width at 0 and 1."""
  share, z = correct / count, QUANTILE
  middle = (share + z**2 / (2 * count)) / (1 + z**2 / count)
  half = z * np.sqrt(share * (1 - share) / count + z**2 / (4 * count**2)) / (1 + z**2 / count)
  return np.maximum(middle - half, 0), np.minimum(middle + half, 1)

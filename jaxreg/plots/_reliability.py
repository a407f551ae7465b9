"""Reliability: a classifier's accuracy against its confidence, and predicted numbers against true ones."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import ArrayLike

from jaxreg._figures import GREY, WIDTH, bar, legend_below, new_figure, percent_ticks, tidy, verbatim
from jaxreg._intervals import wilson
from jaxreg._paper_names import paper_name
from jaxreg.calibration import Bins

FEW = 20  # a bin with fewer examples says little: no line goes through it


def reliability(curves: Mapping[str, Bins], *, title: str = "") -> Figure:
  """Draws reliability diagrams: accuracy against mean confidence in bins, with example counts below.

  A perfectly calibrated classifier lies on the diagonal, an overconfident one below it. The label gives the
  expected calibration error. Bars are 95 % intervals of the accuracy (Wilson's score). A bin with fewer than
  20 examples is a hollow point, and no line goes through it.

  Args:
    curves: by label, the sums of `calibration.ece_bins`, `[num_bins]`.

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
    label = f"{verbatim(paper_name(label))}, ECE {100 * error:.2f} %"
    dots: Any = {"color": color, "markersize": 4, "clip_on": False}  # an accuracy of 0 or 1 is on the edge
    upper.plot(mean, np.where(enough, accuracy, np.nan), "o-", label=label, **dots)
    if not enough.all():  # an empty line that is not clipped would take space from the axes
      upper.plot(mean[~enough], accuracy[~enough], "o", fillstyle="none", **dots)
    low, high = wilson(correct[some], count[some])
    upper.vlines(mean, low, high, color=color, linewidth=0.8, alpha=0.6)
    edges = np.linspace(0, 1, len(count) + 1)
    width = np.diff(edges) / len(curves)
    lower.bar(edges[:-1] + place * width, count, width, align="edge", color=color, alpha=0.7)
  tidy(upper, "accuracy")
  upper.set(xlim=(0, 1), ylim=(0, 1))
  percent_ticks(upper.xaxis)
  percent_ticks(upper.yaxis)
  hollow: dict[str, Any] = {"color": GREY, "linestyle": "", "markersize": 4, "fillstyle": "none"}
  handles = [
    *upper.get_legend_handles_labels()[0],
    Line2D([], [], color="gray", linewidth=0.8, linestyle=":", label="perfectly calibrated"),
    bar("95 % interval of the accuracy"),
    Line2D([], [], marker="o", label=f"fewer than {FEW} examples", **hollow),
    Line2D([], [], color="gray", linewidth=0.8, linestyle="--", label=f"{FEW} examples"),
  ]
  legend_below(figure, handles)
  tidy(lower, "examples in the bin")
  # Most examples are in the last bin; on a linear axis the others would be invisible.
  lower.set_yscale("log")
  heights = [patch.get_height() for patch in lower.patches]
  lower.set_ylim(bottom=0.7 * min([1, *(height for height in heights if height > 0)]))
  lower.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
  lower.yaxis.set_minor_formatter(lambda *_: "")
  lower.axhline(FEW, color="gray", linewidth=0.8, linestyle="--")
  lower.set_xlabel("confidence")
  return figure


def predicted(
  targets: ArrayLike,
  outputs: ArrayLike,
  quantiles: ArrayLike | None = None,
  *,
  levels: Sequence[float] = (),
  title: str = "",
) -> Figure:
  """Draws predictions against the true values, and the share of targets below each predicted quantile.

  Good predictions lie on the diagonal. Bars reach from the lowest to the highest quantile. Below, the
  share of targets below each quantile is to be its level; bars are 95 % intervals (Wilson's score).

  Args:
    targets: `[n]`, the true values.
    outputs: `[n]`, the predictions.
    quantiles: `[n, levels]`, or None.
    levels: in (0, 1), rising.

  References:
    Kuleshov, Fenner and Ermon, `Accurate Uncertainties for Deep Learning Using Calibrated Regression`, 2018.
  """
  targets, outputs = np.asarray(targets, float), np.asarray(outputs, float)
  known = np.isfinite(targets)
  if not known.any():
    raise ValueError("targets must have at least one finite value, got none")
  targets, outputs = targets[known], outputs[known]
  both = quantiles is not None
  figure = new_figure(WIDTH, 5 * (1 + both), title)
  axes: Any = figure.subplots(1 + both, 1, squeeze=False)[:, 0]
  errors = outputs - targets
  unit = float(np.abs(errors).max()) or 1.0  # whose square may be too large
  rmse = unit * np.sqrt(np.square(errors / unit).mean())
  shown = np.concatenate([targets, outputs])
  if both:
    quantiles = np.asarray(quantiles, float)[known]
    low, high = quantiles[:, 0], quantiles[:, -1]
    inside = ((low <= targets) & (targets <= high)).mean()
    ends = f"{100 * levels[0]:.3g} % to {100 * levels[-1]:.3g} % quantile"
    label = f"{ends}: {100 * inside:.0f} % of the targets inside"
    axes[0].vlines(targets, low, high, color="tab:blue", linewidth=0.8, alpha=0.35, label=label)
    _calibration(axes[1], targets, quantiles, levels)
  axes[0].plot(targets, outputs, "o", color="tab:blue", markersize=3.5, label=f"prediction, RMSE {rmse:.4g}")
  ends = shown.min(), shown.max()
  axes[0].plot(ends, ends, color="gray", linewidth=0.8, linestyle=":", label="equal")
  tidy(axes[0], "predicted")
  axes[0].set_xlabel("true")
  axes[0].legend(fontsize="small", frameon=False, loc="lower left", bbox_to_anchor=(0, 1.06))
  return figure


def _calibration(axis: Any, targets: np.ndarray, quantiles: np.ndarray, levels: Sequence[float]) -> None:
  below = (targets[:, None] <= quantiles).sum(axis=0)
  number = np.full(len(levels), len(targets))
  axis.plot([0, 1], [0, 1], color="gray", linewidth=0.8, linestyle=":", label="calibrated")
  axis.vlines(levels, *wilson(below, number), color="tab:blue", linewidth=0.8, alpha=0.6)
  axis.plot(levels, below / number, "o-", color="tab:blue", markersize=4, label=f"{len(targets)} targets")
  tidy(axis, "share of the targets below the quantile")
  axis.set(xlim=(0, 1), ylim=(0, 1), xlabel="level of the predicted quantile")
  percent_ticks(axis.xaxis)
  percent_ticks(axis.yaxis)
  axis.legend(fontsize="small", frameon=False, loc="lower left", bbox_to_anchor=(0, 1.06))

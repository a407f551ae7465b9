"""Predictions of numbers against the true values."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from jaxreg.plots._axes import WIDTH, new_figure, tidy
from jaxreg.plots._reliability import wilson


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
    title: above the figure.

  Returns:
    A figure of one axis, or of two.

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
  rmse = np.sqrt(np.square(outputs - targets).mean())
  shown = np.concatenate([targets, outputs])
  if both:
    quantiles = np.asarray(quantiles, float)[known]
    low, high = quantiles[:, 0], quantiles[:, -1]
    inside = ((low <= targets) & (targets <= high)).mean()
    label = f"{levels[0]:.3g} to {levels[-1]:.3g} quantile: {inside:.0%} of the targets inside"
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
  axis.set_xlim(0, 1)
  axis.set_ylim(0, 1)
  tidy(axis, "share of the targets below the quantile")
  axis.set_xlabel("level of the predicted quantile")
  axis.legend(fontsize="small", frameon=False, loc="lower left", bbox_to_anchor=(0, 1.06))

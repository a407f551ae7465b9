"""Lines of one metric over epochs."""

from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from jaxreg._metric_bounds import metric_bounds
from jaxreg.plots._interval import cut
from jaxreg.plots._series import MIN_BAND, Records, average, read

FEW_POINTS = 30
NOT_FINITE = "not finite"


def line(
  axis: Axes,
  records: Records,
  name: str,
  *,
  label: str,
  convert: Callable[[np.ndarray], np.ndarray] = lambda values: values,
  band: bool = True,
  cross: bool = True,
  **style: Any,
) -> int:
  """Draws `convert(values)` of the metric `name`, and returns the number of records behind each point.

  Means over replicas, whose records also have `<name>_ci95`, get their confidence interval. With `band`,
  other means of at least 10 records get a band from the 10th to the 90th percentile. With `cross`,
  non-finite values get a cross.
  """
  epochs, values = read(records, name)
  if not len(values):
    return 1
  values = convert(values)
  series = average(epochs, values)
  [drawn] = axis.plot(series.epoch, series.value, label=label, **style)
  lonely = _lonely(series.value)
  if lonely:
    drawn.set(marker="o", markersize=4, markevery=lonely)
  if band and series.block >= MIN_BAND and not any(f"{name}_ci95" in record for record in records):
    axis.fill_between(series.epoch, series.low, series.high, color=drawn.get_color(), alpha=0.2, linewidth=0)
  _confidence(axis, records, name, convert, drawn)
  if cross:
    _mark_not_finite(axis, epochs[~np.isfinite(values)], label)
  return series.block


def stars(axis: Axes, records: Records, name: str, *, scale: float = 1.0, unit: str = "") -> None:
  """Marks the values of a rarely measured metric, and writes the last value into the legend.

  For a mean over replicas, with `<name>_ci95` in its record, it also writes the confidence interval.
  """
  epochs, values = read(records, name)
  if len(values):
    _, half = read(records, f"{name}_ci95")
    interval = ""
    if len(half):
      below, above = scale * cut(values[-1], half[-1], metric_bounds(name))
      low, high = scale * values[-1] - below, scale * values[-1] + above
      whole = below == above
      interval = f" ± {scale * half[-1]:.2g}" if whole else f" [{low:.3g}, {high:.3g}]"
    axis.plot(
      epochs,
      np.where(np.isfinite(values), scale * values, np.nan),
      linestyle="",
      marker="*",
      markersize=12,
      color="black",
      zorder=5,
      clip_on=False,
      label=f"test {scale * values[-1]:.3g}{interval}{unit}",
    )


def _confidence(
  axis: Axes, records: Records, name: str, convert: Callable[[np.ndarray], np.ndarray], drawn: Line2D
) -> None:
  both = [record for record in records if name in record and f"{name}_ci95" in record]
  epochs, values = read(both, name)
  if not len(values):
    return
  _, half = read(both, f"{name}_ci95")
  least, most = metric_bounds(name)
  ends = np.clip([values - half, values + half], least, most)
  ends = np.sort([convert(end) for end in ends], axis=0)
  # The axis may be logarithmic, where an interval that reaches below zero has no end: cut it a decade below
  # the line.
  low = np.maximum(ends[0], convert(values) / 10) if (convert(values) > 0).all() else ends[0]
  # Average the ends in the same blocks as the line.
  below, above = average(epochs, low), average(epochs, ends[1])
  axis.fill_between(below.epoch, below.value, above.value, color=drawn.get_color(), alpha=0.2, linewidth=0)
  drawn.set_label(f"{drawn.get_label()}, 95 % confidence")


def _lonely(values: np.ndarray) -> list[int]:
  # A point with both neighbours missing makes no line: without a marker it would be invisible.
  finite = np.concatenate([[False], np.isfinite(values), [False]])
  lonely = finite[1:-1] & ~finite[:-2] & ~finite[2:]
  return np.flatnonzero(lonely | (len(values) <= FEW_POINTS)).tolist()


def _mark_not_finite(axis: Axes, epochs: np.ndarray, label: str) -> None:
  if len(epochs):
    axis.plot(
      epochs,
      np.full(len(epochs), 0.03),
      transform=axis.get_xaxis_transform(),
      linestyle="",
      marker="x",
      color="tab:red",
      gid=NOT_FINITE,
      label=f"{label}: {len(epochs)} not finite",
    )

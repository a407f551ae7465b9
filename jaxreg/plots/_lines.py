"""One metric drawn as a line over epochs."""

from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.axes import Axes

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
  """Draws `convert(values)` of the metric `name`, and returns how many records each point is the mean of.

  With `band`, means of at least 10 get a band from the 10th to the 90th percentile; with `cross`, what is not
  finite gets a cross.

  Raises:
    ValueError: if a record with `name` has no epoch.
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
  if band and series.block >= MIN_BAND:
    axis.fill_between(series.epoch, series.low, series.high, color=drawn.get_color(), alpha=0.2, linewidth=0)
  if cross:
    _mark_not_finite(axis, epochs[~np.isfinite(values)], label)
  return series.block


def stars(axis: Axes, records: Records, name: str, *, scale: float = 1.0, unit: str = "") -> None:
  """Marks the values of a metric that is measured once, or rarely, and writes the last into the legend."""
  epochs, values = read(records, name)
  if len(values):
    axis.plot(
      epochs,
      np.where(np.isfinite(values), scale * values, np.nan),
      linestyle="",
      marker="*",
      markersize=12,
      color="black",
      zorder=5,
      clip_on=False,
      label=f"test {scale * values[-1]:.3g}{unit}",
    )


def _lonely(values: np.ndarray) -> list[int]:
  # A point whose neighbours are both missing makes no line: without a marker it would not be seen at all.
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

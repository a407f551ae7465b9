"""Lines of one metric over epochs, averaged in blocks if there are too many records to draw."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from jaxreg._figures import NOT_FINITE
from jaxreg._intervals import cut
from jaxreg._metrics import metric

Records = Sequence[Mapping[str, Any]]
MAX_POINTS = 200
MIN_BAND = 10
FEW_POINTS = 30


class Series(NamedTuple):
  """One metric; `low` and `high` are the 10th and 90th percentile of the `block` records behind a value."""

  epoch: np.ndarray
  value: np.ndarray
  low: np.ndarray
  high: np.ndarray
  block: int


def read(records: Records, name: str) -> tuple[np.ndarray, np.ndarray]:
  """Returns epochs and values of the records that have `name`; null reads as NaN."""
  named = [(i, record) for i, record in enumerate(records) if name in record]
  for i, record in named:
    if "epoch" not in record:
      raise ValueError(f"every record with {name} must have an epoch, got record {i} with {sorted(record)}")
  epochs = np.array([record["epoch"] for _, record in named], dtype=float)
  return epochs, np.array([record[name] for _, record in named], dtype=float)


def has_numbers(records: Records) -> bool:
  """Tells whether the labels are numbers, so that the records have RMSE and MAE in place of NLL and error."""
  return any("val/rmse" in record for record in records)


def masked(records: Records) -> bool:
  """Tells whether `train/nll` is DropMax's, under sampled masks, which always keep the target."""
  return any("train/neg_entropy" in record for record in records)


def average(epochs: np.ndarray, values: np.ndarray) -> Series:
  """Averages over consecutive records, in blocks just large enough for at most `MAX_POINTS` points.

  Non-finite values count in no mean. A block without finite values is NaN, which draws as a gap.
  """
  block = max(1, -(-len(values) // MAX_POINTS))
  if block == 1:
    values = np.where(np.isfinite(values), values, np.nan)
    return Series(epochs, values, values, values, 1)
  starts = range(0, len(values), block)
  mean, low, high = np.array([_summary(values[i : i + block]) for i in starts]).T
  return Series(np.array([epochs[i : i + block].mean() for i in starts]), mean, low, high, block)


def _summary(values: np.ndarray) -> tuple[float, float, float]:
  values = values[np.isfinite(values)]
  if not values.size:
    return (np.nan, np.nan, np.nan)
  return (values.mean(), *np.quantile(values, (0.1, 0.9)))


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
  missing = epochs[~np.isfinite(values)]
  if cross and len(missing):
    style = {"linestyle": "", "marker": "x", "color": "tab:red", "gid": NOT_FINITE}
    style |= {"label": f"{label}: {len(missing)} not finite", "transform": axis.get_xaxis_transform()}
    axis.plot(missing, np.full(len(missing), 0.03), **style)
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
      below, above = scale * cut(values[-1], half[-1], (metric(name).low, metric(name).high))
      low, high = scale * values[-1] - below, scale * values[-1] + above
      interval = f" ± {scale * half[-1]:.2g}" if below == above else f" [{low:.3g}, {high:.3g}]"
    star: Any = {"linestyle": "", "marker": "*", "markersize": 12, "color": "black", "zorder": 5}
    label = f"test {scale * values[-1]:.3g}{interval}{unit}"
    shown = np.where(np.isfinite(values), scale * values, np.nan)
    axis.plot(epochs, shown, clip_on=False, label=label, **star)


def _confidence(
  axis: Axes, records: Records, name: str, convert: Callable[[np.ndarray], np.ndarray], drawn: Line2D
) -> None:
  both = [record for record in records if name in record and f"{name}_ci95" in record]
  epochs, values = read(both, name)
  if not len(values):
    return
  _, half = read(both, f"{name}_ci95")
  ends = np.clip([values - half, values + half], metric(name).low, metric(name).high)
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


def note_averages(figure: Figure, blocks: Iterable[int]) -> None:
  """Notes below the figure how many records a point stands for, if more than one."""
  if note := averages(blocks):
    figure.supxlabel(note, fontsize="small", color="dimgray")


def averages(blocks: Iterable[int]) -> str:
  """Says how many records a point stands for; empty if it is one."""
  averaged = sorted({block for block in blocks if block > 1})
  if not averaged:
    return ""
  bands = " Bands: their 10th to 90th percentile." if averaged[-1] >= MIN_BAND else ""
  means = " or ".join(map(str, averaged))
  return f"Series of more than {MAX_POINTS} records: a point is the mean of {means} consecutive ones.{bands}"

"""Series from records: the values of one metric, averaged in blocks if there are too many to draw."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

Records = Sequence[Mapping[str, Any]]
MAX_POINTS = 200
MIN_BAND = 10


class Series(NamedTuple):
  """One metric; `low` and `high` are the 10th and 90th percentile of the `block` records behind a value."""

  epoch: np.ndarray
  value: np.ndarray
  low: np.ndarray
  high: np.ndarray
  block: int


def read(records: Records, name: str) -> tuple[np.ndarray, np.ndarray]:
  """Returns epochs and values of the records that have `name`; null reads as NaN."""
  found = [(i, record) for i, record in enumerate(records) if name in record]
  for i, record in found:
    if "epoch" not in record:
      raise ValueError(f"every record with {name} must have an epoch, got record {i} with {sorted(record)}")
  epochs = np.array([record["epoch"] for _, record in found], dtype=float)
  return epochs, np.array([record[name] for _, record in found], dtype=float)


def of_numbers(records: Records) -> bool:
  """Whether the labels are numbers, so that the records have RMSE and MAE in place of NLL and error."""
  return any("val/rmse" in record for record in records)


def masked(records: Records) -> bool:
  """Whether `train/nll` is DropMax's, under sampled masks, which always keep the target."""
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

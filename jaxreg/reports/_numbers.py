"""The numbers of a card, with intervals: Wilson's of shares, DeLong's of an AUROC, else by the bootstrap."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from jaxreg import calibration
from jaxreg._intervals import QUANTILE, wilson

RESAMPLES = 1000


class Number(NamedTuple):
  """A number with its name for people, its 95 % interval or None, and whether it is read in per cent."""

  title: str
  value: float
  low: float | None = None
  high: float | None = None
  percent: bool = False

  def text(self, value: float | None) -> str:
    """A value of this number as people read it."""
    return "" if value is None else f"{100 * value:.2f} %" if self.percent else f"{value:.4g}"

  @property
  def interval(self) -> str:
    if self.low is None or self.high is None:
      return ""
    low, high, digits = self.text(self.low), self.text(self.high), 4
    while low == high and self.low < self.high and not self.percent:  # a narrow interval needs more digits
      digits += 1
      low, high = f"{self.low:.{digits}g}", f"{self.high:.{digits}g}"
    return f"{low} to {high}"


def around(title: str, value: Any, half: Any) -> Number:
  """A number with the interval `value ± half`."""
  return Number(title, float(value), float(value) - float(half), float(value) + float(half))


def share(title: str, hits: Any) -> Number:
  """The share of examples, with Wilson's interval."""
  hits = np.asarray(hits, float)
  low, high = wilson(hits.sum(keepdims=True), np.array([hits.size]))
  return Number(title, float(hits.mean()), float(low[0]), float(high[0]), percent=True)


def mean(title: str, values: Any, weights: np.ndarray, *, percent: bool = False) -> Number:
  """The mean over the examples, with a bootstrap interval."""
  values = np.asarray(values, np.float64)
  low, high = basic(float(values.mean()), weights @ values / len(values), float(values.min()))
  return Number(title, float(values.mean()), low, high, percent)


def resamples(seed: int, size: int, number: int = RESAMPLES) -> np.ndarray:
  """How often each example is drawn in each bootstrap sample, `[number, size]`."""
  rng = np.random.default_rng(seed)
  counts = (np.bincount(rng.integers(0, size, size), minlength=size) for _ in range(number))
  return np.stack([*counts]).astype(np.float32)


def basic(value: float, drawn: np.ndarray, least: float = -math.inf) -> tuple[float, float]:
  """The basic bootstrap interval of 95 %: a bias of resampling, as of the ECE, is taken off twice."""
  if not np.isfinite(drawn).all():
    return float("nan"), float("nan")
  low, high = 2 * value - np.quantile(drawn, [0.975, 0.025])
  return max(float(low), least), max(float(high), least)


def ranked(title: str, usual: Any, other: Any) -> Number:
  """An AUROC with DeLong's interval, from the ranks of either kind of scores among the other."""
  value = float(calibration.auroc(usual, other))
  pairs = (
    (np.asarray(usual, float), np.asarray(other, float)) for usual, other in ((usual, other), (other, usual))
  )
  half = QUANTILE * float(np.sqrt(sum(_placements(*pair).var(ddof=1) / len(pair[0]) for pair in pairs)))
  return Number(title, value, max(value - half, 0), min(value + half, 1), percent=True)


def _placements(scores: np.ndarray, others: np.ndarray) -> np.ndarray:
  """For each score the share of the others that are smaller; equal ones count half."""
  others = np.sort(others)
  return (np.searchsorted(others, scores) + np.searchsorted(others, scores, side="right")) / 2 / len(others)

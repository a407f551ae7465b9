"""The numbers of a card, with intervals: Wilson's of shares, DeLong's of an AUROC, else by the bootstrap."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxreg import calibration
from jaxreg.plots._reliability import QUANTILE, wilson

AT_ONCE = 20  # resamples that a compiled statistic takes at once


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
    return "" if self.low is None else f"{self.text(self.low)} to {self.text(self.high)}"


class Statistic(NamedTuple):
  """`function(predictions, labels, weights) -> scalar`, with its title; no value is below `least`."""

  title: str
  function: Callable[[Any, Any, Any], Any]
  percent: bool = False
  least: float | None = 0.0


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


def bootstrapped(
  statistics: Mapping[str, Statistic], predictions: Any, labels: Any, weights: np.ndarray
) -> dict[str, Number]:
  """Statistics of all examples, with bootstrap intervals."""
  drawn = over_resamples(statistics, predictions, labels, weights)
  return {
    name: Number(each.title, float(x[0]), *basic(float(x[0]), x[1:], each.least), each.percent)
    for (name, each), x in zip(statistics.items(), drawn.values(), strict=True)
  }


def resamples(seed: int, size: int, number: int) -> np.ndarray:
  """How often each example is drawn in each bootstrap sample, `[number, size]`."""
  rng = np.random.default_rng(seed)
  counts = (np.bincount(rng.integers(0, size, size), minlength=size) for _ in range(number))
  return np.stack([*counts]).astype(np.float32)


def over_resamples(
  statistics: Mapping[str, Statistic], predictions: Any, labels: Any, weights: np.ndarray
) -> dict[str, np.ndarray]:
  """Each statistic of all examples and then of each resample, `[1 + number]`, in one compiled program."""

  @jax.jit
  def each(predictions: Any, labels: Any, weights: Any) -> dict[str, Any]:
    of_row = lambda row: {name: s.function(predictions, labels, row) for name, s in statistics.items()}
    return jax.lax.map(of_row, weights, batch_size=AT_ONCE)

  found = each(predictions, labels, np.concatenate([np.ones_like(weights[:1]), weights]))
  return {name: np.asarray(found[name], np.float64) for name in statistics}


def basic(value: float, drawn: np.ndarray, least: float | None = None) -> tuple[float, float]:
  """The basic bootstrap interval of 95 %: a bias of resampling, as of the ECE, is taken off twice."""
  if not np.isfinite(drawn).all():
    return float("nan"), float("nan")
  low, high = 2 * value - np.quantile(drawn, [0.975, 0.025])
  return (float(low), float(high)) if least is None else (max(float(low), least), max(float(high), least))


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

"""The numbers of a card, with 95 % intervals; `tests/reports/test_coverage.py` simulates when they hold."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from scipy.special import bdtrik, expit, logit, stdtrit

from jaxreg import calibration
from jaxreg._intervals import QUANTILE, clopper_pearson, welch

RESAMPLES = 1000
HALVINGS = 40  # of an interval between two candidates


class Number(NamedTuple):
  """A number with its name for people, its 95 % interval or None, and whether it is read in per cent."""

  title: str
  value: float
  low: float | None = None
  high: float | None = None
  percent: bool = False

  def text(self, value: float | None) -> str:
    """Returns a value of this number as people read it."""
    if value is None or not self.percent:
      return "" if value is None else f"{value:.4g}"
    digits = 4 if 1e-6 <= abs(value) < 1e-3 else 2  # a mean such as AURC may be small
    return f"{100 * value:.{digits}f} %"

  @property
  def interval(self) -> str:
    if self.low is None or self.high is None:
      return ""
    low, high, digits = self.text(self.low), self.text(self.high), 4
    while low == high and self.low < self.high and not self.percent:  # a narrow interval needs more digits
      digits += 1
      low, high = f"{self.low:.{digits}g}", f"{self.high:.{digits}g}"
    return f"{low} to {high}"


def in_percent(share: float) -> str:
  """Returns a share as a text without digits that say nothing, such as `90 %`."""
  return f"{100 * share:.4g} %"


def around(title: str, value: Any, half: Any) -> Number:
  """Makes a number with the interval `value ± half`."""
  return Number(title, float(value), float(value) - float(half), float(value) + float(half))


def share(title: str, values: Any, variance: float | None = None) -> Number:
  """Makes the mean of values in [0, 1], with the exact interval for the effective number of examples.

  This is the number of independent yes-or-no examples whose share has the same variance. It is the number of
  examples if the values are 0 and 1, and at most that number if the `variance` of the mean is given.
  """
  values = np.asarray(values, float)
  value, count = float(values.mean()), float(values.size)
  spread = values.var() / count if variance is None else variance
  if 0 < value < 1 and spread > 0:
    effective = value * (1 - value) / spread
    count = effective if variance is None else min(effective, count)
  return Number(title, value, *clopper_pearson(value * count, count), percent=True)


def mean(title: str, values: Any, weights: np.ndarray) -> Number:
  """Makes the mean over the examples, with the studentised bootstrap interval, which allows some skewness.

  Rare values that the sample lacks are not counted: if one value in fifty is large, the interval of 30 values
  holds the mean half of the time. It has no interval if all values are equal, or some are not finite.
  """
  values = np.asarray(values, np.float64)
  value, size = float(values.mean()), len(values)
  if not np.isfinite(value) or np.ptp(values) == 0:
    return Number(title, value)
  unit = float(np.abs(values).max())
  value, values = value / unit, values / unit  # whose squares float64 holds
  error = values.std() / math.sqrt(size - 1)
  shifts = weights @ (values - value) / size
  variances = np.maximum(weights @ np.square(values - value) / size - np.square(shifts), 0)
  # A resample of equal values has no error of its own; it counts as one far out.
  far = 3 * float(stdtrit(size - 1, 0.975))
  with np.errstate(divide="ignore", invalid="ignore"):
    ratios = shifts / np.sqrt(variances / (size - 1))
  ratios = np.nan_to_num(ratios, nan=0.0, posinf=far, neginf=-far)
  low, high = value - error * np.quantile(ratios, [0.975, 0.025])
  return Number(title, unit * value, unit * max(float(low), float(values.min())), unit * float(high))


def resamples(seed: int, size: int, number: int = RESAMPLES) -> np.ndarray:
  """Counts how often each example is drawn in each bootstrap sample, `[number, size]`."""
  rng = np.random.default_rng(seed)
  counts = (np.bincount(rng.integers(0, size, size), minlength=size) for _ in range(number))
  return np.stack([*counts]).astype(np.float32)


def positive(value: float, drawn: np.ndarray, size: int) -> tuple[float | None, float | None]:
  """Computes the interval of a positive statistic of `size` examples, from Student's t of its logarithm."""
  drawn = drawn[drawn > 0]
  if not value > 0 or not np.isfinite([value, *drawn]).all() or len(drawn) < 2 or np.ptp(drawn) == 0:
    return None, None
  half = float(stdtrit(size - 1, 0.975) * np.log(drawn).std(ddof=1))
  return value * math.exp(-half), value * math.exp(half)


def calibration_interval(
  gaps: np.ndarray, drawn: np.ndarray, calibrated: np.ndarray
) -> tuple[float | None, float | None]:
  """Computes the interval of a calibration error, which is too large by chance, by inverting two tests.

  A candidate has the gaps times a factor; its errors are computed with the noise of the bootstrap.
  The interval has the candidates for which neither 2.5 % of the errors are as large as the observed error
  nor 2.5 % as small. It starts at 0 unless the error is larger than chance allows for a calibrated model,
  and always holds the observed error.

  Args:
    gaps: the differences of accuracy and confidence in the bins, as parts of all examples, `[bins]`.
    drawn: the gaps of resamples, `[number, bins]`.
    calibrated: the errors of a calibrated model with the same confidences, `[number]`.

  References:
    Broecker and Smith, `Increasing the Reliability of Reliability Diagrams`, 2007 (the test of calibration).
    Garthwaite and Buckland, `Generating Monte Carlo Confidence Intervals by the Robbins-Monro Process`, 1992.
  """
  error, noise = float(np.abs(gaps).sum()), drawn - gaps
  if not np.isfinite(drawn).all() or error == 0:
    return None, None

  def factor(level: float, ends: tuple[float, float]) -> float:
    """Finds the factor whose errors have the observed error as their quantile."""
    low, high = ends
    for _ in range(HALVINGS):
      middle = (low + high) / 2
      larger = np.quantile(np.abs(middle * gaps + noise).sum(axis=-1), level) > error
      low, high = (low, middle) if larger else (middle, high)
    return high

  possible = (calibrated >= error).mean() > 0.025
  low = 0.0 if possible else factor(0.975, (0.0, 1.0)) * error
  # Errors of a factor are at least the factor times the error, less the noise.
  most = 2 + float(np.abs(noise).sum(axis=-1).max()) / error
  return low, max(factor(0.025, (0.0, most)) * error, error)


def ranked(title: str, usual: Any, other: Any) -> Number:
  """Makes an AUROC, with an interval that holds Brunner and Munzel's and Newcombe's.

  The first has DeLong's variance, from the ranks of either kind of scores among the other, and Student's t on
  the logit scale. It fails where few scores are out of order; the second then is the wider one.
  """
  value, usual, other = float(calibration.auroc(usual, other)), np.asarray(usual), np.asarray(other)
  parts = [
    (_placements(these, those).var(ddof=1) / len(these), len(these) - 1)
    for these, those in ((usual, other), (other, usual))
  ]
  half, _ = welch(0, parts)
  low, high = _newcombe(value, len(usual), len(other))
  if 0 < value < 1 and half > 0:
    half /= value * (1 - value)
    low, high = min(low, float(expit(logit(value) - half))), max(high, float(expit(logit(value) + half)))
  return Number(title, value, low, high, percent=True)


def passing(title: str, usual: Any, other: Any) -> Number:
  """Makes the share of the other scores at or below the 95 % quantile of the usual ones.

  The interval may miss the share in 5 % of the cases: in 2.5 % the quantile lies outside two of the usual
  scores, and in 2.5 % the share of the others below these two scores lies outside its own interval.
  """
  usual, other = np.sort(usual), np.sort(other)
  value, size = float(calibration.fpr_at_tpr(usual, other)), len(usual)
  # How many usual scores lie below the true quantile is binomial.
  ranks = np.ceil(np.nan_to_num(bdtrik([0.0125, 0.9875], size, 0.95))).astype(int)
  thresholds = np.append(np.append(-np.inf, usual), np.inf)[[ranks[0], ranks[1] + 1]]
  least, most = np.searchsorted(other, thresholds, side="right")
  low, _ = clopper_pearson(float(least), len(other), 0.975)
  _, high = clopper_pearson(float(most), len(other), 0.975)
  return Number(title, value, low, high, percent=True)


def _placements(scores: np.ndarray, others: np.ndarray) -> np.ndarray:
  """Computes for each score the share of the others that are smaller; equal ones count half."""
  others = np.sort(others)
  return (np.searchsorted(others, scores) + np.searchsorted(others, scores, side="right")) / 2 / len(others)


def _newcombe(value: float, first: int, second: int) -> tuple[float, float]:
  """Computes Newcombe's score interval of an AUROC, from Hanley and McNeil's variance (2006, method 5)."""

  def outside(area: float) -> bool:
    spread = ((first + second) / 2 - 1) * ((1 - area) / (2 - area) + area / (1 + area))
    return (value - area) ** 2 > QUANTILE**2 * area * (1 - area) * (1 + spread) / (first * second)

  ends = []
  for end in (0.0, 1.0):
    inside = value
    for _ in range(HALVINGS):
      middle = (inside + end) / 2
      inside, end = (inside, middle) if outside(middle) else (middle, end)
    ends.append(end)
  return ends[0], ends[1]

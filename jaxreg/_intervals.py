"""Confidence intervals: of the mean of runs, and of a share."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betaincinv, stdtr, stdtrit

QUANTILE = 1.959964  # the normal distribution's quantile for 95 % intervals


def interval(runs: ArrayLike) -> tuple[float, float]:
  """Computes the mean and half the width of its 95 % confidence interval (Student's t); 0 for one run."""
  values = np.asarray(runs, float)
  if len(values) < 2:
    return float(values.mean()), 0.0
  half = stdtrit(len(values) - 1, 0.975) * values.std(ddof=1) / np.sqrt(len(values))
  return float(values.mean()), float(half)


def welch(value: float, parts: Sequence[tuple[float, int]]) -> tuple[float, float]:
  """Computes half the width of a 95 % interval and the p-value, by Welch's t.

  Each part of the variance has its degrees of freedom.
  """
  variance = sum(part for part, _ in parts)
  if variance == 0:
    return 0.0, float(value == 0)
  freedom = variance**2 / sum(part**2 / each for part, each in parts)
  deviation = np.sqrt(variance)
  return float(stdtrit(freedom, 0.975) * deviation), float(2 * stdtr(freedom, -abs(value) / deviation))


def cut(mean: ArrayLike, half: ArrayLike, bounds: tuple[float, float]) -> np.ndarray:
  """Returns the lengths `[2, ...]` of intervals below and above their means, cut at the bounds."""
  mean, half = np.asarray(mean, float), np.asarray(half, float)
  return np.maximum([np.minimum(half, mean - bounds[0]), np.minimum(half, bounds[1] - mean)], 0)


def wilson(correct: np.ndarray, count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Computes Wilson's 95 % interval for a fraction, which stays in [0, 1] and has a width at 0 and 1."""
  share, z = correct / count, QUANTILE
  middle = (share + z**2 / (2 * count)) / (1 + z**2 / count)
  half = z * np.sqrt(share * (1 - share) / count + z**2 / (4 * count**2)) / (1 + z**2 / count)
  return np.maximum(middle - half, 0), np.minimum(middle + half, 1)


def clopper_pearson(correct: float, count: float, level: float = 0.95) -> tuple[float, float]:
  """Computes the exact interval of a fraction, which holds it at least this often, also near 0 and 1."""
  tail = (1 - level) / 2
  low = betaincinv(correct, count - correct + 1, tail) if correct > 0 else 0.0
  high = betaincinv(correct + 1, count - correct, 1 - tail) if correct < count else 1.0
  return float(low), float(high)

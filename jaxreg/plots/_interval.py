"""The mean of runs and its confidence interval."""

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtrit


def interval(runs: ArrayLike) -> tuple[float, float]:
  """Computes the mean and half the width of its 95 % confidence interval (Student's t); 0 for one run."""
  values = np.asarray(runs, float)
  if len(values) < 2:
    return float(values.mean()), 0.0
  half = stdtrit(len(values) - 1, 0.975) * values.std(ddof=1) / np.sqrt(len(values))
  return float(values.mean()), float(half)


def cut(mean: ArrayLike, half: ArrayLike, bounds: tuple[float, float]) -> np.ndarray:
  """The lengths `[2, ...]` of intervals below and above their means, cut at the bounds."""
  mean, half = np.asarray(mean, float), np.asarray(half, float)
  return np.maximum([np.minimum(half, mean - bounds[0]), np.minimum(half, bounds[1] - mean)], 0)

"""The predictions of a trained run beside the labels, for measures, conformal sets and exports."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jax.typing import ArrayLike

from jaxreg.train.data.dataset import known
from jaxreg.train.step.targets import Numbers, Target
from jaxreg.typing import Key, PyTree


class Predicted(NamedTuple):
  """The predictions of a run for a split, and a key for random scores."""

  # Log-probabilities `[n, classes]`, or `[n, labels, 2]` for several labels per example; standardised numbers
  # as their `target` predicts them.
  predictions: np.ndarray
  labels: np.ndarray  # `[n]`, or `[n, labels]`; -1, or NaN for a number, is an unknown label
  target: Target
  key: Key | None = None

  @property
  def where(self) -> np.ndarray:
    """Which labels are known."""
    return known(self.labels)

  def measured(self, measure: Callable[..., PyTree], log_probs: ArrayLike | None = None) -> PyTree:
    """Calls a function of `calibration` with the run's log-probabilities, or others, at the known labels."""
    return measure(self.predictions if log_probs is None else log_probs, self.labels, where=self.where)

  def intervals(self) -> list[tuple[np.ndarray, ...]]:
    """Returns for each target the ends of its intervals, its standardised values, and which are known."""
    assert isinstance(self.target, Numbers)
    parts = (*self.target.interval(self.predictions), self.target.standard.learned(self.labels), self.where)
    return [*zip(*(by_target(np.asarray(part)) for part in parts), strict=True)]


def by_target(values: np.ndarray) -> np.ndarray:
  """Returns `[targets, n]` from `[n]` or `[n, targets]`."""
  return values.reshape(len(values), -1).T

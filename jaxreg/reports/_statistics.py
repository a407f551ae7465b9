"""Statistics of weighted predictions, and the sets and inputs that the trainer measures, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxreg import calibration
from jaxreg.reports._numbers import Statistic
from jaxreg.typing import Array


def _ratio(measure: Callable[..., tuple[Array, Array]]) -> Callable[[Any, Any, Any], Array]:
  def function(predictions: Any, labels: Any, weights: Any) -> Array:
    total, count = measure(predictions, labels, weights=weights)
    return total / count

  return function


def _ece(bins: Callable[..., calibration.Bins]) -> Callable[[Any, Any, Any], Array]:
  return lambda log_probs, labels, weights: calibration.ece(bins(log_probs, labels, weights=weights))


def _error(log_probs: Any, labels: Any, weights: Any) -> Array:
  return jnp.average(jnp.argmax(log_probs, axis=-1) != labels, weights=weights)


def _squared(outputs: Any, labels: Any, weights: Any) -> Array:
  return jnp.average(jnp.square(outputs - labels), weights=weights)


def _r2(outputs: Any, labels: Any, weights: Any) -> Array:
  centre = jnp.average(labels, weights=weights)
  return 1 - _squared(outputs, labels, weights) / _squared(centre, labels, weights)


OF_CLASSES = {
  "error": Statistic("error", _error, percent=True),
  "nll": Statistic("NLL", _ratio(calibration.nll)),
  "brier": Statistic("Brier score", _ratio(calibration.brier)),
  "ece": Statistic("ECE", _ece(calibration.ece_bins), percent=True),
  "adaptive_ece": Statistic("adaptive ECE", _ece(calibration.adaptive_bins), percent=True),
  "aurc": Statistic("AURC", lambda *given: calibration.risk_coverage(*given[:2], weights=given[2]).aurc),
}
# These take the point predictions, `[n]`.
OF_NUMBERS = {
  "rmse": Statistic("RMSE", lambda *given: jnp.sqrt(_squared(*given))),
  "mae": Statistic(
    "MAE", lambda outputs, labels, weights: jnp.average(abs(outputs - labels), weights=weights)
  ),
  "r2": Statistic("R2", _r2, least=None),
}


def conformal_sets(
  scores: ArrayLike,
  labels: np.ndarray,
  their_scores: ArrayLike,
  their_labels: np.ndarray,
  *,
  alpha: float,
  where: Any = None,
) -> tuple[np.ndarray, np.ndarray]:
  """Whether each set holds its label, and its number of classes; held-out examples give the threshold."""
  threshold = calibration.conformal_threshold(their_scores, their_labels, alpha=alpha, where=where)
  sets = np.asarray(jnp.asarray(scores) <= threshold)
  return np.take_along_axis(sets, np.maximum(labels, 0)[..., None], axis=-1)[..., 0], sets.sum(axis=-1)


def conformal_intervals(
  ours: Any, theirs: Any, their_labels: Any, *, alpha: float, where: Any = None
) -> tuple[Any, Any]:
  """The intervals `ours`, low and high ends, widened as `theirs` of held-out examples ask for."""
  low, high = theirs
  scores = calibration.interval_scores(low, high, their_labels, where=where)
  margin = np.asarray(calibration.conformal_threshold(scores, alpha=alpha, where=where))
  return ours[0] - margin, ours[1] + margin


def rotated(images: np.ndarray) -> np.ndarray:
  """Images `[n, size, size, channels]`, turned by 90 degrees."""
  return np.rot90(images, axes=(1, 2)).copy()


def noise_like(inputs: np.ndarray, low: float, high: float) -> np.ndarray:
  """Uniform noise between two values, of the shape and dtype of `inputs`."""
  drawn = np.random.default_rng(0).uniform(low, high, inputs.shape)
  return (drawn.round() if inputs.dtype.kind in "iu" else drawn).astype(inputs.dtype)

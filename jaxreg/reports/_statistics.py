"""Statistics of weighted predictions, and the sets and inputs that the trainer measures, too."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxreg import calibration
from jaxreg._metrics import metric
from jaxreg.reports._numbers import Number, basic
from jaxreg.typing import Array

AT_ONCE = 20  # resamples that the compiled statistics take at once


def _of_classes(log_probs: Array, labels: Array, weights: Array) -> dict[str, Array]:
  of = lambda measure: measure(log_probs, labels, weights=weights)
  ratio = lambda total, count: total / count
  return {
    "nll": ratio(*of(calibration.nll)),
    "brier": ratio(*of(calibration.brier)),
    "ece": calibration.ece(of(calibration.ece_bins)),
    "adaptive_ece": calibration.ece(of(calibration.adaptive_bins)),
    "aurc": of(calibration.risk_coverage).aurc,
  }


def _of_numbers(outputs: Array, labels: Array, weights: Array) -> dict[str, Array]:
  mean = lambda values: jnp.average(values, weights=weights)
  squared = mean(jnp.square(outputs - labels))
  return {
    "rmse": jnp.sqrt(squared),
    "mae": mean(jnp.abs(outputs - labels)),
    "r2": 1 - squared / mean(jnp.square(labels - mean(labels))),
  }


@functools.partial(jax.jit, static_argnums=0)
def _of_rows(function: Callable[..., dict[str, Array]], predictions: Any, labels: Any, weights: Any) -> Any:
  return jax.lax.map(lambda row: function(predictions, labels, row), weights, batch_size=AT_ONCE)


def over_resamples(
  predictions: np.ndarray, labels: np.ndarray, levels: Sequence[float], weights: np.ndarray
) -> dict[str, np.ndarray]:
  """Each statistic of all examples and then of each resample, `[1 + number]`; compiled once."""
  of_numbers = labels.dtype.kind == "f"
  given = (_of_numbers, point(predictions, levels)) if of_numbers else (_of_classes, predictions)
  found = _of_rows(*given, labels, np.concatenate([np.ones_like(weights[:1]), weights]))
  return {name: np.asarray(each, np.float64) for name, each in found.items()}


def bootstrapped(*given: Any) -> dict[str, Number]:
  """The statistics of all examples, with bootstrap intervals; the arguments are those of `over_resamples`."""
  found: dict[str, Number] = {}
  for name, (value, *drawn) in over_resamples(*given).items():
    ends = basic(float(value), np.array(drawn), metric(name).low)
    found[name] = Number(metric(name).title, float(value), *ends, metric(name).percent)
  return found


def point(predictions: np.ndarray, levels: Sequence[float]) -> np.ndarray:
  """The mean, or the quantile nearest the median, `[n]`."""
  return predictions[:, int(np.abs(np.asarray(levels) - 0.5).argmin()) if levels else 0]


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

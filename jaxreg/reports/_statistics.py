"""Statistics of weighted predictions, and shifted inputs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

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


def rotated(images: np.ndarray) -> np.ndarray:
  """Images `[n, size, size, channels]`, turned by 90 degrees."""
  return np.rot90(images, axes=(1, 2)).copy()


def noise_like(inputs: np.ndarray, low: float, high: float) -> np.ndarray:
  """Uniform noise between two values, of the shape and dtype of `inputs`."""
  drawn = np.random.default_rng(0).uniform(low, high, inputs.shape)
  return (drawn.round() if inputs.dtype.kind in "iu" else drawn).astype(inputs.dtype)

"""Statistics of predictions and of resamples, and shifted inputs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxreg import calibration
from jaxreg._intervals import clopper_pearson
from jaxreg._log_odds import error_log_odds
from jaxreg._metrics import metric
from jaxreg.reports._numbers import Number, calibration_interval, in_percent, mean, positive, share
from jaxreg.typing import Array

AT_ONCE = 20  # resamples that the compiled statistics take at once, at most
ANSWERED = (0.9, 0.8)  # shares of the surest examples; the error of each share is shown
GAPS = {
  "ece": calibration.ece_bins,
  "adaptive_ece": functools.partial(calibration.ece_bins, kind="mass"),
}


def _gaps(log_probs: Array, labels: Array, weights: Array) -> dict[str, Array]:
  """Computes the difference of accuracy and confidence in each bin, as a part of all examples."""
  bins = {name: make(log_probs, labels, weights=weights) for name, make in GAPS.items()}
  return {name: (each.correct - each.confidence) / each.count.sum() for name, each in bins.items()}


def _classes(log_probs: Array, labels: Array, weights: Array) -> dict[str, Array]:
  losses = {"nll": calibration.nll, "brier": calibration.brier}
  sums = {name: loss(log_probs, labels, weights=weights) for name, loss in losses.items()}
  means = {name: total / count for name, (total, count) in sums.items()}
  curve = calibration.risk_coverage(log_probs, labels, weights=weights)
  parts = {f"error_at_{part:g}": curve.risk[jnp.argmax(curve.coverage >= part - 1e-6)] for part in ANSWERED}
  return {**means, **_gaps(log_probs, labels, weights), "aurc": curve.aurc, "augrc": curve.augrc, **parts}


def _numbers(outputs: Array, labels: Array, weights: Array) -> dict[str, Array]:
  squared = jnp.average(jnp.square(outputs - labels), weights=weights)
  middle = jnp.average(labels, weights=weights)
  return {
    "rmse": jnp.sqrt(squared),
    "mae": jnp.average(jnp.abs(outputs - labels), weights=weights),
    "r2": 1 - squared / jnp.average(jnp.square(labels - middle), weights=weights),
  }


@functools.partial(jax.jit, static_argnums=0)
def _rows(function: Callable[..., dict[str, Array]], predictions: Any, labels: Any, weights: Any) -> Any:
  # A size that does not divide the rows would make a second program of the rest.
  size = max(size for size in range(1, AT_ONCE + 1) if len(weights) % size == 0)
  return jax.lax.map(lambda row: function(predictions, labels, row), weights, batch_size=size)


@jax.jit
def _calibrated(log_probs: Array, draws: Array) -> dict[str, Array]:
  """Computes the calibration errors of labels that are drawn with the predicted confidence."""
  answer, confidence = log_probs.argmax(axis=-1), jnp.exp(log_probs.max(axis=-1))
  other, ones = (answer + 1) % log_probs.shape[-1], jnp.ones_like(confidence)

  def errors(row: Array) -> dict[str, Array]:
    labels = jnp.where(row < confidence, answer, other)
    return jax.tree.map(lambda gaps: jnp.abs(gaps).sum(), _gaps(log_probs, labels, ones))

  return jax.lax.map(errors, draws, batch_size=AT_ONCE)


def by_chance(log_probs: np.ndarray, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
  """Computes calibration errors of calibrated models with these confidences, `[number]` of `shape`."""
  draws = np.random.default_rng(0).random(shape, np.float32)
  return {name: np.asarray(errors) for name, errors in _calibrated(log_probs, draws).items()}


def over_resamples(
  predictions: np.ndarray, labels: np.ndarray, levels: Sequence[float], weights: np.ndarray
) -> dict[str, np.ndarray]:
  """Computes each statistic of all examples and then of each resample, `[1 + number]`."""
  statistics = _over_resamples(predictions, labels, levels, weights)
  return {name: np.abs(x).sum(axis=-1) if name in GAPS else x for name, x in statistics.items()}


def _over_resamples(
  predictions: np.ndarray, labels: np.ndarray, levels: Sequence[float], weights: np.ndarray
) -> dict[str, np.ndarray]:
  """Computes the same with the gaps of the bins, `[1 + number, bins]`, for a calibration error."""
  weights = np.concatenate([np.ones_like(weights[:1]), weights])
  if labels.dtype.kind != "f":
    statistics = _rows(_classes, predictions, labels, weights)
    return {name: np.asarray(x, np.float64) for name, x in statistics.items()}
  # Centred and scaled in float64, because squares of float32 overflow from 1e19 on.
  labels, outputs = np.asarray(labels, np.float64), np.asarray(point(predictions, levels), np.float64)
  centre, unit = labels.mean(), np.abs(labels - labels.mean()).max() or 1.0
  statistics = _rows(_numbers, (outputs - centre) / unit, (labels - centre) / unit, weights)
  units = {"rmse": unit, "mae": unit, "r2": 1.0}
  return {name: np.asarray(x, np.float64) * units[name] for name, x in statistics.items()}


def bootstrapped(
  predictions: np.ndarray, labels: np.ndarray, levels: Sequence[float], weights: np.ndarray
) -> dict[str, Number]:
  """Makes the statistics of all examples, with intervals; the arguments are as in `over_resamples`."""
  statistics = _over_resamples(predictions, labels, levels, weights)
  if labels.dtype.kind == "f":
    return _regression(point(predictions, levels), labels, statistics, weights)
  return _classification(predictions, labels, statistics, weights)


def _classification(
  log_probs: np.ndarray, labels: np.ndarray, statistics: dict[str, np.ndarray], weights: np.ndarray
) -> dict[str, Number]:
  log_probs = log_probs.astype(np.float64)
  picked, probs = log_probs[np.arange(len(labels)), labels], np.exp(log_probs)
  numbers = {
    "nll": mean(metric("nll").title, -picked, weights),
    "brier": mean(metric("brier").title, np.square(probs).sum(axis=-1) - 2 * np.exp(picked) + 1, weights),
  }
  # Resamples of few errors vary less than their number does, so no interval is narrower than the number's.
  errors = float((log_probs.argmax(axis=-1) != labels).sum())
  least, most = (end * len(labels) for end in clopper_pearson(errors, len(labels)))
  for name in ("aurc", "augrc"):
    value, *ends = _value_and_ends(statistics[name], len(labels))
    if value > 0:
      low, high = (value if end is None else end for end in ends)
      ends = min(low, value * least / errors), max(high, value * most / errors)
    numbers[name] = Number(metric(name).title, value, *ends, percent=True)
  calibrated = by_chance(log_probs, weights.shape)
  for name in GAPS:
    gaps, drawn = statistics[name][0], statistics[name][1:]
    value, ends = float(np.abs(gaps).sum()), calibration_interval(gaps, drawn, calibrated[name])
    if ends[0] is not None and ends[1] is not None:
      below, above = (errors - least) / len(labels), (most - errors) / len(labels)
      ends = max(min(ends[0], value - below), 0.0), max(ends[1], value + above)
    numbers[name] = Number(metric(name).title, value, *ends, percent=metric(name).percent)
  surest_first = np.argsort(
    np.asarray(jax.jit(error_log_odds)(jnp.asarray(log_probs, jnp.float32))), kind="stable"
  )
  wrong = (log_probs.argmax(axis=-1) != labels)[surest_first]
  for part in ANSWERED:
    name, answered = f"error_at_{part:g}", wrong[: round(part * len(wrong))]
    variance = float(statistics[name][1:].var(ddof=1))
    numbers[name] = share(f"error of the surest {in_percent(part)}", answered, variance)
  return numbers


def _regression(
  outputs: np.ndarray, labels: np.ndarray, statistics: dict[str, np.ndarray], weights: np.ndarray
) -> dict[str, Number]:
  errors = outputs.astype(np.float64) - labels
  unit = float(np.abs(errors).max()) or 1.0
  squared = mean(metric("rmse").title, np.square(errors / unit), weights)
  least, most = (None if end is None else unit * float(np.sqrt(end)) for end in (squared.low, squared.high))
  value, low, high = _value_and_ends(1 - statistics["r2"], len(labels))
  r2 = Number(metric("r2").title, 1 - value)
  return {
    "rmse": Number(squared.title, unit * float(np.sqrt(squared.value)), least, most),
    "mae": mean(metric("mae").title, np.abs(errors), weights),
    "r2": r2 if low is None or high is None else r2._replace(low=1 - high, high=1 - low),
  }


def _value_and_ends(statistic: np.ndarray, size: int) -> tuple[float, float | None, float | None]:
  value = float(statistic[0])
  return value, *positive(value, statistic[1:], size)


def point(predictions: np.ndarray, levels: Sequence[float]) -> np.ndarray:
  """Returns the mean, or the quantile nearest the median, `[n]`."""
  return predictions[:, int(np.abs(np.asarray(levels) - 0.5).argmin()) if levels else 0]


def rotated(images: np.ndarray) -> np.ndarray:
  """Turns images `[n, size, size, channels]` by 90 degrees."""
  return np.rot90(images, axes=(1, 2)).copy()


def noise_like(inputs: np.ndarray, low: float, high: float) -> np.ndarray:
  """Draws uniform noise between two values, of the shape and dtype of `inputs`."""
  drawn = np.random.default_rng(0).uniform(low, high, inputs.shape)
  return (drawn.round() if inputs.dtype.kind in "iu" else drawn).astype(inputs.dtype)

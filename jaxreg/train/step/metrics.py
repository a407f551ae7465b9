"""Metrics as pairs (sum, count): addition merges them exactly over batches, devices and processes."""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxreg import calibration
from jaxreg._metrics import metric
from jaxreg._sums import weighted
from jaxreg.typing import Array, PyTree


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class InUnits:
  """A sum and a count whose quotient times `unit` is a metric in the units of the data.

  The unit is applied on the host in float64, where no unit of the data overflows.
  """

  total: Array | np.ndarray
  count: Array | np.ndarray
  unit: float = dataclasses.field(metadata={"static": True})

  def __iter__(self) -> Iterator[Array | np.ndarray]:
    return iter((self.total, self.count))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Residuals:
  """Sums over the examples for each standardised target, `[targets]`, from which RMSE and R2 follow.

  Attributes:
    squares: of the squared errors.
    labels, label_squares: of the targets less `center`, and of their squares.
    weights: of the weights.
    center: what the targets are measured from: far from 0, float32 would lose how they differ.
    units: the standard deviation of each target in the units of the data.
  """

  squares: Array | np.ndarray
  labels: Array | np.ndarray
  label_squares: Array | np.ndarray
  weights: Array | np.ndarray
  center: Array | np.ndarray
  units: tuple[float, ...] = dataclasses.field(metadata={"static": True})

  def about_zero(self) -> "Residuals":
    """Returns the sums in float64 with `center` 0, which merge by addition."""
    sums = (np.asarray(x, np.float64) for x in jax.tree.leaves(self))
    squares, labels, label_squares, weights, center = sums
    return Residuals(
      squares,
      labels + weights * center,
      label_squares + center * (2 * labels + weights * center),
      weights,
      np.zeros_like(center),
      self.units,
    )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Tempered:
  """Sums over the examples at each of `LOG_TEMPERATURES`, from which the NLL at the best one follows.

  Attributes:
    nll: of the negative log-likelihood, `[temperatures]`.
    slopes: of its derivative with respect to the logarithm of the temperature, `[temperatures]`.
    count: of the weights.
  """

  nll: Array
  slopes: Array
  count: Array


Values = Mapping[str, np.ndarray | float]  # metric name -> one value per replica, or one for all replicas
Sums = Mapping[str, tuple[Array, Array] | InUnits | calibration.Bins | Residuals | Tempered]  # by metric
# The bounds of `calibration.fit_temperature`. Cubics between these points err by less than 1e-5 nats.
LOG_TEMPERATURES = np.linspace(np.log(1e-2), np.log(1e2), 64)
FINE = np.linspace(0, 1, 65)  # the places on a cubic where the minimum is looked for


def residuals(errors: Array, labels: Array, weights: Array, units: tuple[float, ...]) -> Residuals:
  """Computes the sums of `[batch]`, or for each target of `[batch, targets]`, about the mean target."""
  errors, labels, weights = (x.reshape(len(x), -1) for x in (errors, labels, weights))

  def total(x: Array) -> Array:
    return jnp.where(weights > 0, x * weights, 0).sum(axis=0)

  count = weights.sum(axis=0)
  center = total(labels) / jnp.where(count > 0, count, 1)
  away = labels - center[None]
  return Residuals(total(jnp.square(errors)), total(away), total(jnp.square(away)), count, center, units)


def prediction_metrics(log_probs: Array, labels: Array, weights: Array) -> Sums:
  """Computes an evaluation's metrics: error, NLL, Brier score and the bins of the calibration error."""
  return {
    "error": weighted(log_probs.argmax(axis=-1) != labels, weights),
    "nll": calibration.nll(log_probs, labels, weights=weights),
    "brier": calibration.brier(log_probs, labels, weights=weights),
    "ece": calibration.ece_bins(log_probs, labels, weights=weights),
  }


def tempered_sums(log_probs: Array, labels: Array, weights: Array) -> Tempered:
  """Computes what the NLL at the best temperature needs: unlike that temperature, the sums merge exactly."""
  counted = weights > 0
  log_probs = jnp.where(counted[..., None], log_probs, 0)
  labels = jnp.where(counted, labels, 0)

  def at(log_temperature: Array) -> tuple[Array, Array]:
    scaled = log_probs * jnp.exp(-log_temperature)
    tempered = jax.nn.log_softmax(scaled)
    excluded = jnp.isneginf(log_probs)
    mean = jnp.where(excluded, 0, jnp.exp(tempered) * jnp.where(excluded, 0, scaled)).sum(axis=-1)
    own = jnp.take_along_axis(scaled, labels[..., None], axis=-1)[..., 0]
    losses = -jnp.take_along_axis(tempered, labels[..., None], axis=-1)[..., 0]
    return (weights * losses).sum(), (weights * (own - mean)).sum()

  sums, slopes = jax.lax.map(at, jnp.asarray(LOG_TEMPERATURES, log_probs.dtype))
  return Tempered(sums, slopes, weights.sum())


def _refined(sums: Tempered) -> np.ndarray:
  """Finds the least mean NLL over the temperatures, `[replicas]`, on cubics through values and slopes."""
  values, slopes, count = (np.asarray(x, np.float64) for x in (sums.nll, sums.slopes, sums.count))
  width, (a, b) = np.diff(LOG_TEMPERATURES)[0], (values[..., :-1], values[..., 1:])
  left, right = width * slopes[..., :-1], width * slopes[..., 1:]
  t = FINE[:, *(None,) * a.ndim]
  cubics = a + t * (left + t * (3 * (b - a) - 2 * left - right + t * (2 * (a - b) + left + right)))
  return cubics.min(axis=(0, -1)) / np.where(count > 0, count, np.nan)


def _stacked(*parts: np.ndarray) -> np.ndarray:
  return np.stack(parts)


def chosen_metric(name: str, values: Mapping[str, object]) -> str:
  """Returns the validation metric that `name` means; `auto` is val/error or val/rmse."""
  if name != "auto":
    return name
  return "val/rmse" if "val/rmse" in values else "val/error"


def to_host(metrics: PyTree) -> PyTree:
  """Copies the metrics of all replicas to the host, with the replica axis in front, ready to be merged."""
  metrics = jax.device_get(metrics)
  metrics = jax.tree.map(_stacked, *metrics) if isinstance(metrics, tuple) else metrics

  def ready(value: Any) -> Any:
    return value.about_zero() if isinstance(value, Residuals) else value

  return jax.tree.map(ready, metrics, is_leaf=lambda value: isinstance(value, Residuals))


def summarize(metrics: Sums, prefix: str) -> dict[str, np.ndarray]:
  """Means of merged metrics for each replica, `[replicas]`, by full name, such as `val/error`."""
  values: dict[str, np.ndarray] = {}
  for name, value in metrics.items():
    if isinstance(value, calibration.Bins):
      values[f"{prefix}/{name}"] = np.asarray(calibration.ece(value), np.float64)
    elif isinstance(value, Tempered):
      values[f"{prefix}/{name}"] = _refined(value)
    elif isinstance(value, Residuals):
      squares, labels, label_squares, count, _ = jax.tree.leaves(value.about_zero())
      units, unit = np.asarray(value.units), max(value.units)
      values[f"{prefix}/rmse"] = unit * np.sqrt((squares / count * (units / unit) ** 2).mean(axis=-1))
      variation = label_squares - labels**2 / count
      # Targets that are all alike have no R2; below this part, their variation is the rounding of float32.
      vary = (variation > 1e-12 * label_squares).all(axis=tuple(range(variation.ndim - 1)))
      if vary.any():
        values[f"{prefix}/r2"] = (1 - squares[..., vary] / variation[..., vary]).mean(axis=-1)
    else:
      total, count = value
      mean = np.divide(total, count, out=np.full_like(total, np.nan), where=count != 0)
      mean = np.asarray(mean, np.float64) * value.unit if isinstance(value, InUnits) else mean
      values[f"{prefix}/{name}"] = mean
  return values


def averaged(values: Values) -> dict[str, float]:
  """Means over the replicas; several also give half the width of a 95 % confidence interval (Student's t)."""
  means: dict[str, float] = {}
  for name, runs in values.items():
    means[name] = float(np.mean(runs))
    if np.size(runs) > 1:
      from jaxreg._intervals import interval  # it imports SciPy, which takes a moment, and one run needs none

      means[f"{name}_ci95"] = interval(runs)[1]
  return means


def shown(
  values: Mapping[str, float], name: str, *, factor: float = 1.0, digits: int, difference: bool = False
) -> str:
  """Formats a metric from `averaged` for people: `1.67`, or `1.67 ± 0.24`.

  It has `digits` decimals. A metric in the units of the data has significant digits instead where decimals
  would be too few or too many. An interval that reaches values that the metric cannot have ends there, and is
  written by its ends: `10.97 [0.00, 30.38]`. With `difference`, the value is a difference of two values of
  the metric.
  """
  mean, half = values[name], values.get(f"{name}_ci95")
  usual = 10.0 ** (1 - digits) <= abs(mean) < 1e5
  form = metric(name).form if metric(name).form.endswith("g") and not usual else f".{digits}f"
  if half is None:
    return f"{factor * mean:{form}}"
  least, most = metric(name).low, metric(name).high
  if difference:
    least, most = least - most, most - least
  if least <= mean - half and mean + half <= most:
    return f"{factor * mean:{form}} ± {factor * half:{form}}"
  ends = (factor * min(max(end, least), most) for end in (mean - half, mean + half))
  low, high = (f"{end:{form}}" for end in ends)
  return f"{factor * mean:{form}} [{low}, {high}]"


def few_runs(number: int) -> str:
  """Returns a sentence about confidence intervals of few runs; "" for one run, or enough of them."""
  if number != 2:
    return ""
  return "The intervals of 2 runs have one degree of freedom, and say little: give at least 3 seeds."

"""What the labels of a run are, classes or numbers: how predictions are averaged and measured."""

# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false, reportUnknownVariableType=false

import dataclasses
from collections.abc import Mapping
from statistics import NormalDist
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxreg import calibration, ensembles, losses
from jaxreg._sums import weighted
from jaxreg.train.data.dataset import Standard
from jaxreg.train.methods.method import Predicts
from jaxreg.train.step.batch import Examples
from jaxreg.train.step.metrics import (
  InUnits,
  Residuals,
  Sums,
  Tempered,
  prediction_metrics,
  residuals,
  tempered_sums,
)
from jaxreg.typing import Array

AnyArray = TypeVar("AnyArray", Array, np.ndarray)


class Classes(NamedTuple):
  """Labels that are classes; predictions are log-probabilities `[batch, ..., classes]`.

  With `refined`, evaluations also measure the NLL at the best temperature, as early stopping by refinement
  needs it (Berta, Holzmueller, Jordan and Bach, `Rethinking Early Stopping: Refine, Then Calibrate`, 2025).
  """

  standard: Standard | None = None
  numbers: bool = False
  refined: bool = False

  def original(self, predictions: AnyArray) -> AnyArray:
    """Returns predictions in the units of the data."""
    return predictions

  def mean(self, predictions: Array, combine: str = "arithmetic") -> Array:
    """Merges several predictions `[members, batch, ...]`."""
    return (ensembles.geometric if combine == "geometric" else ensembles.arithmetic)(predictions)

  def metrics(self, predictions: Array, examples: Examples) -> Sums:
    """Computes the metrics of every evaluation."""
    labels, weights = examples.labels, examples.label_weights
    sums = prediction_metrics(predictions, labels, weights)
    return {**sums, "nll_refined": tempered_sums(predictions, labels, weights)} if self.refined else sums

  def hits(self, predictions: Array, examples: Examples) -> dict[str, Array]:
    """Measures each example in training, in addition to its loss."""
    return {"accuracy": predictions.argmax(axis=-1) == examples.classes}

  def in_units(self, logged: Mapping[str, tuple[Array, Array]]) -> Sums:
    """Returns the sums of `hits`, which have no unit."""
    return dict(logged)


@dataclasses.dataclass(frozen=True)
class Numbers:
  """Labels that are numbers, `[batch]` or `[batch, targets]`.

  A network learns and predicts standardised numbers; `original` turns predictions into the units of the data.
  A prediction is `[batch, ..., 2]`, a mean and a variance, which is 0 for a method that predicts means alone
  and no noise. It is `[batch, ..., levels]` for a method that predicts quantiles.

  Attributes:
    standard: the mean and the standard deviation of each target.
    predicts: what the method predicts.
    levels: the levels of predicted quantiles.
    alpha: a central interval of predicted moments is to miss a target this often.
  """

  standard: Standard
  predicts: Predicts
  levels: tuple[float, ...] = ()
  alpha: float = 0.1
  numbers = True

  def original(self, predictions: AnyArray) -> AnyArray:
    """Returns predictions in the units of the data: float64 from NumPy arrays, which lose no digit."""
    xp, last = _numpy_of(predictions), predictions.shape[-1]
    each = [predictions[..., number] for number in range(last)]
    if self.predicts == "quantiles":
      return xp.stack([self.standard.original(quantile) for quantile in each], axis=-1)
    std = self.standard.distance(xp.sqrt(each[1]))
    return xp.stack([self.standard.original(each[0]), xp.square(std)], axis=-1)

  def mean(self, predictions: Array, combine: str = "arithmetic") -> Array:
    """Returns the moments of the mixture of several predictions, or the mean of their quantiles."""
    del combine
    if self.predicts == "quantiles":
      return predictions.mean(axis=0)
    means, variances = predictions[..., 0], predictions[..., 1]
    return jnp.stack([means.mean(axis=0), variances.mean(axis=0) + means.var(axis=0)], axis=-1)

  def point(self, predictions: AnyArray) -> AnyArray:
    """Returns the mean, or the quantile nearest the median."""
    if self.predicts == "quantiles":
      return predictions[..., int(np.abs(np.asarray(self.levels) - 0.5).argmin())]
    return predictions[..., 0]

  def quantiles(self, predictions: np.ndarray) -> tuple[tuple[float, ...], np.ndarray]:
    """Returns levels and predicted quantiles `[batch, ..., levels]`, on the host; no levels for means."""
    if self.predicts == "quantiles":
      return self.levels, predictions
    if self.predicts == "means":
      return (), predictions[..., :0]
    levels = (self.alpha / 2, *(number / 10 for number in range(1, 10)), 1 - self.alpha / 2)
    levels = tuple(sorted(set(levels)))
    standard = np.array([NormalDist().inv_cdf(level) for level in levels])
    return levels, predictions[..., :1] + np.sqrt(predictions[..., 1:]) * standard

  def interval(self, predictions: AnyArray) -> tuple[AnyArray, AnyArray]:
    """Returns the ends of a prediction's interval: its outer quantiles, or a Gaussian's quantiles."""
    if self.predicts == "quantiles":
      return predictions[..., 0], predictions[..., -1]
    std = _numpy_of(predictions).sqrt(predictions[..., 1])
    half = NormalDist().inv_cdf(1 - self.alpha / 2) * std
    return predictions[..., 0] - half, predictions[..., 0] + half

  def metrics(self, predictions: Array, examples: Examples) -> Sums:
    """Computes the metrics of every evaluation; `nlpd` is minus a Gaussian's log-density.

    They are in the units of the data, which may differ between targets: `relative` weighs them.
    """
    labels, weights = examples.labels, examples.label_weights
    point, relative = self.point(predictions), self._relative(labels)
    sums: dict[str, tuple[Array, Array] | InUnits | calibration.Bins | Residuals | Tempered] = {
      "rmse": residuals(point - labels, labels, weights, self.standard.stds),
      "mae": self._in_units(*weighted(jnp.abs(point - labels) * relative, weights)),
    }
    if self.predicts == "moments":
      log_stds = np.log(np.asarray(self.standard.stds)).astype(np.float32)
      log_vars = jnp.log(predictions[..., 1])
      surprise = losses.gaussian_nll(point, log_vars, labels) + log_stds.reshape(relative.shape)
      sums["nlpd"] = weighted(surprise, weights)
    if self.predicts == "quantiles":
      levels = jnp.asarray(self.levels, predictions.dtype)
      sums["pinball"] = self._in_units(
        *weighted(losses.pinball(predictions, labels, levels=levels) * relative, weights)
      )
    if self.predicts != "means":
      low, high = self.interval(predictions)
      covered = calibration.interval_coverage(low, high, labels, weights=weights)
      sums["coverage"] = (covered.covered, covered.count)
      sums["width"] = self._in_units(*weighted((high - low) * relative, weights))
    return sums

  def hits(self, predictions: Array, examples: Examples) -> dict[str, Array]:
    """Measures each example in training, in addition to its loss."""
    return {"mae": jnp.abs(self.point(predictions) - examples.labels) * self._relative(examples.labels)}

  def in_units(self, logged: Mapping[str, tuple[Array, Array]]) -> Sums:
    """Gives the sums of `hits` the unit of the data."""
    return {**logged, "mae": self._in_units(*logged["mae"])}

  def _in_units(self, total: Array, count: Array) -> InUnits:
    return InUnits(total, count, max(self.standard.stds))

  def _relative(self, labels: Array) -> np.ndarray:
    """Returns each target's unit as a fraction of the largest one."""
    stds = np.asarray(self.standard.stds)
    return (stds / stds.max()).astype(np.float32).reshape((1,) * (labels.ndim - 1) + (-1,))


def _numpy_of(x: AnyArray) -> Any:
  return jnp if isinstance(x, jax.Array) else np


Target = Classes | Numbers
CLASSES = Classes()

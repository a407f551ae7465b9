# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false, reportUnknownVariableType=false
"""What the labels of a run are, classes or numbers: how predictions are averaged and measured."""

import dataclasses
from statistics import NormalDist
from typing import NamedTuple, TypeVar

import jax.numpy as jnp
import numpy as np

from jaxreg import calibration, ensembles, losses
from jaxreg._sums import weighted
from jaxreg.train.methods.method import Predicts
from jaxreg.train.step.batch import Examples, Standard
from jaxreg.train.step.metrics import Residuals, Sums, prediction_metrics, residuals
from jaxreg.typing import Array

AnyArray = TypeVar("AnyArray", Array, np.ndarray)


class Classes(NamedTuple):
  """Labels that are classes; predictions are log-probabilities `[batch, ..., classes]`."""

  standard: Standard | None = None

  def original(self, predictions: Array) -> Array:
    """Predictions in the units of the data."""
    return predictions

  def mean(self, predictions: Array, combine: str = "arithmetic") -> Array:
    """Merges several predictions `[members, batch, ...]`."""
    return (ensembles.geometric if combine == "geometric" else ensembles.arithmetic)(predictions)

  def metrics(self, predictions: Array, examples: Examples) -> Sums:
    """Computes the metrics of every evaluation."""
    return prediction_metrics(predictions, examples.labels, examples.label_weights)

  def hits(self, predictions: Array, examples: Examples) -> dict[str, Array]:
    """Measures each example in training, in addition to its loss."""
    return {"accuracy": predictions.argmax(axis=-1) == examples.classes}


@dataclasses.dataclass(frozen=True)
class Numbers:
  """Labels that are numbers, `[batch]` or `[batch, targets]`.

  A method predicts in the standardised units that a network learns; `original` gives the data's units. A
  prediction is `[batch, ..., 2]`, a mean and a variance, which is 0 for a method that predicts means alone
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

  def original(self, predictions: Array) -> Array:
    """Predictions in the units of the data."""
    if self.predicts == "quantiles":
      each = [self.standard.original(predictions[..., level]) for level in range(len(self.levels))]
    else:
      stds = self.standard.distance(jnp.sqrt(predictions[..., 1]))
      each = [self.standard.original(predictions[..., 0]), jnp.square(stds)]
    return jnp.stack(each, axis=-1)

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
    """Levels and predicted quantiles `[batch, ..., levels]`, on the host; no levels for means alone."""
    if self.predicts == "quantiles":
      return self.levels, predictions
    if self.predicts == "means":
      return (), predictions[..., :0]
    levels = (self.alpha / 2, *(number / 10 for number in range(1, 10)), 1 - self.alpha / 2)
    levels = tuple(sorted(set(levels)))
    standard = np.array([NormalDist().inv_cdf(level) for level in levels])
    return levels, predictions[..., :1] + np.sqrt(predictions[..., 1:]) * standard

  def interval(self, predictions: Array) -> tuple[Array, Array]:
    """Returns the ends of a prediction's interval: its outer quantiles, or a Gaussian's quantiles."""
    if self.predicts == "quantiles":
      return predictions[..., 0], predictions[..., -1]
    half = NormalDist().inv_cdf(1 - self.alpha / 2) * jnp.sqrt(predictions[..., 1])
    return predictions[..., 0] - half, predictions[..., 0] + half

  def metrics(self, predictions: Array, examples: Examples) -> Sums:
    """Computes an evaluation's metrics in data units; `nlpd` is minus a Gaussian's log-density."""
    labels, weights = self.standard.original(examples.labels), examples.label_weights
    point = self.point(predictions)
    centred = self.standard.distance(examples.labels)
    sums: dict[str, tuple[Array, Array] | calibration.Bins | Residuals] = {
      "rmse": residuals(point - labels, centred, weights),
      "mae": weighted(jnp.abs(point - labels), weights),
    }
    if self.predicts == "moments":
      log_vars = jnp.log(predictions[..., 1])
      sums["nlpd"] = weighted(losses.gaussian_nll(point, log_vars, labels), weights)
    if self.predicts == "quantiles":
      levels = jnp.asarray(self.levels, predictions.dtype)
      sums["pinball"] = weighted(losses.pinball(predictions, labels, levels=levels), weights)
    if self.predicts != "means":
      covered = calibration.interval_coverage(*self.interval(predictions), labels, weights=weights)
      sums["coverage"], sums["width"] = (covered.covered, covered.count), (covered.width, covered.count)
    return sums

  def hits(self, predictions: Array, examples: Examples) -> dict[str, Array]:
    """Measures each example in training, in addition to its loss."""
    return {"mae": jnp.abs(self.point(predictions) - self.standard.original(examples.labels))}


Target = Classes | Numbers
CLASSES = Classes()

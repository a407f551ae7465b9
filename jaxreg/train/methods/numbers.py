"""Labels that are numbers: a mean, a mean and a variance, or quantiles of each."""

import itertools
import math
from collections.abc import Callable, Sequence

import jax.numpy as jnp
import optax

from jaxreg import losses, models
from jaxreg._errors import ArgumentError
from jaxreg._leaves import wide
from jaxreg.train.methods.method import Method
from jaxreg.typing import Array


def mean_head(label_shape: Sequence[int], initializer: str = "glorot") -> models.AffineHead:
  """Makes a number for each target: `outputs` `[batch, *label_shape]`."""
  return models.AffineHead({"outputs": label_shape}, initializer)


def gaussian_head(label_shape: Sequence[int], initializer: str = "glorot") -> models.AffineHead:
  """Makes the mean and the logarithm of the variance of each target: `outputs` and `log_vars`."""
  return models.AffineHead({"outputs": label_shape, "log_vars": label_shape}, initializer)


def quantile_head(
  label_shape: Sequence[int], initializer: str = "glorot", levels: Sequence[float] = (0.05, 0.5, 0.95)
) -> models.AffineHead:
  """Makes a number for each quantile of each target: `outputs` `[batch, *label_shape, levels]`."""
  return models.AffineHead({"outputs": (*label_shape, len(levels))}, initializer)


def squared_error(*, outputs: Array, targets: Array) -> Array:
  """Computes `optax.losses.squared_error`."""
  return optax.losses.squared_error(outputs, targets)


def huber(*, outputs: Array, targets: Array, delta: float = 1.0) -> Array:
  """Computes `optax.losses.huber_loss`.

  Args:
    outputs: the predictions.
    targets: the labels.
    delta: the error at which the loss becomes linear, in standard deviations of the target.
  """
  return optax.losses.huber_loss(outputs, targets, delta=delta)


def student_t_nll(*, outputs: Array, log_vars: Array, targets: Array, df: float = 4.0) -> Array:
  """Computes `losses.student_t_nll`; `log_vars` is the logarithm of the variance of the distribution."""
  if not df > 2:
    raise ArgumentError("df", f"must be above 2, where the variance is finite, got {df}")
  log_scales = (wide(log_vars) + math.log((df - 2) / df)) / 2
  return losses.student_t_nll(outputs, log_scales, targets, df=df)


def pinball(*, outputs: Array, targets: Array, levels: tuple[float, ...] = (0.05, 0.5, 0.95)) -> Array:
  """Computes `losses.pinball`."""
  if len(levels) < 2 or not all(0 < low < high < 1 for low, high in itertools.pairwise(levels)):
    raise ArgumentError("levels", f"must be at least two numbers in (0, 1) that rise, got {levels}")
  return losses.pinball(outputs, targets, levels=jnp.asarray(levels, jnp.float32))


def predict_means(*, outputs: Array) -> Array:
  """Stacks the outputs and their variances, which are 0: `[batch, ..., 2]`."""
  means = wide(outputs)
  return jnp.stack([means, jnp.zeros_like(means)], axis=-1)


def predict_gaussian(*, outputs: Array, log_vars: Array) -> Array:
  """Stacks the mean and the variance: `[batch, ..., 2]`."""
  return jnp.stack([wide(outputs), jnp.exp(wide(log_vars))], axis=-1)


def predict_quantiles(*, outputs: Array, levels: tuple[float, ...]) -> Array:
  """Sorts the quantiles, `[batch, ..., levels]`, because single ones may cross."""
  del levels
  return jnp.sort(wide(outputs), axis=-1)


def on_outputs(loss: Callable[..., Array], term: str) -> Method:
  """Makes the method of a loss of `(outputs, targets, *, ...)`: the outputs of a layer are the prediction."""
  return Method(mean_head, loss, predict_means, terms=(term,), labels="targets", predicts="means")


def on_moments(loss: Callable[..., Array], term: str) -> Method:
  """Makes the method of a loss of `(outputs, log_vars, targets, *, ...)`."""
  return Method(gaussian_head, loss, predict_gaussian, terms=(term,), labels="targets", predicts="moments")


METHODS = {
  "squared_error": on_outputs(squared_error, "squared_error"),
  "huber": on_outputs(huber, "huber"),
  "gaussian_nll": on_moments(losses.gaussian_nll, "gaussian_nll"),
  "student_t_nll": on_moments(student_t_nll, "student_t_nll"),
  "pinball": Method(
    quantile_head,
    pinball,
    predict_quantiles,
    terms=("pinball",),
    labels="targets",
    shared=("levels",),
    predicts="quantiles",
  ),
}

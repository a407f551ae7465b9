"""Losses of real targets. Optax has `optax.losses.squared_error`, `huber_loss` and `log_cosh`."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_option, check_range, check_wide
from jaxreg._where import only_where
from jaxreg.typing import Array


@only_where(end=None)
def gaussian_nll(
  outputs: ArrayLike,
  log_vars: ArrayLike,
  targets: ArrayLike,
  *,
  beta: ArrayLike = 0.0,
  where: ArrayLike | None = None,
) -> Array:
  r"""Computes minus the log-likelihood of a Gaussian whose mean and variance are predicted.

  .. math:: \ell = \operatorname{sg}(\sigma^{2 \beta}) \, \frac12 \Bigl(\log 2 \pi + \log \sigma^2
    + \frac{(y - \mu)^2}{\sigma^2}\Bigr), \qquad \log \sigma^2 = s

  At `beta = 0` the loss is the likelihood, and targets with a large variance hardly train the mean. The
  factor in front, which has no gradient (sg), compensates: at `beta = 1` the mean is trained as by the
  squared error. The paper recommends 0.5. Use `beta` above 0 for training only.

  Args:
    outputs: `mu`, `[...]`, floating: `[batch]` or `[batch, outputs]`.
    log_vars: `s`, same shape; any real number.
    targets: `y`, same shape, floating.
    beta: a scalar or `[...]`, in [0, 1].
    where: `[...]`, bool: which targets count.

  Returns:
    `[...]`, in nats, float32 or wider: a value for each target.

  Example:
    >>> gaussian_nll(jnp.array([1.0]), jnp.array([0.0]), jnp.array([1.0]))  # log(2 pi) / 2
    Array([0.9189385], dtype=float32)

  References:
    Seitzer et al., `On the Pitfalls of Heteroscedastic Uncertainty Estimation with Probabilistic Neural
    Networks`, 2022, Eq. 5.
  """
  outputs = check_wide(outputs, "outputs")
  log_vars = check_wide(log_vars, "log_vars", shape=outputs.shape)
  targets = check_wide(targets, "targets", shape=outputs.shape)
  check_option(beta, "beta", outputs.shape, low=0, high=1)
  log_weight = jax.lax.stop_gradient(jnp.asarray(beta, log_vars.dtype) * log_vars)
  # The weight is within the square, which could overflow without it.
  scaled = _scaled(targets - outputs, (log_vars - log_weight) / 2)
  return 0.5 * (jnp.exp(log_weight) * (math.log(2 * math.pi) + log_vars) + jnp.square(scaled))


@only_where(end=None)
def student_t_nll(
  outputs: ArrayLike,
  log_scales: ArrayLike,
  targets: ArrayLike,
  *,
  df: ArrayLike = 4.0,
  where: ArrayLike | None = None,
) -> Array:
  r"""Computes minus the log-likelihood of Student's t, whose heavy tails limit the effect of outliers.

  .. math:: \ell = \frac{\nu + 1}{2} \log \Bigl(1 + \frac{(y - \mu)^2}{\nu \sigma^2}\Bigr) + \log \sigma
    + \frac12 \log \nu \pi + \log \Gamma\Bigl(\frac{\nu}{2}\Bigr) - \log \Gamma\Bigl(\frac{\nu + 1}{2}\Bigr)

  The variance is :math:`\sigma^2 \nu / (\nu - 2)` for `df` above 2.

  Args:
    outputs, targets, where: as in `gaussian_nll`.
    log_scales: `log sigma`, same shape.
    df: `nu`, the degrees of freedom, a scalar or `[...]`, above 0; 1 is the Cauchy distribution. May be
      learned.

  Returns:
    `[...]`, in nats, float32 or wider: a value for each target.

  Example:
    >>> student_t_nll(jnp.array([0.0]), jnp.array([0.0]), jnp.array([0.0]), df=1.0)[0].round(2)  # log(pi)
    Array(1.14, dtype=float32)

  References:
    Lange, Little and Taylor, `Robust Statistical Modeling Using the t Distribution`, 1989.
  """
  outputs = check_wide(outputs, "outputs")
  log_scales = check_wide(log_scales, "log_scales", shape=outputs.shape)
  targets = check_wide(targets, "targets", shape=outputs.shape)
  check_option(df, "df", outputs.shape, low=0, open_low=True)
  df = jnp.asarray(df, outputs.dtype)
  error = targets - outputs
  there = error != 0
  log_error = jnp.where(there, jnp.log(jnp.abs(jnp.where(there, error, 1))), -jnp.inf)
  far = log_error - log_scales > jnp.log(df) / 2
  return (
    jnp.where(far, _far_fit(jnp.where(far, log_error, 0), jnp.where(far, log_scales, 0), df), 0)
    + jnp.where(far, 0, _near_fit(jnp.where(far, 0, error), jnp.where(far, 0, log_scales), df))
    + math.log(2 * math.pi) / 2
    + _log_gamma_gap(df / 2)
  )


def _scaled(error: Array, log_scales: Array) -> Array:
  """Computes `error / exp(log_scales)` in two steps, as the factor may overflow where the result does not.

  The limit of the factor changes no square: beyond it, the square of every error but 0 overflows.
  """
  half = jnp.exp(jnp.minimum(-log_scales / 2, math.log(float(jnp.finfo(error.dtype).max)) - 1))
  return error * half * half


def _near_fit(error: Array, log_scales: Array, df: Array) -> Array:
  """Computes `(df + 1) / 2 log(1 + square / df) + log_scales`, for a `square` of at most `df`."""
  square = jnp.square(_scaled(error, log_scales))
  return (_scaled_log1p(square, df) + jnp.log1p(square / df)) / 2 + log_scales


def _far_fit(log_error: Array, log_scales: Array, df: Array) -> Array:
  """Computes the same for a larger square, which may overflow; only `df` times `log_scales` is left."""
  log_ratio = log_error - log_scales - jnp.log(df) / 2
  rest = jnp.log1p(jnp.exp(-2 * log_ratio)) / 2
  return df * (log_ratio + rest) + log_error - jnp.log(df) / 2 + rest


def _scaled_log1p(square: Array, df: Array) -> Array:
  """Computes `df log(1 + square / df)`, which goes to `square`, with derivatives that keep their digits."""
  y = square / df
  near = y < 0.5
  x = jnp.where(near, y, 0)
  # log(1 + y) = 2 artanh(y / (2 + y))
  series = jnp.polyval(jnp.asarray([1 / (2 * k + 1) for k in range(12, -1, -1)], y.dtype), (x / (2 + x)) ** 2)
  # A large `y` must not be divided by and multiplied with.
  return jnp.where(near, square * 2 / (2 + x) * series, df * jnp.log1p(jnp.where(near, 1, y)))


def _log_gamma_gap(x: Array) -> Array:
  r"""Computes `log(x) / 2 + log Gamma(x) - log Gamma(x + 1/2)`, which goes to 0 as `1 / (8 x)`.

  The logarithms of the gamma function would cancel. Stirling's series needs `x` of at least 8. The
  recurrence of the gamma function moves smaller ones there.
  """
  small = x < 8
  start = jnp.where(small, x, 1)
  steps = sum((jnp.log1p(0.5 / (start + k)) for k in range(8)), start=0.5 * jnp.log(start / (start + 8)))
  inverse = 1 / jnp.where(small, x + 8, x)
  series = [-691 / 180224, 31 / 18432, -17 / 14336, 1 / 640, -1 / 192, 1 / 8]
  stirling = inverse * jnp.polyval(jnp.asarray(series, x.dtype), inverse**2)
  return stirling + jnp.where(small, steps, 0)


@only_where(shared=("levels",))
def pinball(
  outputs: ArrayLike, targets: ArrayLike, *, levels: ArrayLike, where: ArrayLike | None = None
) -> Array:
  r"""Computes the quantile loss, the mean over several levels; its minimum is at the quantiles.

  .. math:: \ell = \frac1L \sum_{l=1}^L \max\bigl(q_l (y - f_l), \, (q_l - 1) (y - f_l)\bigr)

  Args:
    outputs: `f`, `[..., levels]`, floating: one predicted quantile for each level.
    targets: `y`, `[...]`, floating.
    levels: `q`, `[levels]`, floating, in [0, 1].
    where: `[...]`, bool: which targets count.

  Returns:
    `[...]`, float32 or wider: a value for each target.

  Example:
    >>> pinball(jnp.array([[0.0, 2.0]]), jnp.array([1.0]), levels=jnp.array([0.25, 0.75]))
    Array([0.25], dtype=float32)

  References:
    Koenker and Bassett, `Regression Quantiles`, 1978.
  """
  outputs = check_wide(outputs, "outputs")
  if outputs.ndim == 0:
    raise ValueError("outputs must be [..., levels], got a scalar")
  targets = check_wide(targets, "targets", shape=outputs.shape[:-1])
  levels = check_wide(levels, "levels", shape=outputs.shape[-1:])
  check_range(levels, "levels", low=0, high=1)
  error = targets[..., None] - outputs
  return (jnp.where(error >= 0, levels, levels - 1) * error).mean(axis=-1)

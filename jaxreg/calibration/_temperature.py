"""Temperature scaling: one number that matches a classifier's confidence to its accuracy."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.typing import ArrayLike

from jaxreg._checks import check_logits, check_option, check_range
from jaxreg._sharding import entries
from jaxreg.calibration._weights import weighted_examples
from jaxreg.typing import Array

# Each step halves an interval of logarithms; these numbers of steps reach the last digit.
STEPS = {"float32": 30, "float64": 60}


def fit_temperature(
  logits: ArrayLike,
  labels: ArrayLike,
  *,
  weights: ArrayLike | None = None,
  where: ArrayLike | None = None,
  low: ArrayLike = 1e-2,
  high: ArrayLike = 1e2,
) -> Array:
  r"""Finds the temperature with the least negative log-likelihood, by bisection.

  .. math:: \min_T \sum_i w_i \Bigl(\log \sum_k e^{z_{ik} / T} - z_{i y_i} / T\Bigr), \qquad
    \frac{\partial}{\partial \beta} = \sum_i w_i \bigl(\mathbb{E}_{p_\beta} z_i - z_{i y_i}\bigr),
    \quad \beta = 1 / T

  The objective is convex in `beta`, so its derivative changes sign at most once. There is no interior minimum
  if every example is right (`T` to 0), or if guessing at random is better than the model (`T` to infinity);
  then the answer is the bound. Fit it on held-out data. No gradient flows through it.

  Args:
    logits: `[..., classes]`, floating; log-probabilities work too.
    labels: `[...]`, integer.
    weights, where: as in `nll`.
    low, high: bounds of the temperature, `0 < low < high`; may be traced.

  Returns:
    A scalar, float32 or wider; NaN without examples, if a logit is NaN, or if a traced label
    is out of range.

  Example:
    >>> logits = jnp.array([[2.0, 0.0]] * 4)  # confidence 0.88, right in 3 of 4
    >>> print(f"{fit_temperature(logits, jnp.array([0, 0, 0, 1])):.4f}")  # 2 / log 3
    1.8205

  References:
    Guo et al., `On Calibration of Modern Neural Networks`, 2017, section 4.2.
  """
  check_range(low, "low", low=0, open_low=True)
  known: Any = 0 if isinstance(low, Tracer) else low
  check_range(high, "high", low=known, open_low=True)
  z, labels, weights, _ = weighted_examples(check_logits(logits), labels, weights, where)
  z, weights = jax.lax.stop_gradient((z - z.max(axis=-1, keepdims=True), weights))
  return _bisected(z, entries(z, labels)[..., 0], weights, low, high)


@jax.jit  # without it, each eager call would compile the loop
def _bisected(z: Array, picked: Array, weights: Array, low: ArrayLike, high: ArrayLike) -> Array:
  """Finds the temperature; `z` are the logits minus the largest, and `picked` those of the labels."""

  def slope(log_beta: Array) -> Array:
    probs = jax.nn.softmax(jnp.exp(log_beta) * z, axis=-1)
    mean = (probs * jnp.where(probs > 0, z, 0)).sum(axis=-1)
    return (weights * (mean - picked)).sum()

  def halve(_: int, interval: tuple[Array, Array]) -> tuple[Array, Array]:
    left, right = interval
    middle = (left + right) / 2
    # Not `< 0`: the slope underflows to 0 if all examples are very confident, though the optimum is larger.
    falls = slope(middle) <= 0
    return jnp.where(falls, middle, left), jnp.where(falls, right, middle)

  ends = -jnp.log(jnp.asarray(high, z.dtype)), -jnp.log(jnp.asarray(low, z.dtype))
  left, right = jax.lax.fori_loop(0, STEPS[z.dtype.name], halve, ends)
  temperature = jnp.exp(-(left + right) / 2)
  unknown = jnp.isnan(slope(jnp.zeros((), z.dtype))) | (weights == 0).all()
  return jnp.where(unknown, jnp.nan, temperature)


def temper(logits: ArrayLike, *, temperature: ArrayLike) -> Array:
  r"""Computes log-probabilities at a temperature: less confident above 1, more below; the class order stays.

  .. math:: \log \operatorname{softmax}(z / T)

  Args:
    logits: `[..., classes]`, floating; log-probabilities work too.
    temperature: `T` > 0, a scalar, for instance from `fit_temperature`.

  Returns:
    `[..., classes]`, float32 or wider.

  Example:
    >>> jnp.exp(temper(jnp.log(jnp.array([0.8, 0.2])), temperature=2.0)).round(4)
    Array([0.6667, 0.3333], dtype=float32)

  References:
    Guo et al., `On Calibration of Modern Neural Networks`, 2017, section 4.2.
  """
  check_option(temperature, "temperature", (), low=0, open_low=True)
  logits = check_logits(logits)
  # Shift first: compiled code may round the quotient of the largest logit in two ways that differ.
  logits = logits - jax.lax.stop_gradient(logits.max(axis=-1, keepdims=True))
  return jax.nn.log_softmax(logits / jnp.asarray(temperature, logits.dtype), axis=-1)

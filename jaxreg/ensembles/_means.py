"""Arithmetic and geometric means of predicted distributions, in log space."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike

from jaxreg import _sums
from jaxreg._checks import check_log_probs, check_wide, known_values
from jaxreg._errors import ArgumentError
from jaxreg._sharding import partitioned
from jaxreg.typing import Array


def arithmetic(log_probs: ArrayLike, *, weights: ArrayLike | None = None) -> Array:
  r"""Computes the logarithm of the weighted mean of the members' probabilities.

  .. math:: \log \sum_i w_i\, p^{(i)}(y \mid x), \qquad \sum_i w_i = 1

  If `weights` are the probabilities of all masks, this is dropout's ensemble; without weights it is
  bagging's. By Jensen's inequality its negative log-likelihood is at most the mean of the members' values.

  Args:
    log_probs: `[members, ..., classes]`, floating; -inf where a probability is 0. For log densities use
      `jax.nn.logsumexp(log_densities, axis=0, b=weights)`.
    weights: `[members]`, not negative and not all 0; they are divided by their sum. Default: equal. A member
      of weight 0 has no effect. A traced negative weight gives NaN.

  Returns:
    `[..., classes]`, log-probabilities, float32 or wider.

  Raises:
    ValueError: if known `weights` are negative or all 0.

  Example:
    >>> jnp.exp(arithmetic(jnp.log(jnp.array([[0.5, 0.5], [1.0, 0.0]]))))
    Array([0.75, 0.25], dtype=float32)

  References:
    Na, `Regularization for Deep Learning`, lecture, Chonbuk National University, dropout: prediction.
  """
  log_probs, weights = members(log_probs, weights)
  counts = weights > 0
  log_probs = jnp.where(counts, log_probs, -jnp.inf)
  # If all members exclude a class, the largest is -inf; 0 replaces it, so that nothing is NaN.
  largest = jax.lax.stop_gradient(log_probs.max(axis=0, keepdims=True))
  largest = jnp.where(jnp.isneginf(largest), 0, largest)
  total = (weights * jnp.exp(log_probs - largest)).sum(axis=0)
  above = total > 0
  otherwise = jnp.where(jnp.isnan(total), total, -jnp.inf)
  return jnp.where(above, jnp.log(jnp.where(above, total, 1)) + largest[0], otherwise)


def geometric(log_probs: ArrayLike, *, weights: ArrayLike | None = None) -> Array:
  r"""Computes the renormalised weighted geometric mean of the members' probabilities.

  .. math:: \log \frac{\prod_i p^{(i)}(y \mid x)^{w_i}}{\sum_{y'} \prod_i p^{(i)}(y' \mid x)^{w_i}}

  A member that gives a class probability 0 vetoes it; the arithmetic mean still gives the class some
  probability. For softmax regressions whose inputs are dropped by all masks, with
  the masks' probabilities as `weights`, it equals the single regression with the weights `p W`. The
  lecture's `2^d`-th root equals it only for `p = 1/2`.

  Args:
    log_probs: `[members, ..., classes]`, floating.
    weights: `[members]`, as in `arithmetic`.

  Returns:
    `[..., classes]`, log-probabilities, float32 or wider; NaN if every class is vetoed.

  Example:
    >>> jnp.exp(geometric(jnp.log(jnp.array([[0.5, 0.5], [0.8, 0.2]])))).round(4)
    Array([0.6667, 0.3333], dtype=float32)

  References:
    Na, `Regularization for Deep Learning`, lecture, Chonbuk National University, dropout (prediction
    using the geometric mean).
  """
  log_probs, weights = members(log_probs, weights)
  large, small = _exact_sum(weights * jnp.where(weights > 0, log_probs, 0))
  # `small` has differences below the last digit of `large`; they survive if the largest is subtracted first.
  return jax.nn.log_softmax(large - large.max(axis=-1, keepdims=True) + small, axis=-1)


def _exact_sum(terms: Array) -> tuple[Array, Array]:
  """The sum over the first axis and the rounding error that it lost."""

  def add_up(terms: Array) -> tuple[Array, Array]:
    start = _sums.compensated(jnp.zeros_like(terms[0]))
    return jax.lax.scan(_add, start, terms)[0]

  return partitioned(add_up, terms, kept=slice(1, None))


# One function, so that calls outside of `jit` compile the loop once.
def _add(running: _sums.Compensated, term: Array) -> tuple[_sums.Compensated, None]:
  return _sums.add(running, term), None


def members(log_probs: ArrayLike, weights: ArrayLike | None) -> tuple[Array, Array]:
  """Both in at least float32; the weights have sum 1 and as many axes as `log_probs`."""
  given, log_probs = log_probs, check_wide(log_probs, "log_probs")
  if log_probs.ndim < 2 or log_probs.shape[0] == 0:
    raise ArgumentError("log_probs", f"must be [members, ..., classes], got {log_probs.shape}")
  if weights is None:
    weights = jnp.ones(log_probs.shape[0], log_probs.dtype)
  weights = check_wide(weights, "weights", shape=log_probs.shape[:1])
  if not isinstance(weights, Tracer):
    known = np.asarray(weights)
    if (known < 0).any() or (known == 0).all():
      raise ValueError(f"weights must not be negative and not all 0, got {known}")
  used = known_values(weights)
  known = None if used is None else known_values(given)
  # A member of weight 0 may hold anything.
  check_log_probs(given if known is None else known[used != 0], "log_probs")
  weights = jnp.where((weights < 0).any(), jnp.nan, weights)
  return log_probs, (weights / weights.sum()).reshape(-1, *[1] * (log_probs.ndim - 1))

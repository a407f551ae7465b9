"""The bi-tempered logistic loss: bounded, with a heavy-tailed softmax."""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike

from jaxreg._checks import check_hard_or_soft_labels, check_logits, check_option
from jaxreg._labels import is_soft, is_target_of, label_entry
from jaxreg._where import only_where
from jaxreg.losses._softmax import softmax_cross_entropy, softmax_log_probs
from jaxreg.typing import Array

# On [0, 1]; exact in float64 for the integrand of `_own_loss`.
NODES = [((1 + node) / 2, share / 2) for node, share in zip(*np.polynomial.legendre.leggauss(8), strict=True)]
# `(exp(x) - 1) / x` as a polynomial for `jnp.polyval`, exact in float64 for |x| < 0.1.
SERIES = [1 / math.factorial(k + 1) for k in range(9, -1, -1)]
# From this temperature on, the probabilities are equal in float64 for all finite logits.
UNIFORM = 1e4


@only_where()
def bi_tempered(
  logits: ArrayLike,
  labels: ArrayLike,
  *,
  t1: ArrayLike = 0.8,
  t2: float = 1.3,
  where: ArrayLike | None = None,
) -> Array:
  r"""Computes the bi-tempered logistic loss, which limits the effect of outliers and wrong labels.

  .. math:: \ell = -\log_{t_1} p_t - \frac{1 - \sum_k p_k^{2 - t_1}}{2 - t_1}, \qquad
    p_k = \exp_{t_2}(o_k - \lambda), \quad \sum_k p_k = 1

  .. math:: \log_t x = \frac{x^{1 - t} - 1}{1 - t}, \qquad \exp_t x = [1 + (1 - t) x]_+^{1 / (1 - t)}

  With `t1 < 1` the loss is at most `1 / (1 - t1)`. With `t2 > 1` the probabilities have heavy tails.
  Predict with `bi_tempered_log_probs`, whose largest entry belongs to the largest logit. Newton's method
  finds the normaliser, which is differentiated implicitly.

  For soft labels the loss is the mean over the classes, weighted by the probabilities, as in the
  cross-entropy. The paper's divergence between labels and probabilities is smaller by a constant: the
  tempered entropy of the labels.

  Args:
    logits, labels, where: as in `softmax_cross_entropy`.
    t1: in [0, 1].
    t2: at least 1; static. With both at 1 this is the cross-entropy.

  Returns:
    `[...]`, float32 or wider.

  Example:
    >>> bi_tempered(jnp.array([[1e4, 0.0]]), jnp.array([1]), t1=0.5, t2=1.0)  # 1 / (1 - t1) minus p's part
    Array([2.], dtype=float32)

  References:
    Amid et al., `Robust Bi-Tempered Logistic Loss Based on Bregman Divergences`, 2019, section 2.
  """
  logits = check_logits(logits, "logits")
  labels = check_hard_or_soft_labels(labels, logits)
  check_option(t1, "t1", (), low=0, high=1)
  check_option(t2, "t2", (), low=1)
  if not isinstance(t1, Tracer) and t1 == t2 == 1:
    return softmax_cross_entropy(logits, labels)
  log_probs = bi_tempered_log_probs(logits, t2=t2)
  gap = jnp.asarray(1 - t1, log_probs.dtype)
  powers = jnp.exp((1 + gap) * log_probs)
  is_top = is_target_of(logits.argmax(axis=-1), logits)
  costs = _costs(log_probs, is_top)
  if is_soft(labels):
    # The sum without a class: a difference from the whole sum would cancel for the most probable class.
    others = jnp.where(is_top, 0, powers).sum(axis=-1, keepdims=True)
    top = jnp.where(is_top, powers, 0).sum(axis=-1, keepdims=True)
    without = others + jnp.where(is_top, 0, top - powers)
    return label_entry(_own_loss(costs, gap) + without / (1 + gap), labels)
  without = jnp.where(is_target_of(labels, logits), 0, powers).sum(axis=-1)
  return _own_loss(label_entry(costs, labels), gap) + without / (1 + gap)


def bi_tempered_log_probs(logits: ArrayLike, *, t2: float = 1.3) -> Array:
  r"""Computes the log-probabilities of the tempered softmax: the prediction for `bi_tempered`.

  .. math:: p_k = \exp_{t_2}(o_k - \lambda), \quad \sum_k p_k = 1

  Args:
    logits: `[..., classes]`, floating.
    t2: at least 1; 1 is the softmax; static.

  Returns:
    `[..., classes]`, float32 or wider.

  Example:
    >>> jnp.exp(bi_tempered_log_probs(jnp.array([6.0, 0.0]), t2=2.0)).round(3)  # the softmax has 0.998
    Array([0.86, 0.14], dtype=float32)

  References:
    Amid et al., `Robust Bi-Tempered Logistic Loss Based on Bregman Divergences`, 2019, section 2.
  """
  logits = check_logits(logits, "logits")
  check_option(t2, "t2", (), low=1)
  if t2 == 1:
    return softmax_log_probs(logits)
  # A shift changes nothing, and small logits keep the digits of the normaliser. The gradient of the largest
  # logit is minus the sum of the others: the direct formula 1 - p loses its digits where p rounds to 1.
  is_top = is_target_of(logits.argmax(axis=-1), logits)
  top = jnp.where(is_top, logits, 0).sum(axis=-1, keepdims=True)
  logits = jnp.where(is_top, 0, logits - top)
  return _log_probs(logits, min(float(t2), UNIFORM))


def _costs(log_probs: Array, is_top: Array) -> Array:
  """Computes minus the log-probabilities; the top class needs the sum of the others where it rounds to 1."""
  top = jnp.where(is_top, log_probs, 0).sum(axis=-1, keepdims=True)
  others = jnp.where(is_top, 0, jnp.exp(log_probs - top)).sum(axis=-1, keepdims=True)
  return jnp.where(is_top, jnp.log1p(others), -log_probs)


def _own_loss(cost: Array, gap: Array) -> Array:
  r"""Computes the loss of a label without the other classes, from its `cost`, minus its log-probability.

  .. math:: \int_0^c e^{-(1 - t_1) x} (1 - e^{-x}) \, dx
    = \frac{1 - e^{-(1 - t_1) c}}{1 - t_1} - \frac{1 - e^{-(2 - t_1) c}}{2 - t_1}

  The two terms cancel for a small cost, so there a quadrature of Gauss and Legendre computes the integral.
  """
  near = cost < 1
  x = jnp.where(near, cost, 0)
  integrand = (share * jnp.exp(-gap * x * node) * -jnp.expm1(-x * node) for node, share in NODES)
  far = jnp.where(near, 1, cost)
  return jnp.where(near, x * sum(integrand, start=jnp.zeros_like(x)), _power(gap, far) - _power(1 + gap, far))


def _power(rate: Array, x: Array) -> Array:
  """Computes `(1 - exp(-rate x)) / rate`, which is `x` at a rate of 0."""
  endless = jnp.isinf(x) & (rate == 0)  # of an excluded class; 0 times infinity would be NaN
  y = rate * jnp.where(endless, 0, x)
  # The derivative of `expm1` loses all digits far from 0, and a quotient loses them near it.
  near = y < 0.1
  small, large = jnp.where(near, y, 0), jnp.where(near, 1, rate)
  series = jnp.where(endless, 1, jnp.polyval(jnp.asarray(SERIES, x.dtype), -small))
  return jnp.where(near, x * series, (1 - jnp.exp(-y)) / large)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _log_probs(logits: Array, t: float) -> Array:
  """Computes the log-probabilities; no logit is above 0, and the largest is 0."""
  return _at_normaliser(logits, _normaliser(logits, t), t)


@functools.partial(jax.jit, static_argnums=1)  # without it, each eager call would compile the loop
def _normaliser(logits: Array, t: float) -> Array:
  """Computes `log(1 + (t - 1) lambda)`, since `lambda` overflows for many classes and a large `t`."""

  def newton(_, u: Array) -> Array:
    # Newton in `e^u` on 1 - S^(1 - t), where S is the sum of all exp_t. It is concave and rising, and linear
    # where all logits are equal, so the iteration reaches the root from below without overshooting. Nine
    # steps suffice for 50 000 classes.
    log_probs = _at_normaliser(logits, u, t)
    log_total = jax.nn.logsumexp(log_probs, axis=-1)
    log_slope = jax.nn.logsumexp(t * (log_probs - log_total[..., None]), axis=-1)
    gap = -jnp.expm1((1 - t) * log_total)
    scale = log_slope + u
    far = scale < -20
    near = u + jnp.log1p(gap * jnp.exp(-jnp.where(far, 0, scale)))
    return jnp.where(far, jnp.logaddexp(u, jnp.log(jnp.where(far, gap, 1)) - log_slope), near)

  return jax.lax.fori_loop(0, 12, newton, jnp.zeros_like(logits[..., 0]))


@_log_probs.defjvp
def _log_probs_jvp(t: float, primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
  (logits,), (tangent,) = primals, tangents
  log_probs = _log_probs(logits, t)
  # The gradient of the normaliser is p^t divided by its sum.
  weights = jax.nn.softmax(t * log_probs, axis=-1)
  tangent -= (weights * tangent).sum(axis=-1, keepdims=True)
  return log_probs, jnp.exp((t - 1) * log_probs) * tangent


def _at_normaliser(logits: Array, u: Array, t: float) -> Array:
  """Computes the logarithm of `exp_t(logits - lambda)` without a power that over- or underflows."""
  u, below = jnp.broadcast_to(u[..., None], logits.shape), (1 - t) * logits
  far = u > 20
  near = jnp.log1p(jnp.expm1(jnp.where(far, 0, u)) + below)
  return -jnp.where(far, jnp.logaddexp(u, jnp.log(below)), near) / (t - 1)

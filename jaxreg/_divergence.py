"""The Kullback-Leibler divergence, also of predictions that nearly agree.

There, the plain sum of `p (log p - log q)` is a small difference of large terms. Here, every term is at least
0.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from jaxreg.typing import Array

# `x + exp(-x) - 1` divided by `x**2`, as a polynomial for `jnp.polyval`, exact in float64 for |x| < 1/2.
SERIES = [(-1) ** k / math.factorial(k) for k in range(15, 1, -1)]


def log_ratio(logits: Array, other_logits: Array, temperature: Array | float = 1.0) -> Array:
  """Computes `log p - log q` `[..., classes]`, the difference of two log-softmaxes at a temperature.

  Where the predictions nearly agree, it keeps the digits of the difference of the logits. It is 0 for a class
  that both predictions exclude.
  """
  log_p, log_q = (_log_softmax(x, temperature) for x in (logits, other_logits))
  excluded = (log_p == -jnp.inf) & (log_q == -jnp.inf)
  far = jnp.where(excluded, 0, jnp.where(excluded, 0, log_p) - jnp.where(excluded, 0, log_q))
  near = (jnp.abs(far) < 1).all(axis=-1, keepdims=True)
  keep = near & ~excluded
  gap = jnp.where(keep, jnp.where(keep, logits, 0) - jnp.where(keep, other_logits, 0), 0)
  q = jnp.where(keep, jnp.exp(jnp.where(keep, log_q, 0)), 0)
  # Before the division, since the quotients of nearby logits would round.
  gap /= temperature
  gap -= jax.lax.stop_gradient((q * gap).sum(axis=-1, keepdims=True))
  close = gap - jnp.log1p((q * jnp.expm1(gap)).sum(axis=-1, keepdims=True))
  return jnp.where(keep, close, far)


def _log_softmax(logits: Array, temperature: Array | float) -> Array:
  """Computes the log-softmax at a temperature; a large quotient would round the gaps to the largest logit."""
  largest = jax.lax.stop_gradient(logits.max(axis=-1, keepdims=True))
  return jax.nn.log_softmax((logits - jnp.where(jnp.isfinite(largest), largest, 0)) / temperature)


def kl_terms(log_p: Array, log_q: Array, ratio: Array) -> Array:
  """Computes `p log(p / q) - p + q` of each class, whose sum is the divergence; `ratio` is `log_ratio`."""
  near = jnp.abs(ratio) < 0.5
  x = jnp.where(near, ratio, 0)
  close = jnp.exp(jnp.where(near, log_p, 0)) * jnp.square(x) * jnp.polyval(jnp.asarray(SERIES, x.dtype), x)
  # Infinity times a probability of 0 would be NaN.
  p, q = jnp.exp(log_p), jnp.exp(log_q)
  return jnp.where(near, close, p * jnp.where(near | (p == 0), 0, ratio) - p + q)


def kl_divergence(logits: Array, other_logits: Array, temperature: Array | float = 1.0) -> Array:
  """Computes `KL(p || q)` `[...]` of the softmaxes of two logits `[..., classes]` at a temperature.

  A class that `p` excludes does not count, even if `q` excludes it, too.
  """
  log_p, log_q = (_log_softmax(x, temperature) for x in (logits, other_logits))
  return kl_terms(log_p, log_q, log_ratio(logits, other_logits, temperature)).sum(axis=-1)

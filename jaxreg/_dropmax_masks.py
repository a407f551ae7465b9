"""The masks of DropMax, relaxed and hard, and the logits under a mask."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import (
  check_count,
  check_key,
  check_labels,
  check_logits,
  check_option,
  check_wide,
  per_class,
)
from jaxreg._labels import is_target_of
from jaxreg._sharding import drawn_like
from jaxreg.typing import Array, Key

# The paper's eps = 1e-20 keeps the softmax defined when all classes are dropped. Every dtype can represent
# its logarithm; 1e-20 itself is 0 in float16.
LOG_EPS = math.log(1e-20)


def dropmax_log_mask(
  key: Key,
  posterior_logits: ArrayLike,
  labels: ArrayLike,
  *,
  temperature: ArrayLike = 0.1,
  num_samples: int = 1,
) -> Array:
  r"""Samples the relaxed masks of training as `log(z + eps)`, `[num_samples, ..., classes]`.

  .. math:: z_k = \sigma\Bigl(\frac{\operatorname{logit} g_k + \operatorname{logit} u_k}{\tau}\Bigr), \quad
    u_k \sim U(0, 1); \qquad z_t = 1

  The target's entry is exactly 0 and carries no gradient. See section 4.2 of Lee et al., and Maddison, Mnih
  and Teh, `The Concrete Distribution`, 2017, Eq. 17.
  """
  posterior = check_logits(posterior_logits, "posterior_logits")
  labels = check_labels(labels, posterior, "posterior_logits")
  check_option(temperature, "temperature", labels.shape, low=0, open_low=True)
  check_count(num_samples, "num_samples")
  shape = (num_samples, *posterior.shape)
  noise = drawn_like(posterior, jax.random.logistic, check_key(key), shape, dtype=posterior.dtype)
  t = per_class(temperature, posterior.dtype)
  t = t[None] if t.ndim else t
  log_mask = jnp.logaddexp(jax.nn.log_sigmoid((posterior[None] + noise) / t), LOG_EPS)
  return jnp.where(is_target_of(labels, posterior)[None], 0.0, log_mask)


def dropmax_mask(key: Key, retain_logits: ArrayLike, *, num_samples: int = 1) -> Array:
  """Samples hard masks `z ~ Ber(rho)` for all classes, `[num_samples, ..., classes]`, bool."""
  prior = check_logits(retain_logits, "retain_logits")
  check_count(num_samples, "num_samples")
  retain = jnp.broadcast_to(jax.nn.sigmoid(prior), (num_samples, *prior.shape))
  return jax.random.bernoulli(check_key(key), retain)


def dropmax_masked_logits(logits: ArrayLike, mask: ArrayLike) -> Array:
  r"""Computes `o + log(z + eps)`, the logits whose softmax is the likelihood under a mask `z`.

  .. math:: p(y_t = 1 \mid x, z) = \frac{(z_t + \epsilon) e^{o_t}}{\sum_k (z_k + \epsilon) e^{o_k}}

  If all masks are 0, or all are equal, this is the ordinary softmax. A mask is bool or floating, in [0, 1],
  and broadcasts with the logits. Lee et al., Eq. 5.
  """
  logits = check_wide(logits, "logits")
  logits, mask = jnp.broadcast_arrays(logits, jnp.asarray(mask, logits.dtype))
  # Double where: otherwise the infinite derivative of log at 0 enters through the branch not taken.
  dropped = mask <= 0
  return logits + jnp.where(dropped, LOG_EPS, jnp.logaddexp(jnp.log(jnp.where(dropped, 1, mask)), LOG_EPS))


def gated_logits(logits: Array, prior: Array) -> Array:
  """Computes `o + log(rho + eps)`, the logits under the expected mask."""
  return logits + jnp.logaddexp(jax.nn.log_sigmoid(prior), LOG_EPS)

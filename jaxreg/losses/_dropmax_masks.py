"""The masks of DropMax, relaxed and hard, the logits under a mask, and the predictions."""

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
from jaxreg._sharding import sharding_like
from jaxreg.losses._labels import is_target_of
from jaxreg.losses._softmax import softmax_cross_entropy, softmax_log_probs
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
  placement = sharding_like(posterior, shape)
  noise = jax.random.logistic(check_key(key), shape, posterior.dtype, out_sharding=placement)
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
  """`o + log(rho + eps)`: the logits under the expected mask."""
  return logits + jnp.logaddexp(jax.nn.log_sigmoid(prior), LOG_EPS)


def masked_nll(logits: Array, log_mask: Array, labels: Array) -> Array:
  """The mean cross-entropy under the masks of `dropmax_log_mask`."""
  labels = jnp.broadcast_to(labels, (len(log_mask), *labels.shape))
  return softmax_cross_entropy(logits[None] + log_mask, labels).mean(axis=0)


def dropmax_log_probs(
  logits: ArrayLike,
  retain_logits: ArrayLike,
  *,
  num_samples: int | None = None,
  key: Key | None = None,
  labels: ArrayLike | None = None,
) -> Array:
  r"""Predicts with the expected mask, as the released code does, or with sampled masks.

  .. math:: p(y_k = 1 \mid x) \propto (\rho_k + \epsilon)\, e^{o_k} \qquad \text{or} \qquad
    \frac1S \sum_s p(y_k = 1 \mid x, z^{(s)}), \quad z^{(s)}_k \sim \mathrm{Ber}(\rho_k)

  Args:
    logits: `o`, `[..., classes]`, floating.
    retain_logits: logits of `rho`, same shape.
    num_samples: `S`, the number of masks; None for the expected mask.
    key: for the masks of all classes; with `num_samples`.
    labels: `[...]`, integer, with `num_samples`: replaces the mask of the label's class by its probability,
      which removes the variance of dropping that class. For analysis; a prediction has no label.

  Returns:
    Log-probabilities, `[..., classes]`, in at least float32.

  Example:
    >>> jnp.exp(dropmax_log_probs(jnp.zeros(2), jnp.array([-99.0, 99.0]))).round(3)
    Array([0., 1.], dtype=float32)

  References:
    Lee et al., `DropMax: Adaptive Variational Softmax`, 2018, released code; for samples the appendix,
    figure 2 (b: with `labels`).
  """
  logits = check_logits(logits, "logits")
  prior = check_logits(retain_logits, "retain_logits", shape=logits.shape)
  expected = gated_logits(logits, prior)
  if num_samples is None:
    if key is not None or labels is not None:
      raise TypeError("num_samples must be given with key or labels, got None")
    return softmax_log_probs(expected)
  if key is None:
    raise TypeError("key must be given with num_samples, got None")
  masked = dropmax_masked_logits(logits, dropmax_mask(key, prior, num_samples=num_samples))
  if labels is not None:
    is_target = is_target_of(check_labels(labels, logits), logits)
    masked = jnp.where(is_target[None], expected[None], masked)
  return jax.nn.logsumexp(softmax_log_probs(masked), axis=0) - math.log(num_samples)

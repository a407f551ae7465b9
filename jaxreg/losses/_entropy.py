"""Terms for examples without labels: entropy minimisation and pseudo-labels."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_logits, check_option
from jaxreg._divergence import kl_divergence
from jaxreg._where import only_where
from jaxreg.losses._softmax import cross_entropies, softmax_cross_entropy, softmax_log_probs
from jaxreg.typing import Array


@only_where()
def entropy(logits: ArrayLike, *, where: ArrayLike | None = None) -> Array:
  r"""Computes the entropy of the softmax; minimizing it moves decision boundaries away from the examples.

  .. math:: H(p) = -\sum_k p_k \log p_k

  Args:
    logits: `[..., classes]`, floating; -inf excludes a class.
    where: `[...]`, bool: which examples count.

  Returns:
    `[...]`, in nats, float32 or wider.

  Example:
    >>> entropy(jnp.zeros((1, 2)))  # log 2
    Array([0.6931472], dtype=float32)

  References:
    Grandvalet and Bengio, `Semi-supervised Learning by Entropy Minimization`, 2004, section 2.
  """
  logits = check_logits(logits, "logits")
  # log_softmax has no digits left for the most probable class of a nearly certain prediction.
  losses = cross_entropies(logits)
  # 0 log 0 is 0.
  losses = jnp.where(jnp.isneginf(logits), 0, losses)
  far = (jnp.exp(-losses) * losses).sum(axis=-1)
  # Near a uniform prediction the gradient of this sum cancels; the divergence from uniform keeps its digits.
  near = (jnp.abs(logits - logits.mean(axis=-1, keepdims=True)) < 0.25).all(axis=-1)
  logits = jnp.where(near[..., None], logits, 0)
  gap = kl_divergence(logits, jnp.zeros_like(logits))
  return jnp.where(near, math.log(logits.shape[-1]) - gap, far)


@only_where()
def pseudo_label(
  logits: ArrayLike, target_logits: ArrayLike, *, threshold: ArrayLike = 0.95, where: ArrayLike | None = None
) -> Array:
  r"""Computes the cross-entropy with the target's most probable class, if its probability reaches a
  threshold.

  .. math:: \ell = \mathbb{1}[\max_k q_k \ge \tau] \, (-\log p_{\hat y}), \qquad
    \hat y = \operatorname*{argmax}_k q_k

  For FixMatch, give `target_logits` of a weakly and `logits` of a strongly augmented view. For pseudo-labels,
  give the same logits twice and threshold 0. Average over all examples, not only over those above the
  threshold, so that the term grows with confidence. The target gets no gradient.

  Args:
    logits: logits of `p`, `[..., classes]`, floating.
    target_logits: logits of `q`, `[..., classes]`, floating.
    threshold: `tau`, a scalar or `[...]`, in [0, 1].
    where: `[...]`, bool: which examples count.

  Returns:
    `[...]`, in nats, float32 or wider; 0 where the target is below the threshold, NaN where logits or
    target logits are NaN.

  Example:
    >>> sure, unsure = jnp.array([9.0, 0.0]), jnp.array([1.0, 0.0])
    >>> pseudo_label(jnp.zeros((2, 2)), jnp.stack([sure, unsure]))
    Array([0.6931472, 0.       ], dtype=float32)

  References:
    Lee, `Pseudo-Label`, 2013, section 2.
    Sohn et al., `FixMatch: Simplifying Semi-Supervised Learning`, 2020, section 2.2.
  """
  logits = check_logits(logits, "logits")
  target = jax.lax.stop_gradient(check_logits(target_logits, "target_logits", shape=logits.shape))
  check_option(threshold, "threshold", logits.shape[:-1], low=0, high=1)
  confidence = jnp.exp(softmax_log_probs(target).max(axis=-1))
  loss = softmax_cross_entropy(logits, target.argmax(axis=-1))
  # Divergence must show: a NaN confidence fails the threshold, but the loss must be NaN and not 0.
  loss = jnp.where(jnp.isnan(confidence), jnp.nan, loss)
  return jnp.where((confidence < threshold) & ~jnp.isnan(loss), 0, loss)

"""Terms for examples without labels: entropy minimisation and pseudo-labels."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_logits, check_option
from jaxreg._where import only_where
from jaxreg.losses._softmax import cross_entropies, softmax_cross_entropy, softmax_log_probs
from jaxreg.typing import Array


@only_where()
def entropy(logits: ArrayLike, *, where: ArrayLike | None = None) -> Array:
  r"""Computes the entropy of the softmax; minimizing it moves decision boundaries away from the examples.

  .. math:: H(p) = -\sum_k p_k \log p_k

  As a score of examples, values below the smallest float are 0 and tie: in float32, from a gap of about 90
  between the logits on.

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
  return _entropy(check_logits(logits, "logits"))


@jax.custom_jvp
def _entropy(logits: Array) -> Array:
  losses, probs = _losses_and_probs(logits)
  return (probs * losses).sum(axis=-1)


@_entropy.defjvp
def _entropy_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
  """Computes the derivative `-p (log p + H)`, whose sum cancels near a uniform prediction."""
  (logits,), (tangent,) = primals, tangents
  value = _entropy(logits)
  losses, probs = _losses_and_probs(logits)
  gaps = logits - logits.mean(axis=-1, keepdims=True)
  near = (jnp.abs(gaps) < 0.25).all(axis=-1, keepdims=True)
  gaps = jnp.where(near, gaps, 0)
  ratio = gaps - jnp.log1p(jnp.expm1(gaps).mean(axis=-1, keepdims=True))  # log(k p), for k classes
  close = ratio - (probs * ratio).sum(axis=-1, keepdims=True)
  excess = jnp.where(near, close, value[..., None] - losses)
  return value, -(probs * excess * tangent).sum(axis=-1)


def _losses_and_probs(logits: Array) -> tuple[Array, Array]:
  """Computes the surprise and the probability of each class, both 0 for an excluded class: 0 log 0 is 0."""
  # log_softmax has no digits left for the most probable class of a nearly certain prediction.
  losses = cross_entropies(logits)
  excluded = jnp.isneginf(logits)
  losses = jnp.where(excluded, 0, losses)
  return losses, jnp.where(excluded, 0, jnp.exp(-losses))


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

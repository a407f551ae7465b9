"""The focal loss of a softmax."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_hard_or_soft_labels, check_logits, check_option, per_class
from jaxreg._labels import is_soft, label_entry
from jaxreg._where import only_where
from jaxreg.losses._softmax import cross_entropies, gaps_of, margin_cross_entropy, margins_of
from jaxreg.typing import Array


@only_where()
def focal(
  logits: ArrayLike, labels: ArrayLike, *, gamma: ArrayLike = 2.0, where: ArrayLike | None = None
) -> Array:
  r"""Computes the cross-entropy, scaled down as the model becomes confident of the label.

  .. math:: \ell = -(1 - p_t)^\gamma \log p_t

  For two classes and one logit use `binary_focal`. Example weights replace the paper's factor
  per class. For soft labels the loss is the mean over the classes, weighted by the probabilities,
  `-sum_k y_k (1 - p_k)^gamma log p_k`.

  Args:
    logits, labels, where: as in `softmax_cross_entropy`.
    gamma: a scalar or `[...]`, at least 0; 0 is the cross-entropy.

  Returns:
    `[...]`, in nats, float32 or wider.

  Example:
    >>> focal(jnp.array([[0.0, 0.0]]), jnp.array([0]), gamma=1.0)  # log(2) / 2
    Array([0.3465736], dtype=float32)

  References:
    Lin et al., `Focal Loss for Dense Object Detection`, 2017, section 3.
  """
  logits = check_logits(logits, "logits")
  check_option(gamma, "gamma", logits.shape[:-1], low=0)
  labels = check_hard_or_soft_labels(labels, logits)
  if is_soft(labels):
    every = cross_entropies(logits)
    infinite = jnp.isinf(every)
    # Infinite losses are added apart: a finite number times infinity has no gradient.
    excluded = jnp.where((infinite & (labels > 0)).any(axis=-1), jnp.inf, 0)
    focus = jnp.exp(per_class(gamma, logits.dtype) * _log_wrongs(logits))
    return label_entry(focus * jnp.where(infinite, 0, every), labels) + excluded
  margins, excluded = margins_of(logits, labels)
  # From the margins, because log(1 - p_t) has an infinite slope at a loss of 0.
  log_wrong = -jax.nn.softplus(-jax.nn.logsumexp(margins, axis=-1))
  return jnp.exp(gamma * log_wrong) * margin_cross_entropy(margins) + excluded


def _log_wrongs(logits: Array) -> Array:
  """Computes `log(1 - p_k)` for every class, `[..., classes]`."""
  gaps, is_top = gaps_of(logits)
  others = jax.nn.logsumexp(jnp.where(is_top, jnp.finfo(gaps.dtype).min / 2, -gaps), axis=-1, keepdims=True)
  # All probabilities but the largest are at most 1/2; for the largest, 1 - p would lose all digits.
  probs = jnp.exp(-cross_entropies(logits))
  return jnp.where(is_top, -jax.nn.softplus(-others), jnp.log1p(-jnp.where(is_top, 0, probs)))

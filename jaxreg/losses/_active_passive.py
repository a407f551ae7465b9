"""Active and passive losses: what raises the label's probability, and what lowers the others'."""

from __future__ import annotations

import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_hard_or_soft_labels, check_logits, check_option, per_class
from jaxreg._labels import is_soft, label_entry
from jaxreg._where import only_where
from jaxreg.losses._softmax import cross_entropies, softmax_cross_entropy
from jaxreg.typing import Array


@only_where()
def active_passive(
  logits: ArrayLike,
  labels: ArrayLike,
  *,
  active_weight: ArrayLike = 1.0,
  passive_weight: ArrayLike = 4.0,
  normalized: bool = True,
  where: ArrayLike | None = None,
) -> Array:
  r"""Computes the normalized cross-entropy plus a multiple of the probability of being wrong.

  .. math:: \ell = \alpha \frac{-\log p_t}{-\sum_k \log p_k} + \beta \, (1 - p_t)

  Both terms keep their optimum if labels are changed uniformly: the first, because its sum over all labels is
  constant, and the second likewise. Alone, the first learns too little, which the second mends. The reverse
  cross-entropy with `log 0 = -A` is `A (1 - p_t)`, the mean absolute error `2 (1 - p_t)`: so `beta = 4` is
  the paper's NCE + RCE, and `beta = 2` its NCE + MAE. With `passive_weight=0` this is the normalized
  cross-entropy. With `normalized=False` the first term is the cross-entropy, and the loss the symmetric
  cross-entropy, whose paper takes `alpha = 0.1` and `beta = 4`; it is `alpha` times `poly_loss`. For soft
  labels the loss is the mean over the classes, weighted by the probabilities.

  Args:
    logits, labels, where: as in `softmax_cross_entropy`.
    active_weight, passive_weight: `alpha` and `beta`, scalars or `[...]`, at least 0.
    normalized: divide the cross-entropy by its sum over all labels; static. Excluded classes do not count.

  Returns:
    `[...]`, float32 or wider.

  Example:
    >>> active_passive(jnp.array([[0.0, 0.0]]), jnp.array([0]))  # 1/2 + 4/2
    Array([2.5], dtype=float32)

  References:
    Ma et al., `Normalized Loss Functions for Deep Learning with Noisy Labels`, 2020, section 3.
    Wang et al., `Symmetric Cross Entropy for Robust Learning with Noisy Labels`, 2019, Eq. 6.
  """
  logits = check_logits(logits, "logits")
  check_option(active_weight, "active_weight", logits.shape[:-1], low=0)
  check_option(passive_weight, "passive_weight", logits.shape[:-1], low=0)
  labels = check_hard_or_soft_labels(labels, logits)
  every = cross_entropies(logits)
  alpha, beta = (jnp.asarray(x, logits.dtype) for x in (active_weight, passive_weight))
  if normalized:
    total = jnp.where(jnp.isinf(every), 0, every).sum(axis=-1)
    alpha = alpha / jnp.where(total > 0, total, 1)  # 0 if a single class is not excluded
  if is_soft(labels):
    return label_entry(_weighted(every, per_class(alpha, every.dtype), per_class(beta, every.dtype)), labels)
  return _weighted(softmax_cross_entropy(logits, labels), alpha, beta)


def _weighted(loss: Array, active: Array, passive: Array) -> Array:
  """Computes `active * loss + passive * (1 - p)`, infinite for a label that is excluded."""
  infinite = jnp.isinf(loss)
  finite = jnp.where(infinite, 0, loss)
  # From the loss: 1 - p would lose its digits where p is near 1.
  return jnp.where(infinite, loss, active * finite - passive * jnp.expm1(-finite))

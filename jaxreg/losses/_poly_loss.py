"""The cross-entropy with another first coefficient of its Taylor series."""

from __future__ import annotations

import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_hard_or_soft_labels, check_logits, check_option, per_class
from jaxreg._labels import is_soft, label_entry
from jaxreg._where import only_where
from jaxreg.losses._softmax import cross_entropies, softmax_cross_entropy
from jaxreg.typing import Array


@only_where()
def poly_loss(
  logits: ArrayLike, labels: ArrayLike, *, epsilon: ArrayLike = 2.0, where: ArrayLike | None = None
) -> Array:
  r"""Computes Poly-1: the cross-entropy plus a multiple of the probability of being wrong.

  .. math:: \ell = -\log p_t + \epsilon\,(1 - p_t) = (1 + \epsilon)(1 - p_t) + \tfrac12 (1 - p_t)^2 + \dots

  The cross-entropy is the series with every coefficient `1 / j`; `epsilon` is added to the first one, which
  dominates for examples that are nearly right. For soft labels the loss is the mean over the classes,
  weighted by the probabilities, `sum_k y_k (-log p_k + epsilon (1 - p_k))`. For one-hot labels use
  `optax.losses.poly_loss_cross_entropy`. The symmetric cross-entropy is a multiple: see `active_passive`.

  Args:
    logits, labels, where: as in `softmax_cross_entropy`.
    epsilon: a scalar or `[...]`, at least -1; 0 is the cross-entropy.

  Returns:
    `[...]`, in nats, float32 or wider.

  Example:
    >>> poly_loss(jnp.array([[0.0, 0.0]]), jnp.array([0]), epsilon=1.0)  # log(2) + 1/2
    Array([1.1931472], dtype=float32)

  References:
    Leng et al., `PolyLoss: A Polynomial Expansion Perspective of Classification Loss Functions`, 2022.
  """
  logits = check_logits(logits, "logits")
  check_option(epsilon, "epsilon", logits.shape[:-1], low=-1)
  labels = check_hard_or_soft_labels(labels, logits)
  if is_soft(labels):
    loss = cross_entropies(logits)
    return label_entry(loss - per_class(epsilon, loss.dtype) * jnp.expm1(-loss), labels)
  loss = softmax_cross_entropy(logits, labels)
  # 1 - p_t is computed from the loss: from p_t it would lose digits where p_t is near 1.
  return loss - epsilon * jnp.expm1(-loss)

"""The generalized cross-entropy: between the cross-entropy and the mean absolute error."""

from __future__ import annotations

import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_hard_or_soft_labels, check_logits, check_option, per_class
from jaxreg._labels import is_soft, label_entry
from jaxreg._where import only_where
from jaxreg.losses._softmax import cross_entropies, softmax_cross_entropy
from jaxreg.typing import Array


@only_where()
def generalized_cross_entropy(
  logits: ArrayLike, labels: ArrayLike, *, q: ArrayLike = 0.7, where: ArrayLike | None = None
) -> Array:
  r"""Computes a loss that is bounded, so that wrong labels that the model doubts pull less.

  .. math:: \ell = \frac{1 - p_t^q}{q}, \qquad \nabla \ell = p_t^q \, \nabla (-\log p_t)

  At `q = 1` this is half the absolute error of the probabilities, which a uniform change of labels does not
  move; at `q = 0` it is the cross-entropy, which learns faster. For soft labels the loss is the mean over the
  classes, weighted by the probabilities. It has no truncation, the paper's second form.

  Args:
    logits, labels, where: as in `softmax_cross_entropy`.
    q: a scalar or `[...]`, in [0, 1].

  Returns:
    `[...]`, at most `1 / q`, float32 or wider.

  Example:
    >>> generalized_cross_entropy(jnp.array([[0.0, 0.0]]), jnp.array([0]), q=0.5).round(4)  # 2 - sqrt(2)
    Array([0.5858], dtype=float32)

  References:
    Zhang and Sabuncu, `Generalized Cross Entropy Loss for Training Deep Neural Networks with Noisy Labels`,
    2018, Eq. 6.
  """
  logits = check_logits(logits, "logits")
  check_option(q, "q", logits.shape[:-1], low=0, high=1)
  labels = check_hard_or_soft_labels(labels, logits)
  if is_soft(labels):
    return label_entry(_bounded(cross_entropies(logits), per_class(q, logits.dtype)), labels)
  return _bounded(softmax_cross_entropy(logits, labels), jnp.asarray(q, logits.dtype))


def _bounded(loss: Array, q: Array) -> Array:
  """Computes `(1 - exp(-q loss)) / q`, and `loss` at `q = 0`."""
  zero = q == 0
  # From the loss: `1 - p**q` would lose its digits where p is near 1.
  divisor = jnp.where(zero, 1, q)
  finite = jnp.where(jnp.isinf(loss), 0, loss)
  bounded = jnp.where(jnp.isinf(loss), 1, -jnp.expm1(-divisor * finite)) / divisor
  return jnp.where(zero, loss, bounded)

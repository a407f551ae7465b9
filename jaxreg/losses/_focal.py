"""The focal loss of a softmax."""

from __future__ import annotations

import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg.losses._labels import counted, is_soft, of_label
from jaxreg.losses._softmax import cross_entropies, softmax_cross_entropy
from jaxreg.typing import Array, check_hard_or_soft_labels, check_range, check_wide


def focal(logits: ArrayLike, labels: ArrayLike, *, gamma: ArrayLike = 2.0) -> Array:
  r"""Computes the cross-entropy, scaled down as the model grows sure of the label.

  .. math:: \ell = -(1 - p_t)^\gamma \log p_t

  For two classes and one logit use `optax.losses.sigmoid_focal_loss`. The paper's factor per class is left to
  example weights. For soft labels the loss is the mean over the classes, weighted by the probabilities,
  `-sum_k y_k (1 - p_k)^gamma log p_k`.

  Args:
    logits: `[..., classes]`, floating.
    labels: `[...]`, integer, or `[..., classes]`, soft, as in `softmax_cross_entropy`.
    gamma: at least 0; 0 is the cross-entropy.

  Returns:
    `[...]`, in nats, float32 or wider.

  Raises:
    TypeError: if `logits` are not floating or `labels` are neither integer nor soft.
    ValueError: if `gamma` is negative or the shapes do not fit.

  Example:
    >>> focal(jnp.array([[0.0, 0.0]]), jnp.array([0]), gamma=1.0)  # log(2) / 2
    Array([0.3465736], dtype=float32)

  References:
    Lin et al., `Focal Loss for Dense Object Detection`, 2017, section 3.
  """
  check_range(gamma, "gamma", low=0)
  logits = check_wide(logits, "logits")
  labels = check_hard_or_soft_labels(labels, logits)
  if is_soft(labels):
    return of_label(_focal(counted(cross_entropies(logits), labels), gamma), labels)
  return _focal(softmax_cross_entropy(logits, labels), gamma)


def _focal(loss: Array, gamma: ArrayLike) -> Array:
  # For gamma < 1 the slope of q^gamma at q = 0 is infinite. Times the loss, which is 0 there, it must be 0.
  wrong = -jnp.expm1(-jnp.maximum(loss, jnp.finfo(loss.dtype).tiny))
  return wrong**gamma * loss

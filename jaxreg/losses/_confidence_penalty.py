"""Cross-entropy that rewards an uncertain prediction."""

from __future__ import annotations

from jax.typing import ArrayLike

from jaxreg._checks import check_logits, check_option
from jaxreg._where import only_where
from jaxreg.losses._entropy import entropy
from jaxreg.losses._softmax import softmax_cross_entropy
from jaxreg.typing import Array


@only_where()
def confidence_penalty(
  logits: ArrayLike, labels: ArrayLike, *, weight: ArrayLike = 0.1, where: ArrayLike | None = None
) -> Array:
  r"""Computes the cross-entropy minus the weighted entropy of the prediction.

  .. math:: \ell = -\log p_t - \beta H(p)

  Up to a constant, this is the cross-entropy plus `beta` times the divergence of `p` from the uniform
  distribution. Label smoothing uses the divergence in the other direction. The loss can be negative, by at
  most `beta log K`. Only the cross-entropy sees the labels.

  Args:
    logits, labels, where: as in `softmax_cross_entropy`.
    weight: `beta`, a scalar or `[...]`, at least 0.

  Returns:
    `[...]`, in nats, float32 or wider.

  Example:
    >>> confidence_penalty(jnp.zeros((1, 2)), jnp.array([0]), weight=1.0)
    Array([0.], dtype=float32)

  References:
    Pereyra et al., `Regularizing Neural Networks by Penalizing Confident Output Distributions`, 2017,
    section 3.
  """
  logits = check_logits(logits, "logits")
  check_option(weight, "weight", logits.shape[:-1], low=0)
  return softmax_cross_entropy(logits, labels) - weight * entropy(logits)

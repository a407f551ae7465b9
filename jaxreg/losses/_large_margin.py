"""Large margin in softmax: the logits of the other classes should be equal."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg.losses._softmax import softmax_cross_entropy
from jaxreg.typing import Array, check_labels, check_range, check_wide


def large_margin(logits: ArrayLike, labels: ArrayLike, *, weight: ArrayLike = 0.3) -> Array:
  r"""Computes the cross-entropy plus a penalty that pushes down the largest wrong logit, widening the margin.

  .. math:: \ell = -\log p_t + \frac{\lambda}{2} \sum_{k \ne t} \Bigl(q_k - \frac{1}{K - 1}\Bigr) \log q_k,
    \qquad q_k = \frac{e^{o_k}}{\sum_{j \ne t} e^{o_j}}

  The sum is the symmetric divergence of `q` and the uniform distribution over the wrong classes,
  :math:`\mathrm{KL}(q \| u) + \mathrm{KL}(u \| q)`. It is at least 0, and 0 if the wrong logits are equal, as
  with two classes.

  Args:
    logits: `[..., classes]`, floating.
    labels: `[...]`, integer class indices in `[0, classes)`. Any other index gives NaN, or is refused if it
      is known. Soft labels are refused: the penalty leaves out one class.
    weight: `lambda`, at least 0; 0 is the cross-entropy.

  Returns:
    `[...]`, in nats, float32 or wider.

  Raises:
    TypeError: if `logits` are not floating or `labels` not integer.
    ValueError: if `weight` is negative, the shapes do not fit or there is one class.

  Example:
    >>> logits = jnp.array([[0.0, 0.0, jnp.log(3.0)]])  # q = 1/4, 3/4; penalty (1/2) (1/4) log(3)
    >>> loss = lambda weight: large_margin(logits, jnp.array([0]), weight=weight)
    >>> (loss(1.0) - loss(0.0)).round(4)
    Array([0.1373], dtype=float32)

  References:
    Kobayashi, `Large Margin In Softmax Cross-Entropy Loss`, 2019.
  """
  check_range(weight, "weight", low=0)
  logits = check_wide(logits, "logits")
  labels = check_labels(labels, logits)
  classes = logits.shape[-1]
  if classes < 2:
    raise ValueError(f"logits must have at least 2 classes, got {classes}")
  wrong = jax.nn.one_hot(labels, classes, dtype=int) == 0
  log_q = jax.nn.log_softmax(logits, axis=-1, where=wrong)
  # The label's own entry must not reach the gradient.
  log_q = jnp.where(wrong, log_q, 0)
  penalty = jnp.where(wrong, (jnp.exp(log_q) - 1 / (classes - 1)) * log_q, 0).sum(axis=-1)
  return softmax_cross_entropy(logits, labels) + 0.5 * weight * penalty

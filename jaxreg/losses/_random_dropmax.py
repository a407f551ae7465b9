"""Random DropMax: DropMax with one retain probability for all inputs and classes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_key, check_labels, check_logits, check_option, per_class
from jaxreg._dropmax_masks import dropmax_masked_logits
from jaxreg._labels import is_target_of
from jaxreg._sharding import drawn_like
from jaxreg._where import only_where
from jaxreg.losses._softmax import softmax_cross_entropy
from jaxreg.typing import Array, Key


@only_where()
def random_dropmax(
  key: Key, logits: ArrayLike, labels: ArrayLike, *, rate: ArrayLike = 0.6, where: ArrayLike | None = None
) -> Array:
  r"""Computes the cross-entropy of a softmax that drops wrong classes at random.

  .. math:: \ell = -\log \frac{(1 + \epsilon) e^{o_t}}{\sum_k (z_k + \epsilon) e^{o_k}}, \quad z_t = 1, \quad
    z_k \sim \mathrm{Ber}(1 - \mathrm{rate}) \ (k \ne t), \quad \epsilon = 10^{-20}

  Prediction is the plain softmax, `softmax_log_probs`.

  This is a baseline of the DropMax paper, whose poster calls it `Class Dropout`. The paper does not confirm
  that the target is kept and that prediction is the plain softmax; a 2018 reproduction report does both. The
  paper's retain probabilities are unknown, so the default is our choice.

  Args:
    key: one draw for the whole batch.
    logits: `o`, `[..., classes]`, floating.
    labels: `[...]`, integer; soft labels are refused: one class is always kept.
    rate: probability of dropping a wrong class, a scalar or `[...]`, in [0, 1]; may be traced.
    where: `[...]`, bool: which examples count.

  Returns:
    `[...]`, in nats, float32 or wider; the cross-entropy at a `rate` of 0, and about 0 at a `rate` of 1.

  Example:
    >>> random_dropmax(jax.random.key(0), jnp.zeros((1, 4)), jnp.array([1]), rate=0.0)
    Array([1.3862944], dtype=float32)

  References:
    Lee et al., `DropMax: Adaptive Variational Softmax`, 2018, the baseline `Random DropMax`.
  """
  logits = check_logits(logits, "logits")
  labels = check_labels(labels, logits)
  check_option(rate, "rate", labels.shape, low=0, high=1)
  keep = 1.0 - per_class(rate, jnp.float32)
  kept = drawn_like(logits, jax.random.bernoulli, check_key(key), logits.shape, p=keep)
  # A label out of range has no target class; its loss is NaN.
  return softmax_cross_entropy(dropmax_masked_logits(logits, kept | is_target_of(labels, logits)), labels)

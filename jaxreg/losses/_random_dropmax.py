"""Random DropMax: DropMax with one retain probability for all inputs and classes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg.losses._dropmax import dropmax_masked_logits
from jaxreg.losses._softmax import softmax_cross_entropy
from jaxreg.typing import Array, Key, check_count, check_key, check_labels, check_range, check_wide, key_first


@key_first
def random_dropmax(key: Key, logits: ArrayLike, labels: ArrayLike, *, keep_prob: ArrayLike = 0.4) -> Array:
  r"""Computes the cross-entropy of a softmax that drops wrong classes at random.

  .. math:: \ell = -\log \frac{(1 + \epsilon) e^{o_t}}{\sum_k (z_k + \epsilon) e^{o_k}}, \quad z_t = 1, \quad
    z_k \sim \mathrm{Ber}(\mathrm{keep\_prob}) \ (k \ne t), \quad \epsilon = 10^{-20}

  Prediction is the plain softmax, `softmax_log_probs`.

  A baseline of the DropMax paper, whose poster calls it `Class Dropout`. That the target is kept and that
  prediction is the plain softmax is not confirmed for the paper; a 2018 reproduction report implements it so.
  Its retain probabilities are not confirmed either: the default is ours.

  Args:
    key: one draw for the whole batch.
    logits: `o`, `[..., classes]`, floating.
    labels: `[...]`, integer class indices in `[0, classes)`. Any other index gives NaN, or is refused if it
      is known. Soft labels are refused: one class is always kept.
    keep_prob: probability of keeping a wrong class, in [0, 1]; may be traced.

  Returns:
    `[...]`, in nats, float32 or wider; the cross-entropy at a `keep_prob` of 1, nothing but the eps at 0.

  Raises:
    TypeError: if `logits` are not floating, `labels` not integer or `key` not a typed key.
    ValueError: if `keep_prob` is outside [0, 1] or shapes do not fit.

  Example:
    >>> random_dropmax(jax.random.key(0), jnp.zeros((1, 4)), jnp.array([1]), keep_prob=1.0)
    Array([1.3862944], dtype=float32)

  References:
    Lee et al., `DropMax: Adaptive Variational Softmax`, 2018, the baseline `Random DropMax`.
  """
  logits = check_wide(logits, "logits")
  labels = check_labels(labels, logits)
  mask = random_dropmax_mask(key, labels, num_classes=logits.shape[-1], keep_prob=keep_prob)
  return softmax_cross_entropy(dropmax_masked_logits(logits, mask), labels)


@key_first
def random_dropmax_mask(
  key: Key, labels: ArrayLike, *, num_classes: int, keep_prob: ArrayLike = 0.4
) -> Array:
  """Samples the classes to keep: always the target, each other class with probability `keep_prob`.

  Args:
    key: one draw of `[..., num_classes]`.
    labels: `[...]`, integer class indices in `[0, num_classes)`. Any other index gives a row of False, or is
      refused if it is known.
    num_classes: number of classes.
    keep_prob: in [0, 1]; may be traced.

  Returns:
    `[..., num_classes]`, bool.

  Raises:
    TypeError: if `labels` are not integer or `key` not a typed key.
    ValueError: if `num_classes` is below 1, `keep_prob` outside [0, 1] or a known label out of range.

  Example:
    >>> random_dropmax_mask(jax.random.key(0), jnp.array([1]), num_classes=3, keep_prob=0.0)
    Array([[False,  True, False]], dtype=bool)
  """
  check_count(num_classes, "num_classes")
  check_range(keep_prob, "keep_prob", low=0, high=1)
  shape = (*jnp.shape(labels), num_classes)
  mask = jax.random.bernoulli(check_key(key), jnp.asarray(keep_prob, jnp.float32), shape)
  is_target = jax.nn.one_hot(check_labels(labels, mask), num_classes, dtype=bool)
  return (mask | is_target) & is_target.any(axis=-1, keepdims=True)

"""Softmax over the target and a random subset of the other classes."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg.losses._softmax import softmax_cross_entropy
from jaxreg.typing import Array, Key, check_count, check_key, check_labels, check_range, check_wide, key_first


@key_first
def sampled_softmax(
  key: Key,
  logits: ArrayLike,
  labels: ArrayLike,
  *,
  fraction: float = 0.4,
  correct_proposal: bool = False,
) -> Array:
  r"""Computes the cross-entropy of a softmax over the target and a uniform random subset of the others.

  .. math:: \ell = -\log \frac{e^{o_t}}{e^{o_t} + \sum_{k \in C} e^{o_k} / \pi}

  The subset `C` is drawn afresh for each example by `sample_classes`. `pi` is 1 by default. With
  `correct_proposal` it is the probability `n / (classes - 1)` that a class is among the `n` drawn. The
  denominator is then an unbiased estimate of the whole softmax's. Prediction is the plain softmax,
  `softmax_log_probs`.

  This is a baseline of the DropMax paper. It is not confirmed that its subsets are uniform, that they keep
  the target, or how large they are. The default fraction is ours. Jean et al. correct all classes of their
  subset, target included, which changes nothing with a uniform proposal; here only sampled classes are
  corrected.

  Args:
    key: one draw for the whole batch.
    logits: `o`, `[..., classes]`, floating.
    labels: `[...]`, integer class indices in `[0, classes)`. Any other index gives NaN, or is refused if it
      is known. Soft labels are refused: one class is always kept.
    fraction: fraction of the classes to draw beside the target, in (0, 1]; static.
    correct_proposal: whether the logits of the drawn classes are corrected.

  Returns:
    `[...]`, in nats, float32 or wider; exactly `softmax_cross_entropy` at a fraction of 1.

  Raises:
    TypeError: if `logits` are not floating, `labels` not integer or `key` not a typed key.
    ValueError: if `fraction` is out of range or shapes do not fit.

  Example:
    >>> sampled_softmax(jax.random.key(0), jnp.zeros((1, 10)), jnp.array([3]), fraction=0.4)
    Array([1.609438], dtype=float32)

  References:
    Jean et al., `On Using Very Large Target Vocabulary for Neural Machine Translation`, 2015, section 3.
    Bengio and Senecal, `Quick Training of Probabilistic Neural Nets by Importance Sampling`, 2003.
  """
  logits = check_wide(logits, "logits")
  labels = check_labels(labels, logits)
  classes = logits.shape[-1]
  mask = sample_classes(key, labels, num_classes=classes, fraction=fraction)
  number = _number(classes, fraction)
  if correct_proposal and number:
    is_target = jax.nn.one_hot(labels, classes, dtype=bool)
    logits = jnp.where(is_target, logits, logits - math.log(number / (classes - 1)))
  return softmax_cross_entropy(jnp.where(mask, logits, jnp.finfo(logits.dtype).min / 2), labels)


@key_first
def sample_classes(key: Key, labels: ArrayLike, *, num_classes: int, fraction: float = 0.4) -> Array:
  """Samples a uniform subset of the other classes beside the target, without replacement, per example.

  Each class gets a uniform number, and the classes with the smallest numbers are taken: `fraction *
  num_classes` of them, rounded, at least 1 and at most all.

  Args:
    key: one draw of `[..., num_classes]`.
    labels: `[...]`, integer class indices in `[0, num_classes)`. Any other index gives a row of False, or is
      refused if it is known.
    num_classes: number of classes.
    fraction: in (0, 1]; static.

  Returns:
    `[..., num_classes]`, bool.

  Raises:
    TypeError: if `labels` are not integer or `key` not a typed key.
    ValueError: if `num_classes` is below 1, or if `fraction` or a known label is out of range.

  Example:
    >>> sample_classes(jax.random.key(0), jnp.array([2, 2]), num_classes=4, fraction=0.25).sum(axis=-1)
    Array([2, 2], dtype=int32)
  """
  check_count(num_classes, "num_classes")
  check_range(fraction, "fraction", low=0, high=1, open_low=True)
  noise = jax.random.uniform(check_key(key), (*jnp.shape(labels), num_classes), jnp.float32)
  is_target = jax.nn.one_hot(check_labels(labels, noise), num_classes, dtype=bool)
  # The target comes first. Ranks, because equal numbers would pass a threshold together.
  rank = jnp.argsort(jnp.argsort(jnp.where(is_target, -1, noise), axis=-1), axis=-1)
  return (rank <= _number(num_classes, fraction)) & is_target.any(axis=-1, keepdims=True)


def _number(num_classes: int, fraction: float) -> int:
  return min(max(round(fraction * num_classes), 1), num_classes - 1)

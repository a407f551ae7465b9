"""Softmax over the target and a random subset of the other classes."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.typing import ArrayLike

from jaxreg._checks import check_key, check_labels, check_logits, check_option
from jaxreg._labels import is_target_of
from jaxreg._sharding import drawn_like, partitioned
from jaxreg._where import only_where
from jaxreg.losses._softmax import softmax_cross_entropy
from jaxreg.typing import Array, Key


@only_where()
def sampled_softmax(
  key: Key,
  logits: ArrayLike,
  labels: ArrayLike,
  *,
  rate: ArrayLike = 0.6,
  correct_proposal: bool = False,
  where: ArrayLike | None = None,
) -> Array:
  r"""Computes the cross-entropy of a softmax over the target and a uniform random subset of the others.

  .. math:: \ell = -\log \frac{e^{o_t}}{e^{o_t} + \sum_{k \in C} e^{o_k} / \pi}

  The subset `C` is sampled for each example, without replacement: `(1 - rate) * classes` of the other
  classes, rounded, at least 1 and at most all. `pi` is 1 by default. With `correct_proposal` it is the
  probability of sampling a class, the size of `C` divided by `classes - 1`. The denominator is then an
  unbiased estimate of the full softmax's denominator. Prediction is the plain softmax, `softmax_log_probs`.

  This is a baseline of the DropMax paper. The paper does not confirm that its subsets are uniform, that they
  keep the target, or how large they are; the default rate is our choice. Jean et al. correct all classes of
  their subset, including the target, which has no effect with a uniform proposal. Here only sampled classes
  are corrected.

  Args:
    key, logits, labels, where: as in `random_dropmax`.
    rate: fraction of the classes to leave out, in [0, 1].
    correct_proposal: whether the logits of the sampled classes are corrected.

  Returns:
    `[...]`, in nats, float32 or wider; exactly `softmax_cross_entropy` at a rate of 0.

  Example:
    >>> sampled_softmax(jax.random.key(0), jnp.zeros((1, 10)), jnp.array([3]), rate=0.6)
    Array([1.609438], dtype=float32)

  References:
    Jean et al., `On Using Very Large Target Vocabulary for Neural Machine Translation`, 2015, section 3.
    Bengio and Senecal, `Quick Training of Probabilistic Neural Nets by Importance Sampling`, 2003.
  """
  logits = check_logits(logits, "logits")
  labels = check_labels(labels, logits)
  check_option(rate, "rate", (), low=0, high=1)
  others = logits.shape[-1] - 1
  traced = isinstance(rate, Tracer)
  wanted: Any = (1 - rate) * logits.shape[-1]
  number = jnp.clip(jnp.round(wanted), 1, others) if traced else min(max(round(float(wanted)), 1), others)
  noise = drawn_like(logits, jax.random.uniform, check_key(key), logits.shape, dtype=jnp.float32)
  is_target = is_target_of(labels, logits)

  # The target comes first. Ranks break ties; a threshold would select all tied classes.
  def ranks(x):
    return jnp.argsort(jnp.argsort(x, axis=-1), axis=-1)

  rank = partitioned(ranks, jnp.where(is_target, -1, noise))
  if correct_proposal:
    logits = jnp.where(is_target, logits, logits - (jnp.log if traced else math.log)(number / others))
  return softmax_cross_entropy(jnp.where(rank <= number, logits, jnp.finfo(logits.dtype).min / 2), labels)

"""Softmax cross-entropy that stays accurate when the loss is nearly zero."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_hard_or_soft_labels, check_logits, check_option, per_class
from jaxreg._labels import is_soft, is_target_of, label_entry
from jaxreg._sharding import entries
from jaxreg._where import only_where
from jaxreg.typing import Array

# So an eager call of a loss is a few programs instead of dozens of operations; within a program it changes
# nothing.
_in_one_program = functools.partial(jax.jit, inline=True)


@only_where()
def softmax_cross_entropy(logits: ArrayLike, labels: ArrayLike, *, where: ArrayLike | None = None) -> Array:
  r"""Computes the softmax cross-entropy with integer or soft labels, accurate down to the smallest losses.

  .. math:: \ell_t = \log\Bigl(1 + \sum_{k \ne t} e^{o_k - o_t}\Bigr), \qquad
    \ell = \sum_k y_k \ell_k \text{ for soft labels } y

  `logsumexp(o) - o_t` cancels: at a loss of 6e-8 in float32 its value is off by two thirds and its gradient
  by an eighth. Here the target's own term is taken out of the sum first, so value, gradient and Hessian keep
  their digits.

  Args:
    logits: `[..., classes]`, floating; -inf excludes a class, and the loss of an excluded label is +inf.
    labels: `[...]`, integer class indices in `[0, classes)`, or soft: `[..., classes]`, floating, at least 0
      with sum 1, such as the labels from `augment.mixup`. An integer out of range gives NaN, or an error
      where its value is known. Soft labels get a gradient, too: stop the gradient of a teacher's labels.
    where: `[...]`, bool: which examples count.

  Returns:
    `[...]`, in nats; float32, or float64 for float64 logits.

  Example:
    >>> softmax_cross_entropy(jnp.array([[20.0, 0.0]]), jnp.array([0]))
    Array([2.0611537e-09], dtype=float32)
    >>> softmax_cross_entropy(jnp.array([[20.0, 0.0]]), jnp.array([[0.75, 0.25]]))
    Array([5.], dtype=float32)

  References:
    Goodfellow, Bengio and Courville, `Deep Learning`, 2016, section 6.2.2.3.
  """
  logits = check_logits(logits, "logits")
  labels = check_hard_or_soft_labels(labels, logits)
  if is_soft(labels):
    return label_entry(cross_entropies(logits), labels)
  margins, excluded = margins_of(logits, labels)
  return excluded + margin_cross_entropy(margins)


@_in_one_program
def margins_of(logits: Array, labels: Array) -> tuple[Array, Array]:
  """Returns the margins `o_k - o_t` to an integer label, `[..., classes]`, and the cost of an excluded label.

  The label's own entry is the most negative number instead of 0. The margins are finite even if the label's
  logit is -inf; the cost `[...]` is then +inf, else 0. The cost plus the cross-entropy of the margins has the
  gradient `p - y`, as for soft labels.
  """
  # A negative index would count from the end; past the end it gives NaN.
  index = jnp.where(labels < 0, logits.shape[-1], labels)
  target = entries(logits, index)
  excluded = jnp.isneginf(target)
  # Far enough below the largest logit that its probability is 0; finite even if all classes are excluded.
  largest = jax.lax.stop_gradient(logits.max(axis=-1, keepdims=True))
  lowest = jnp.where(jnp.isneginf(largest), 0, largest) - 1e3
  # Finite, because the difference of two -inf would be NaN.
  differences = logits - jnp.where(excluded, lowest, target)
  margins = jnp.where(is_target_of(labels, logits), jnp.finfo(logits.dtype).min / 2, differences)
  return margins, jnp.where(excluded, -target, 0)[..., 0]


@_in_one_program
def margin_cross_entropy(margins: Array) -> Array:
  """Computes the cross-entropy from `margins_of`: `log(1 + sum of their exponentials)`."""
  top = jax.lax.stop_gradient(jnp.maximum(margins.max(axis=-1), 0))
  return top + jnp.log1p(jnp.expm1(-top) + jnp.exp(margins - top[..., None]).sum(axis=-1))


@_in_one_program
def cross_entropies(logits: Array) -> Array:
  """Computes `softmax_cross_entropy` for every class as label, `[..., classes]`, with equal accuracy.

  The logits are wide. Both terms are non-negative:
  `-log p_k = (o_top - o_k) + log(1 + sum of the others' e^(o_j - o_top))`.
  """
  gaps, is_top = gaps_of(logits)
  others = jnp.where(is_top, 0, jnp.exp(-gaps)).sum(axis=-1, keepdims=True)
  return gaps + jnp.log1p(others)


def gaps_of(logits: Array) -> tuple[Array, Array]:
  """Returns how far each logit lies below the largest one, and a mask of the largest one."""
  top = logits.argmax(axis=-1)
  is_top = is_target_of(top, logits)
  return jnp.where(is_top, 0, entries(logits, top) - logits), is_top


def softmax_log_probs(logits: ArrayLike, *, logit_scale: ArrayLike = 1.0) -> Array:
  """Computes the log-probabilities of the softmax, `[..., classes]`, in at least float32.

  Group softmax of kind II trains each of `G` groups to be sure alone. So the sum of the groups' logits is
  about `G` times too large for the probabilities, though not for the decision; `logit_scale = 1 / G` corrects
  this.

  Args:
    logits: `[..., classes]`, floating.
    logit_scale: a scalar or `[...]`, above 0.

  Example:
    >>> softmax_log_probs(jnp.array([2.0, 0.0]), logit_scale=0.5)
    Array([-0.31326163, -1.3132616 ], dtype=float32)
  """
  logits = check_logits(logits, "logits")
  check_option(logit_scale, "logit_scale", logits.shape[:-1], low=0, open_low=True)
  return jax.nn.log_softmax(per_class(logit_scale, logits.dtype) * logits)

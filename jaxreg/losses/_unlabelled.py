"""Terms for examples without labels, and their mean beside the labelled ones'."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_choice, check_logits, check_option, check_wide
from jaxreg._where import only_where
from jaxreg.losses._softmax import softmax_cross_entropy, softmax_log_probs
from jaxreg.typing import Array


@only_where()
def entropy(logits: ArrayLike, *, where: ArrayLike | None = None) -> Array:
  r"""Computes the entropy of the softmax; minimising it moves the decision away from unlabelled examples.

  .. math:: H(p) = -\sum_k p_k \log p_k

  Args:
    logits: `[..., classes]`, floating; -inf excludes a class.
    where: `[...]`, bool: which examples count.

  Returns:
    `[...]`, in nats, float32 or wider.

  Example:
    >>> entropy(jnp.zeros((1, 2)))  # log 2
    Array([0.6931472], dtype=float32)

  References:
    Grandvalet and Bengio, `Semi-supervised Learning by Entropy Minimization`, 2004, section 2.
  """
  log_probs = softmax_log_probs(logits)
  # 0 log 0 is 0.
  return -(jnp.exp(log_probs) * jnp.where(jnp.isneginf(log_probs), 0, log_probs)).sum(axis=-1)


@only_where()
def pseudo_label(
  logits: ArrayLike, target_logits: ArrayLike, *, threshold: ArrayLike = 0.95, where: ArrayLike | None = None
) -> Array:
  r"""Computes the cross-entropy with the target's most probable class, if that is probable enough.

  .. math:: \ell = \mathbb{1}[\max_k q_k \ge \tau] \, (-\log p_{\hat y}), \qquad
    \hat y = \operatorname*{argmax}_k q_k

  For FixMatch, give `target_logits` of a weakly and `logits` of a strongly augmented view. For pseudo-labels,
  give the same logits twice and threshold 0. Average over all examples, not only over those above the
  threshold, so that the term grows with confidence. The target gets no gradient.

  Args:
    logits: logits of `p`, `[..., classes]`, floating.
    target_logits: logits of `q`, `[..., classes]`, floating.
    threshold: `tau`, a scalar or `[...]`, in [0, 1].
    where: `[...]`, bool: which examples count.

  Returns:
    `[...]`, in nats, float32 or wider; 0 where the target is below the threshold, NaN where either's logits
    are NaN.

  Example:
    >>> sure, unsure = jnp.array([9.0, 0.0]), jnp.array([1.0, 0.0])
    >>> pseudo_label(jnp.zeros((2, 2)), jnp.stack([sure, unsure]))
    Array([0.6931472, 0.       ], dtype=float32)

  References:
    Lee, `Pseudo-Label`, 2013, section 2.
    Sohn et al., `FixMatch: Simplifying Semi-Supervised Learning`, 2020, section 2.2.
  """
  logits = check_logits(logits, "logits")
  target = jax.lax.stop_gradient(check_logits(target_logits, "target_logits", shape=logits.shape))
  check_option(threshold, "threshold", logits.shape[:-1], low=0, high=1)
  confidence = jnp.exp(softmax_log_probs(target).max(axis=-1))
  loss = softmax_cross_entropy(logits, target.argmax(axis=-1))
  # A diverged network must show: a NaN confidence passes no threshold, but the loss must not be 0.
  loss = jnp.where(jnp.isnan(confidence), jnp.nan, loss)
  return jnp.where((confidence < threshold) & ~jnp.isnan(loss), 0, loss)


@only_where(end=None)
def semi_supervised(
  supervised: ArrayLike,
  unsupervised: ArrayLike,
  labels: ArrayLike,
  *,
  weight: ArrayLike = 1.0,
  over: Literal["unlabelled", "all"] = "unlabelled",
  weights: ArrayLike | None = None,
  axis_name: str | None = None,
  where: ArrayLike | None = None,
) -> Array:
  r"""Computes a loss whose mean is the labelled mean plus `weight` times the unlabelled mean.

  .. math:: \frac1n \sum_i \ell_i = \frac1{|L|} \sum_{i \in L} s_i + \frac{w}{|U|} \sum_{i \in U} u_i

  The weight of the unsupervised term then does not depend on the number of labels in a batch. A term without
  examples in the batch is 0. The unsupervised terms here are `entropy`, `pseudo_label` (FixMatch),
  `consistency`, `reconstruction` and `adversarial.vat_loss`. BatchNorm mixes the statistics of both kinds of
  examples.

  Args:
    supervised: `s`, `[batch]`, floating: a loss per example. It does not count for an unlabelled example, but
      its gradient must be finite there, as with `where=labels >= 0` in the losses of this module.
    unsupervised: `u`, `[batch]`, floating.
    labels: `[batch]`: integers, negative for an unlabelled example, or bool, True for a labelled one.
    weight: `w`, a scalar or `[batch]`, at least 0.
    over: whether `U` is the unlabelled examples or all examples.
    weights: `[batch]`, at least 0, the weights of the mean: 0 for padding. Default: all 1.
    axis_name: name of a mapped axis over which the batch is spread; sums then run over all parts.
    where: `[batch]`, bool: which examples count, also in the means and numbers of both parts.

  Returns:
    `[batch]`, float32 or wider.

  Example:
    >>> labels = jnp.array([3, -1, -1])
    >>> loss = semi_supervised(jnp.full(3, 2.0), jnp.full(3, 1.0), labels, weight=0.5)
    >>> loss, loss.mean()
    (Array([6.  , 0.75, 0.75], dtype=float32), Array(2.5, dtype=float32))

  References:
    Na, `Regularization for Deep Learning`, lecture, Chonbuk National University, semi-supervised learning.
  """
  supervised = check_wide(supervised, "supervised")
  unsupervised = check_wide(unsupervised, "unsupervised", shape=supervised.shape)
  labels = jnp.asarray(labels)
  if labels.dtype != bool and not jnp.issubdtype(labels.dtype, jnp.integer):
    raise TypeError(f"labels must be integers or bool, got {labels.dtype}")
  if labels.shape != supervised.shape:
    raise ValueError(f"labels must have shape {supervised.shape}, got {labels.shape}")
  check_option(weight, "weight", supervised.shape, low=0)
  check_choice(over, "over", ("unlabelled", "all"))
  weights = (
    jnp.ones_like(supervised) if weights is None else check_wide(weights, "weights", shape=labels.shape)
  )
  if where is not None:
    weights = jnp.where(where, weights, 0)
  labelled = labels if labels.dtype == bool else labels >= 0
  other = ~labelled if over == "unlabelled" else jnp.ones_like(labelled)

  def mean_of(x: Array, part: Array) -> Array:
    """Zero outside a part, and scaled inside it so that the mean over all is the mean over the part."""
    total = lambda x: x.sum() if axis_name is None else jax.lax.psum(x.sum(), axis_name)
    size = total(weights * part)
    return jnp.where(part, x, 0) * (total(weights) / jnp.where(size > 0, size, 1))

  return mean_of(supervised, labelled) + weight * mean_of(unsupervised, other)

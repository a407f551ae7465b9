"""A supervised term for labelled examples and an unsupervised term for the others, or for all."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_array, check_choice, check_option, check_wide
from jaxreg._where import only_where
from jaxreg.typing import Array


@only_where(end=None, shared=("labels",))  # `where` sets the weights of the others to 0
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

  The weight of the unsupervised term then does not depend on the number of labels in a batch. A term is 0 if
  the batch has no examples for it. The unsupervised terms here are `entropy`, `pseudo_label` (FixMatch),
  `consistency`, `reconstruction` and `adversarial.vat_loss`. BatchNorm mixes the statistics of both kinds of
  examples.

  Args:
    supervised: `s`, `[batch]`, floating: a loss per example. It is ignored for unlabelled examples, but its
      gradient must be finite there, as with `where=labels >= 0` in the losses of this module.
    unsupervised: `u`, `[batch]`, floating.
    labels: `[batch]`: integers, negative for an unlabelled example, or bool, True for a labelled one.
    weight: `w`, a scalar or `[batch]`, at least 0.
    over: whether `U` is the unlabelled examples or all examples.
    weights: `[batch]`, at least 0, the weights of the mean: 0 for padding. Default: all 1.
    axis_name: name of a mapped axis over which the batch is spread; sums then run over all parts.
    where: `[batch]`, bool: which examples count, also in the means and sizes of both parts.

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
  labels = check_array(labels, "labels")
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
    """Zeroes `x` outside the part and scales it inside, so that its mean is the mean over the part."""

    def total(x):
      return x.sum() if axis_name is None else jax.lax.psum(x.sum(), axis_name)

    size = total(weights * part)
    return jnp.where(part, x, 0) * (total(weights) / jnp.where(size > 0, size, 1))

  return mean_of(supervised, labelled) + weight * mean_of(unsupervised, other)

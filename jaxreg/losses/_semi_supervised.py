"""A supervised term where there are labels and an unsupervised one elsewhere, or everywhere."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg.typing import Array, check_range, check_wide


def semi_supervised(
  supervised: ArrayLike,
  unsupervised: ArrayLike,
  labels: ArrayLike,
  *,
  weight: ArrayLike = 1.0,
  over: Literal["unlabelled", "all"] = "unlabelled",
  weights: ArrayLike | None = None,
  axis_name: str | None = None,
) -> Array:
  r"""A loss for each example whose mean is that of the labelled plus `weight` times that of the others.

  .. math:: \frac1n \sum_i \ell_i = \frac1{|L|} \sum_{i \in L} s_i + \frac{w}{|U|} \sum_{i \in U} u_i

  So the weight of the unsupervised term does not hang on how many labels a batch happens to have; where it
  has none, or nothing else, that term is 0. Of `losses`, `entropy`, `pseudo_label` (FixMatch), `consistency`
  and `reconstruction` are unsupervised, and so is `adversarial.vat_loss`. Mind that BatchNorm's statistics
  are those of both kinds together.

  Args:
    supervised: `s`, `[batch]`, floating: a loss of each example. Where there is no label it counts for
      nothing, but its gradient must exist: give it a class there, `jnp.maximum(labels, 0)`, for of a label
      that is none the cross-entropies here are NaN.
    unsupervised: `u`, `[batch]`, floating.
    labels: `[batch]`: integers, negative where there is none, or bool, whether there is one.
    weight: `w`, at least 0.
    over: whether `U` are the examples without labels or all of them.
    weights: `[batch]`, at least 0, that the mean is taken with: 0 for padding. Default: all 1.
    axis_name: of a mapped axis over which the batch is spread; its size is then that of all parts.

  Returns:
    `[batch]`, float32 or wider.

  Raises:
    TypeError: if the terms are not floating or `labels` neither integers nor bool.
    ValueError: for other shapes, a negative `weight` or another `over`.

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
  check_range(weight, "weight", low=0)
  if over not in ("unlabelled", "all"):
    raise ValueError(f"over must be 'unlabelled' or 'all', got {over!r}")
  weights = (
    jnp.ones_like(supervised) if weights is None else check_wide(weights, "weights", shape=labels.shape)
  )
  labelled = labels if labels.dtype == bool else labels >= 0
  other = ~labelled if over == "unlabelled" else jnp.ones_like(labelled)

  def mean_of(x: Array, part: Array) -> Array:
    """Zero outside a part, and inside so much larger that the mean over all is the mean over the part."""
    total = lambda x: x.sum() if axis_name is None else jax.lax.psum(x.sum(), axis_name)
    size = total(weights * part)
    return jnp.where(part, x, 0) * (total(weights) / jnp.where(size > 0, size, 1))

  return mean_of(supervised, labelled) + weight * mean_of(unsupervised, other)

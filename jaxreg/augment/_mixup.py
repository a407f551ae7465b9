"""Mixup: convex combinations of examples and of their labels; and parts that it shares with CutMix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxreg._checks import (
  check_array,
  check_batch,
  check_count,
  check_key,
  check_option,
  known_values,
  wide_integers,
)
from jaxreg._sharding import gathered, sharding_like
from jaxreg._where import check_where, zero_elsewhere
from jaxreg.augment._images import narrowed
from jaxreg.typing import Array, Key

COUNTS = ("weights", "where")  # entries of a batch that say which examples count


def mixup(
  key: Key,
  batch: Mapping[str, Any],
  *,
  alpha: ArrayLike = 0.2,
  num_classes: int | None = None,
  per_example: bool = True,
) -> dict[str, Any]:
  r"""Mixes each example and its label with another example of the batch.

  .. math:: \tilde x = \lambda x_i + (1 - \lambda) x_j, \quad \tilde y = \lambda y_i + (1 - \lambda) y_j,
    \qquad \lambda \sim \mathrm{Beta}(\alpha, \alpha)

  The labels become soft; `losses.softmax_cross_entropy`, `losses.focal` and others take soft labels. No label
  smoothing is added. Partners are drawn among the examples that count, uniformly; an example that does not
  count is mixed with none. With weights, :math:`y_i` counts :math:`\lambda w_i`, :math:`y_j` counts
  :math:`(1 - \lambda) w_j`, and the weight of the pair is their sum: an example teaches as its weight says.

  Args:
    key: one draw of `[2, batch]` (or `[2, 1]`) for the shares, and a permutation of the batch.
    batch: `inputs` `[batch, ...]`, uint8 or floating; `labels` `[batch]`, integer; or floating: probabilities
      `[batch, classes]`, or numbers `[batch, ...]`; other entries pass through. An example does not count if
      its `weights` are 0 or its `where` is False, or if it has no label: -1, or NaN. `weights` and `where`
      are `[batch]` or have more of the labels' leading axes; then each entry of the labels counts by itself,
      and the result has `weights`. A label out of range becomes NaN, or is refused if it is known and its
      example counts.
    alpha: above 0; towards 0 the examples stay unmixed.
    num_classes: needed for integer labels; static.
    per_example: whether each example draws its own share, or the batch draws one, as in the paper.

  Example:
    >>> batch = {"inputs": jnp.zeros((2, 4)), "labels": jnp.array([0, 1])}
    >>> mix = lambda key, batch: mixup(key, batch, num_classes=10)
    >>> jax.eval_shape(mix, jax.random.key(0), batch)["labels"].shape
    (2, 10)

  References:
    Zhang et al., `mixup: Beyond Empirical Risk Minimization`, 2018, section 2.
  """
  labels = soft_labels(batch, num_classes)
  x = jnp.asarray(batch["inputs"])
  if not (jnp.issubdtype(x.dtype, jnp.floating) or x.dtype == jnp.uint8):
    raise TypeError(f"inputs must be uint8 or floating, got {x.dtype}")
  check_option(alpha, "alpha", (), low=0, open_low=True)
  for_share, for_order = jax.random.split(check_key(key))
  share = beta(for_share, alpha, x.shape[0] if per_example else 1)
  other = partners(for_order, counting(batch, labels))

  def mix(x):
    return mixed(x, shuffled(x, other), share)

  return {**batch, "inputs": mix(x), **mixed_labels(batch, labels, other, share)}


def counting(batch: Mapping[str, Any], labels: Array) -> Array:
  """Computes which examples count, `[batch]`: those with a label, and without a weight or `where` of 0.

  `labels` are those of `soft_labels`.
  """
  counts = jnp.isfinite(labels).any(axis=range(1, labels.ndim))
  for entry in _entries(batch, labels.shape):
    counts &= (jnp.asarray(entry) != 0).any(axis=range(1, np.ndim(entry)))
  return counts


def _entries(batch: Mapping[str, Any], shape: tuple[int, ...]) -> list[Any]:
  """Returns what the batch says of which examples count, for soft labels of a shape."""
  entries = [batch[name] for name in COUNTS if batch.get(name) is not None]
  for entry in entries:
    if np.shape(entry) != shape[: max(np.ndim(entry), 1)]:
      raise ValueError(
        f"weights and where must have the leading axes of the soft labels {shape}, got {np.shape(entry)}"
      )
  return entries


def partners(key: Key, counts: Array) -> Array:
  """Draws a permutation of the examples that count, `[batch]`; every other example is its own partner."""
  counts, number = gathered(counts), counts.shape[0]
  order = jax.random.permutation(key, number)
  drawn = order[jnp.argsort(~counts[order], stable=True)]  # those that count come first, in random order
  return jnp.where(counts, drawn[jnp.cumsum(counts) - 1], jnp.arange(number))


def soft_labels(batch: Mapping[str, Any], num_classes: int | None) -> Array:
  """Returns `batch["labels"]` as `[batch, classes]`: one-hot, or unchanged if they are floating.

  A label out of range, such as the -1 of an example without one, makes its row NaN, because there is nothing
  to mix.
  """
  check_batch(batch, "inputs", "labels")
  raw_labels = batch["labels"]
  labels = check_array(raw_labels, "labels")
  if jnp.issubdtype(labels.dtype, jnp.floating):
    if labels.ndim < 1:
      raise ValueError("labels must be [batch, ...], got a scalar")
    return labels
  if not jnp.issubdtype(labels.dtype, jnp.integer):
    raise TypeError(f"labels must be integers, or floats for several classes or numbers, got {labels.dtype}")
  if num_classes is None:
    raise ValueError("num_classes must be given for integer labels, got None")
  check_count(num_classes, "num_classes")
  one_hot = jax.nn.one_hot(wide_integers(labels), num_classes)
  known, entries = known_values(raw_labels), [*map(known_values, _entries(batch, one_hot.shape))]
  if known is not None and all(entry is not None for entry in entries):
    counts = [(entry != 0).reshape(len(labels), -1).any(axis=1) for entry in entries if entry is not None]
    known = known[np.logical_and.reduce([np.ones(len(labels), bool), *counts])]
  else:
    known = None
  if known is not None and known.size and not (known.min() >= 0 and known.max() < num_classes):
    raise ValueError(
      f"labels must lie in [0, {num_classes}), got {known.min()} to {known.max()}; "
      "an example without a label cannot be mixed"
    )
  return jnp.where(one_hot.any(axis=-1, keepdims=True), one_hot, jnp.nan)


def beta(key: Key, alpha: ArrayLike, number: int) -> Array:
  """Draws shares `[number]` from Beta(alpha, alpha), in logarithms, so that no share underflows."""
  one, other = jax.random.loggamma(key, alpha, (2, number))
  return jax.nn.sigmoid(one - other)


def shuffled(x: Array, order: Array) -> Array:
  """`x[order]`, split over devices like `x`."""
  return x.at[order].get(out_sharding=sharding_like(x))


def mixed_labels(batch: Mapping[str, Any], labels: Array, other: Array, share: Array) -> dict[str, Array]:
  """Returns the mixed labels, and the weights of the pairs if examples or entries have weights."""
  weights: Any = batch.get("weights")
  where: Any = batch.get("where")
  by_entry = np.ndim(where) > 1
  if by_entry:
    weights = jnp.ones(np.shape(where), jnp.float32) if weights is None else jnp.asarray(weights)
    weights = zero_elsewhere(check_where(where, weights.shape), weights)
  if weights is None:
    return {"labels": mixed(labels, shuffled(labels, other), share)}
  own = jnp.asarray(weights, jnp.promote_types(jnp.result_type(weights), jnp.float32))
  if own.ndim > 1:  # an entry of weight 0 has a partner, and 0 times NaN would be NaN
    labels = zero_elsewhere(own != 0, labels)
  theirs = shuffled(own, other)
  share = share.astype(own.dtype).reshape(-1, *[1] * (own.ndim - 1))
  total = theirs + share * (own - theirs)  # exact where both weights are equal
  portion = jnp.where(total > 0, share * own / jnp.where(total > 0, total, 1), share)
  new = {"labels": mixed(labels, shuffled(labels, other), portion), "weights": total}
  return {**new, "where": total > 0} if by_entry else new


def mixed(x: Array, other: Array, share: Array) -> Array:
  """`share * x + (1 - share) * other`, of the dtype of `x`, with `share` `[batch, ...]` or `[1]`."""
  dtype = jnp.promote_types(x.dtype, jnp.float32)
  share = share.astype(dtype).reshape(*share.shape, *[1] * (x.ndim - share.ndim))
  return narrowed(share * x.astype(dtype) + (1 - share) * other.astype(dtype), x.dtype)

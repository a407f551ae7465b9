"""Parts shared by mixup and CutMix: soft labels, shares, and pixels cast back to their dtype."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_batch, known_values
from jaxreg._sharding import sharding_like
from jaxreg.typing import Array, Key


def soft_labels(batch: Mapping[str, Any], num_classes: int | None) -> Array:
  """Returns `batch["labels"]` as `[batch, classes]`: one-hot, or unchanged if they are floating.

  A label out of range, such as the -1 of an example without one, makes its row NaN, because there is nothing
  to mix.
  """
  check_batch(batch, "inputs", "labels")
  given = batch["labels"]
  labels = jnp.asarray(given)
  if jnp.issubdtype(labels.dtype, jnp.floating):
    if labels.ndim < 1:
      raise ValueError("labels must be [batch, ...], got a scalar")
    return labels
  if num_classes is None:
    raise ValueError("num_classes must be given for integer labels, got None")
  known = known_values(given)
  if known is not None and known.size and not (known.min() >= 0 and known.max() < num_classes):
    raise ValueError(
      f"labels must lie in [0, {num_classes}), got {known.min()} to {known.max()}; "
      "an example without a label cannot be mixed"
    )
  one_hot = jax.nn.one_hot(labels, num_classes)
  return jnp.where(one_hot.any(axis=-1, keepdims=True), one_hot, jnp.nan)


def beta(key: Key, alpha: ArrayLike, number: int) -> Array:
  """Draws shares from Beta(alpha, alpha) by `[2, number]` log-gammas in one draw; none underflows."""
  one, other = jax.random.loggamma(key, alpha, (2, number))
  return jax.nn.sigmoid(one - other)


def shuffled(x: Array, order: Array) -> Array:
  """`x[order]`, split over devices like `x`."""
  return x.at[order].get(out_sharding=sharding_like(x))


def mixed(x: Array, other: Array, share: Array) -> Array:
  """`share * x + (1 - share) * other`, of the dtype of `x`, with `share` `[batch]` or `[1]`."""
  dtype = jnp.promote_types(x.dtype, jnp.float32)
  share = share.astype(dtype).reshape(-1, *[1] * (x.ndim - 1))
  return narrowed(share * x.astype(dtype) + (1 - share) * other.astype(dtype), x.dtype)


def narrowed(x: Array, dtype: Any) -> Array:
  """Casts to `dtype`; integers are rounded to the nearest, because rounding down would darken the image."""
  return (x if jnp.issubdtype(dtype, jnp.floating) else jnp.round(x)).astype(dtype)

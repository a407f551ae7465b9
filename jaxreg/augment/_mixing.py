"""What mixup and CutMix share: soft labels, partners, pixels back in their dtype."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg.typing import Array, Key, check_batch


def soft_labels(batch: Mapping[str, Any], num_classes: int | None) -> Array:
  """`batch["labels"]` as `[batch, classes]`: one-hot, or as they are where they are soft already.

  Raises:
    TypeError: if the batch is no mapping.
    ValueError: if there are none or no inputs, or integers come without their number of classes.
  """
  check_batch(batch, "inputs", "labels")
  labels = jnp.asarray(batch["labels"])
  if jnp.issubdtype(labels.dtype, jnp.floating):
    if labels.ndim < 2:
      raise ValueError(f"soft labels must be [batch, classes], got {labels.shape}")
    return labels
  if num_classes is None:
    raise ValueError("num_classes must be given for integer labels, got None")
  return jax.nn.one_hot(labels, num_classes)


def beta(key: Key, alpha: ArrayLike, number: int) -> Array:
  """Shares from Beta(alpha, alpha), in one draw of `[2, number]` log-gammas: none underflows."""
  one, other = jax.random.loggamma(key, alpha, (2, number))
  return jax.nn.sigmoid(one - other)


def mixed(x: Array, other: Array, share: Array) -> Array:
  """`share * x + (1 - share) * other`, of the dtype of `x`, with `share` `[batch]` or `[1]`."""
  dtype = jnp.promote_types(x.dtype, jnp.float32)
  share = share.astype(dtype).reshape(-1, *[1] * (x.ndim - 1))
  return narrowed(share * x.astype(dtype) + (1 - share) * other.astype(dtype), x.dtype)


def narrowed(x: Array, dtype: Any) -> Array:
  """In `dtype`; integers rounded to the nearest rather than down, which would darken."""
  return (x if jnp.issubdtype(dtype, jnp.floating) else jnp.round(x)).astype(dtype)

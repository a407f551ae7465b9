"""The images of a batch, channels last, and rectangles of their pixels."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from jaxreg._checks import check_batch, check_channel_axis
from jaxreg.typing import Array


def images(batch: Mapping[str, Any], channel_axis: int = -1) -> Array:
  """Returns `batch["inputs"]` as `[batch, height, width, channels]`, wherever its channels are."""
  check_batch(batch, "inputs")
  x = jnp.asarray(batch["inputs"])
  if x.ndim != 4:
    raise ValueError(f"inputs must be images [batch, height, width, channels], got {x.shape}")
  check_channel_axis(channel_axis, (-3, -2, -1, 1, 2, 3))
  return jnp.moveaxis(x, channel_axis, -1)


def with_images(batch: Mapping[str, Any], x: Array, channel_axis: int) -> dict[str, Any]:
  """Returns the batch with `x`, channels last, in place of its inputs."""
  return {**batch, "inputs": jnp.moveaxis(x, -1, channel_axis)}


def narrowed(x: Array, dtype: Any) -> Array:
  """Casts to `dtype`; integers are rounded to the nearest, because rounding down would darken the image."""
  return (x if jnp.issubdtype(dtype, jnp.floating) else jnp.round(x)).astype(dtype)


def inside_box(image: tuple[int, int], top: Array, left: Array, height: Array, width: Array) -> Array:
  """The pixels inside a box, `[batch, rows, columns, 1]`, bool; parts outside the image are cut off."""
  return _between(image[0], top, height)[:, :, None, None] & _between(image[1], left, width)[:, None, :, None]


def _between(size: int, start: Array, length: Array) -> Array:
  position = jnp.arange(size)[None, :] - start[:, None]
  return (position >= 0) & (position < length[:, None])

"""Rectangles of pixels, one for each image."""

import jax.numpy as jnp

from jaxreg.typing import Array


def inside_box(image: tuple[int, int], top: Array, left: Array, height: Array, width: Array) -> Array:
  """The pixels inside a box, `[batch, rows, columns, 1]`, bool; parts outside the image are cut off."""
  return _between(image[0], top, height)[:, :, None, None] & _between(image[1], left, width)[:, None, :, None]


def _between(size: int, start: Array, length: Array) -> Array:
  position = jnp.arange(size)[None, :] - start[:, None]
  return (position >= 0) & (position < length[:, None])

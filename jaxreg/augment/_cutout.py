"""Cutout and random erasing: a constant replaces a box in each image."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_ends, check_key, check_option, check_range
from jaxreg._errors import ArgumentError
from jaxreg.augment._images import images, inside_box, with_images
from jaxreg.augment._moved import masks_of, outside
from jaxreg.typing import Array, Key


def cutout(
  key: Key, batch: Mapping[str, Any], *, size: ArrayLike = 16, fill: float = 0.0, channel_axis: int = -1
) -> dict[str, Any]:
  """Fills a square of `size` pixels around a random pixel of each image, cut off at the image's edge.

  Args:
    key: one draw of `[2, batch]`.
    batch: `inputs` `[batch, height, width, channels]`; a box of `masks` is filled, too, and other entries
      pass through.
    size: side of the square in pixels, at least 0; a quarter to a half of the image in the paper.
    fill: value of the pixels in it.
    channel_axis: the axis of the channels in the inputs: 1 for `[batch, channels, height, width]`.

  Example:
    >>> batch = {"inputs": jnp.ones((1, 1, 4, 1))}
    >>> jax.jit(lambda key: cutout(key, batch, size=1)["inputs"].sum())(jax.random.key(0))
    Array(3., dtype=float32)

  References:
    DeVries and Taylor, `Improved Regularization of Convolutional Neural Networks with Cutout`, 2017,
    section 3.2.
  """
  x = images(batch, channel_axis)
  check_range(size, "size", low=0)
  number, height, width, _ = x.shape
  row, column = jax.random.uniform(check_key(key), (2, number))
  whole = 2 * max(height, width)  # fills any image from any place
  side = jnp.broadcast_to(jnp.minimum(size, whole).astype(int), (number,))
  top = jnp.floor(height * row).astype(int) - side // 2
  left = jnp.floor(width * column).astype(int) - side // 2
  box = inside_box((height, width), top, left, side, side)
  return _filled(batch, x, box, fill, channel_axis)


def random_erasing(
  key: Key,
  batch: Mapping[str, Any],
  *,
  rate: ArrayLike = 0.5,
  area: tuple[float, float] = (0.02, 0.4),
  max_aspect: float = 1 / 0.3,
  fill: float = 0.0,
  channel_axis: int = -1,
) -> dict[str, Any]:
  """Fills a box of random area, shape and place in each image with probability `rate`.

  The box lies inside the image: a box that is too high or wide is shortened; the paper draws again. In the
  paper the aspect ratio is uniform; here its logarithm is, so that high and wide boxes are equally likely.

  Args:
    key: one draw of `[5, batch]`.
    rate: probability of a box, in [0, 1].
    area: least and largest area of the box, as parts of the image; static.
    max_aspect: largest ratio of the longer to the shorter side, at least 1; static.
    batch, fill, channel_axis: as in `cutout`.

  Example:
    >>> batch = {"inputs": jnp.ones((1, 4, 4, 1))}
    >>> erase = lambda key: random_erasing(key, batch, rate=1.0, area=(0.25, 0.25), max_aspect=1.0)
    >>> jax.jit(erase)(jax.random.key(0))["inputs"].sum()
    Array(12., dtype=float32)

  References:
    Zhong et al., `Random Erasing Data Augmentation`, 2020, section 3.2.
  """
  x = images(batch, channel_axis)
  check_option(rate, "rate", (), low=0, high=1)
  least, most = check_ends(area, "area")
  for end in (least, most):
    check_option(end, "area", (), low=0, high=1)
  if not least <= most:
    raise ArgumentError("area", f"must be two numbers in order, got {area}")
  check_range(max_aspect, "max_aspect", low=1)
  number, height, width, _ = x.shape
  chosen, part, aspect, row, column = jax.random.uniform(check_key(key), (5, number))
  pixels = height * width * (area[0] + (area[1] - area[0]) * part)
  stretch = jnp.exp((aspect - 0.5) * math.log(max_aspect))  # root of the ratio of the sides
  rows = jnp.clip(jnp.round(jnp.sqrt(pixels) * stretch), 1, height).astype(int)
  columns = jnp.clip(jnp.round(jnp.sqrt(pixels) / stretch), 1, width).astype(int)
  top = jnp.floor(row * (height - rows + 1)).astype(int)
  left = jnp.floor(column * (width - columns + 1)).astype(int)
  box = inside_box((height, width), top, left, rows, columns) & (chosen < rate)[:, None, None, None]
  return _filled(batch, x, box, fill, channel_axis)


def _filled(batch: Mapping[str, Any], x: Array, box: Array, fill: float, channel_axis: int) -> dict[str, Any]:
  """The batch with constants in the box: pixels of a mask there have no label."""
  check_range(fill, "fill")
  batch = with_images(batch, jnp.where(box, jnp.asarray(fill, x.dtype), x), channel_axis)
  if "masks" in batch:
    masks = masks_of(batch, x.shape[1:3])
    batch["masks"] = jnp.where(box, jnp.asarray(outside(masks), masks.dtype), masks)[..., 0]
  return batch

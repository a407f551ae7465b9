"""Random crops of a drawn area and shape, resized to the size of the image."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxreg._checks import check_ends, check_key, check_option
from jaxreg._errors import ArgumentError
from jaxreg._sharding import partitioned
from jaxreg.augment._images import images, narrowed, with_images
from jaxreg.augment._moved import moved
from jaxreg.typing import Array, Key


def random_resized_crop(
  key: Key,
  batch: Mapping[str, Any],
  *,
  area: tuple[float, float] = (0.08, 1.0),
  aspect: tuple[float, float] = (3 / 4, 4 / 3),
  channel_axis: int = -1,
) -> dict[str, Any]:
  r"""Crops a random rectangle from each image, and resizes it to the image's size.

  .. math:: h = \sqrt{A / r}, \quad w = \sqrt{A r}, \qquad A \sim \mathcal U(\text{area}) \cdot H W, \quad
    \log r \sim \mathcal U(\log \text{aspect})

  A side that is longer than the image becomes as long as the image; torchvision draws again. The resizing is
  `jax.image.scale_and_translate`, linear and with antialiasing.

  Args:
    key: one draw of `[4, batch]`: area, aspect and position.
    area: the least and the largest fraction of the image's area, in (0, 1]; static.
    aspect: the least and the largest ratio of width to height, above 0; static.
    batch, channel_axis: as in `translate`; uint8 or floating.

  Example:
    >>> batch = {"inputs": jnp.ones((2, 4, 4, 1))}
    >>> jax.jit(lambda key: random_resized_crop(key, batch)["inputs"].mean())(jax.random.key(0)).round(4)
    Array(1., dtype=float32)

  References:
    Szegedy et al., `Going Deeper with Convolutions`, 2015, section 6; torchvision, `RandomResizedCrop`.
  """
  x = images(batch, channel_axis)
  for name, pair, high in (("area", area, 1), ("aspect", aspect, math.inf)):
    least, most = check_ends(pair, name)
    for end in (least, most):
      check_option(end, name, (), low=0, high=high, open_low=True, open_high=high == math.inf)
    if not least <= most:
      raise ArgumentError(name, f"must be two numbers in order, got {pair}")
  number, height, width, _ = x.shape
  drawn = jax.random.uniform(check_key(key), (4, number))
  size = (area[0] + (area[1] - area[0]) * drawn[0]) * (height * width)
  low, high = jnp.log(aspect[0]), jnp.log(aspect[1])
  ratio = jnp.exp(low + (high - low) * drawn[1])
  sides = jnp.stack(
    [jnp.minimum(jnp.sqrt(size / ratio), height), jnp.minimum(jnp.sqrt(size * ratio), width)], 1
  )
  whole = jnp.asarray([height, width], sides.dtype)[None]
  corner = drawn[2:].T * (whole - sides)
  scale = whole / sides

  def one(image: Array, scale: Array, corner: Array) -> Array:
    return jax.image.scale_and_translate(image, image.shape, (0, 1), scale, -corner * scale, "linear")

  wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
  resized = narrowed(partitioned(jax.vmap(one), wide, scale, corner), x.dtype)
  batch = moved(batch, (height, width), jnp.eye(2)[None] / scale[:, None], corner - (whole - sides) / 2)
  return with_images(batch, resized, channel_axis)

"""Flips, rotations, scalings, shifts and crops."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_key, check_option, check_range, key_first
from jaxreg._sharding import partitioned
from jaxreg.augment._images import images, narrowed, with_images
from jaxreg.augment._moved import moved, warped
from jaxreg.typing import Array, Key


@key_first
def flip(
  key: Key, batch: Mapping[str, Any], *, rate: ArrayLike = 0.5, channel_axis: int = -1
) -> dict[str, Any]:
  """Mirrors each image left to right with probability `rate`.

  Args:
    key: one draw of `[batch]`.
    rate: probability of a flip, in [0, 1].
    batch, channel_axis: as in `translate`.

  Example:
    >>> batch = {"inputs": jnp.arange(3.0).reshape(1, 1, 3, 1)}
    >>> flip(jax.random.key(0), batch, rate=1.0)["inputs"].ravel()
    Array([2., 1., 0.], dtype=float32)

  References:
    He et al., `Deep Residual Learning for Image Recognition`, 2016, section 4.2.
  """
  x = images(batch, channel_axis)
  check_option(rate, "rate", x.shape[:1], low=0, high=1)
  chosen = jax.random.bernoulli(check_key(key), rate, (x.shape[0],))
  # On rows and columns.
  mirror = jnp.where(chosen[:, None, None], jnp.diag(jnp.array([1.0, -1.0]))[None], jnp.eye(2)[None])
  flipped = jnp.where(chosen[:, None, None, None], x[:, :, ::-1], x)
  return with_images(moved(batch, x.shape[1:3], mirror), flipped, channel_axis)


@key_first
def rotate(
  key: Key,
  batch: Mapping[str, Any],
  *,
  max_degrees: ArrayLike = 15.0,
  fill: float = 0.0,
  channel_axis: int = -1,
) -> dict[str, Any]:
  """Rotates each image about its centre by an angle uniform in `[-max_degrees, max_degrees]`, bilinearly.

  Labels do not change: a rotation can turn a 6 into a 9.

  Args:
    key: one draw of `[batch]`.
    max_degrees: in [0, 180]; positive angles are counterclockwise.
    batch, fill, channel_axis: as in `translate`.

  Example:
    >>> batch = {"inputs": jnp.ones((2, 4, 4, 1))}
    >>> jax.jit(lambda key: rotate(key, batch, max_degrees=0.0)["inputs"].sum())(jax.random.key(0))
    Array(32., dtype=float32)

  References:
    Na, `Regularization for Deep Learning`, lecture, Chonbuk National University, dataset augmentation.
  """
  x = images(batch, channel_axis)
  check_range(max_degrees, "max_degrees", low=0, high=180)
  angle = jax.random.uniform(check_key(key), (x.shape[0],), minval=-1) * max_degrees
  turns = rotations(angle)
  return with_images(moved(batch, x.shape[1:3], turns), warped(x, turns, fill=fill), channel_axis)


def rotations(degrees: Array) -> Array:
  """The sampling matrices of rotated images: `[batch] -> [batch, 2, 2]`, on rows and columns."""
  cos, sin = jnp.cos(jnp.deg2rad(degrees)), jnp.sin(jnp.deg2rad(degrees))
  return jnp.stack([jnp.stack([cos, sin], -1), jnp.stack([-sin, cos], -1)], -2)


@key_first
def scale(
  key: Key,
  batch: Mapping[str, Any],
  *,
  max_factor: ArrayLike = 1.2,
  fill: float = 0.0,
  channel_axis: int = -1,
) -> dict[str, Any]:
  """Scales each image about its centre by a factor from `1 / max_factor` to `max_factor`.

  The logarithm of the factor is uniform, so enlarging and reducing are equally likely; sampling is bilinear.

  Args:
    key: one draw of `[batch]`.
    max_factor: at least 1.
    batch, fill, channel_axis: as in `translate`.

  Example:
    >>> batch = {"inputs": jnp.ones((2, 4, 4, 1))}
    >>> jax.jit(lambda key: scale(key, batch, max_factor=1.0)["inputs"].sum())(jax.random.key(0))
    Array(32., dtype=float32)

  References:
    Na, `Regularization for Deep Learning`, lecture, Chonbuk National University, dataset augmentation.
  """
  x = images(batch, channel_axis)
  check_range(max_factor, "max_factor", low=1)
  exponent = jax.random.uniform(check_key(key), (x.shape[0],), minval=-1)
  factor = jnp.exp(exponent * jnp.log(max_factor))
  matrices = jnp.eye(2)[None] / factor[:, None, None]
  return with_images(moved(batch, x.shape[1:3], matrices), warped(x, matrices, fill=fill), channel_axis)


@key_first
def translate(
  key: Key, batch: Mapping[str, Any], *, max_shift: int = 4, fill: float = 0.0, channel_axis: int = -1
) -> dict[str, Any]:
  """Shifts each image by up to `max_shift` pixels along both axes, all shifts equally likely.

  Args:
    key: one draw of `[2, batch]`.
    batch: `inputs` `[batch, height, width, channels]`; masks, boxes and points move along.
    max_shift: largest shift in pixels, at least 0 and at most the height and width.
    fill: value of pixels from outside the image.
    channel_axis: the axis of the channels in the inputs: 1 for `[batch, channels, height, width]`.

  Example:
    >>> batch = {"inputs": jnp.ones((2, 4, 4, 1))}
    >>> translate(jax.random.key(0), batch, max_shift=0)["inputs"].sum()
    Array(32., dtype=float32)
  """
  x = images(batch, channel_axis)
  number, height, width, _ = x.shape
  check_range(max_shift, "max_shift", low=0, high=min(height, width))
  down, right = jax.random.randint(check_key(key), (2, number), -max_shift, max_shift + 1)
  matrices = jnp.broadcast_to(jnp.eye(2), (number, 2, 2))
  batch = moved(batch, (height, width), matrices, -jnp.stack([down, right], axis=-1).astype(float))
  shifted = _shift(_shift(x, down, axis=1, fill=fill), right, axis=2, fill=fill)
  return with_images(batch, shifted, channel_axis)


@key_first
def pad_crop(
  key: Key, batch: Mapping[str, Any], *, padding: int = 4, fill: float = 0.0, channel_axis: int = -1
) -> dict[str, Any]:
  """Pads each image on all sides and crops it back at a random place: `translate` by up to `padding`.

  This is the CIFAR augmentation of the residual network papers.

  Args:
    padding: width of the padding in pixels.
    key, batch, fill, channel_axis: as in `translate`.

  Example:
    >>> batch = {"inputs": jnp.ones((2, 32, 32, 3))}
    >>> pad_crop(jax.random.key(0), batch)["inputs"].shape
    (2, 32, 32, 3)

  References:
    He et al., `Deep Residual Learning for Image Recognition`, 2016, section 4.2.
  """
  check_range(padding, "padding", low=0, high=min(images(batch, channel_axis).shape[1:3]))
  return translate(key, batch, max_shift=padding, fill=fill, channel_axis=channel_axis)


@key_first
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
    area: the least and the largest fraction of the image's area, in (0, 1].
    aspect: the least and the largest ratio of width to height, above 0.
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
    if len(pair) != 2 or not pair[0] <= pair[1]:
      raise ValueError(f"{name} must be two numbers in order, got {pair}")
    check_range(pair[0], name, low=0, high=high, open_low=True)
    check_range(pair[1], name, low=0, high=high)
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


def _shift(x: Array, by: Array, *, axis: int, fill: float) -> Array:
  # One gather per axis: no slice per example, and the array stays sharded over the batch.
  size = x.shape[axis]
  source = jnp.arange(size)[None, :] - by[:, None]
  shape = [x.shape[0], *(size if a == axis else 1 for a in range(1, x.ndim))]
  inside = ((source >= 0) & (source < size)).reshape(shape)
  moved = jnp.take_along_axis(x, jnp.clip(source, 0, size - 1).reshape(shape), axis=axis)
  return jnp.where(inside, moved, jnp.asarray(fill, x.dtype))

"""Random translations, and pad-and-crop, which is one."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxreg._checks import check_key, check_range
from jaxreg.augment._images import images, with_images
from jaxreg.augment._moved import moved
from jaxreg.typing import Array, Key


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
  check_range(fill, "fill")
  down, right = jax.random.randint(check_key(key), (2, number), -max_shift, max_shift + 1)
  matrices = jnp.broadcast_to(jnp.eye(2), (number, 2, 2))
  batch = moved(batch, (height, width), matrices, -jnp.stack([down, right], axis=-1).astype(float))
  shifted = _shift(_shift(x, down, axis=1, fill=fill), right, axis=2, fill=fill)
  return with_images(batch, shifted, channel_axis)


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


def _shift(x: Array, by: Array, *, axis: int, fill: float) -> Array:
  # One gather per axis: no slice per example, and the array stays sharded over the batch.
  size = x.shape[axis]
  source = jnp.arange(size)[None, :] - by[:, None]
  shape = [x.shape[0], *(size if a == axis else 1 for a in range(1, x.ndim))]
  inside = ((source >= 0) & (source < size)).reshape(shape)
  moved = jnp.take_along_axis(x, jnp.clip(source, 0, size - 1).reshape(shape), axis=axis)
  return jnp.where(inside, moved, jnp.asarray(fill, x.dtype))

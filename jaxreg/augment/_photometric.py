"""Operations that change pixel values but not positions: `(x, level) -> x`, values in [0, 1].

`x` is `[batch, height, width, channels]`, floating, and `level` `[batch]` in [-1, 1]. A level of 0 changes
nothing, unless the operation says otherwise; an operation without a direction takes the absolute level.
"""

import jax
import jax.numpy as jnp

from jaxreg._sharding import partitioned
from jaxreg.typing import Array

# The largest difference of an enhancement's factor from 1, and the largest number of bits dropped out of 8.
CHANGE, BITS = 0.9, 4
LUMA = (0.299, 0.587, 0.114)


def autocontrast(x: Array, level: Array) -> Array:
  """Stretches each channel to the whole range, whatever the level."""
  del level
  low, high = x.min(axis=(1, 2), keepdims=True), x.max(axis=(1, 2), keepdims=True)
  return jnp.where(high > low, (x - low) / jnp.where(high > low, high - low, 1), x)


def brightness(x: Array, level: Array) -> Array:
  return _enhanced(x, jnp.zeros_like(x), level)


def color(x: Array, level: Array) -> Array:
  """Moves colours towards grey or away from it; an image without colours does not change."""
  return _enhanced(x, grey(x), level)


def contrast(x: Array, level: Array) -> Array:
  return _enhanced(x, grey(x).mean(axis=(1, 2), keepdims=True), level)


def equalize(x: Array, level: Array) -> Array:
  """Spreads the 256 values of each channel to about equal frequencies, whatever the level.

  Images with fewer pixels than values do not change.
  """
  del level
  batch, height, width, channels = x.shape
  values = jnp.round(255 * jnp.moveaxis(x, -1, 1).reshape(batch, channels, -1)).astype(jnp.int32)

  # Each pixel's number of darker pixels, which is the cumulative histogram at its value.
  def rank(v):
    return jnp.searchsorted(jnp.sort(v), v)

  darker = partitioned(jax.vmap(jax.vmap(rank)), values)
  brightest = jnp.sum(values == values.max(-1, keepdims=True), axis=-1, keepdims=True)
  step = (height * width - brightest) // 255
  spread = jnp.minimum((step // 2 + darker) // jnp.maximum(step, 1), 255)
  equal = jnp.where(step > 0, spread, values).reshape(batch, channels, height, width)
  return jnp.moveaxis(equal, 1, -1).astype(x.dtype) / 255


def hue(x: Array, turn: Array) -> Array:
  """Turns the hue by `turn` rounds at the same saturation and value; only images of three channels change."""
  if x.shape[-1] != 3:
    return x
  red, green, blue = (x[..., channel] for channel in range(3))
  value = x.max(axis=-1)
  chroma = value - x.min(axis=-1)
  # In sixths of a round. Grey has chroma 0, so its hue has no effect.
  some = jnp.where(chroma > 0, chroma, 1)
  sixths = jnp.where(value == green, 2 + (blue - red) / some, 4 + (red - green) / some)
  sixths = jnp.where(value == red, (green - blue) / some, sixths) + 6 * turn[:, None, None]
  # Each channel falls short of the value by the chroma, or by a part of it, near the hue opposite to its own.
  apart = jnp.mod(sixths[..., None] + jnp.asarray([5, 3, 1], x.dtype)[None, None, None], 6)
  short = jnp.clip(jnp.minimum(apart, 4 - apart), 0, 1)
  turned = value[..., None] - chroma[..., None] * short
  return jnp.where(turn[:, None, None, None] == 0, x, turned)


def invert(x: Array, level: Array) -> Array:
  """Mirrors the values, whatever the level."""
  del level
  return 1 - x


def posterize(x: Array, level: Array) -> Array:
  """Drops up to 4 of the lowest bits out of 8."""
  bits = jnp.round(BITS * jnp.abs(level)).astype(jnp.int32)[:, None, None, None]
  # On whole numbers: in floating point the value 64 / 256 may fall just short.
  return ((jnp.round(255 * x).astype(jnp.int32) >> bits) << bits).astype(x.dtype) / 255


def sharpness(x: Array, level: Array) -> Array:
  """Moves towards a 3x3 blur with centre weight 5, or away from it; edge pixels do not change."""
  height, width = x.shape[1:3]
  # The gradient of reduce_window needs a constant zero; a jnp zero is not constant under jit.
  blurred = jax.lax.reduce_window(x, 0.0, jax.lax.add, (1, 3, 3, 1), (1, 1, 1, 1), "SAME")
  rows, columns = (jnp.arange(size)[:, None] for size in (height, width))

  def inside(i, size):
    return (i > 0) & (i < size - 1)

  middle = inside(rows, height) & inside(columns, width).T
  return _enhanced(x, jnp.where(middle[None, :, :, None], (blurred + 4 * x) / 13, x), level)


def solarize(x: Array, level: Array) -> Array:
  """Inverts values at or above a threshold, which falls from beyond 1 to 0 with the level."""
  threshold = (256 / 255) * (1 - jnp.abs(level))[:, None, None, None]
  return jnp.where(x >= threshold, 1 - x, x)


def grey(x: Array) -> Array:
  """`[batch, height, width, 1]`: the luma of three channels, the mean of any other number."""
  if x.shape[-1] != 3:
    return x.mean(axis=-1, keepdims=True)
  return (x * jnp.asarray(LUMA, x.dtype)[None, None, None]).sum(axis=-1, keepdims=True)


def _enhanced(x: Array, plain: Array, level: Array) -> Array:
  factor = (1 + CHANGE * level)[:, None, None, None]
  return jnp.clip(plain + factor * (x - plain), 0, 1)

"""What changes the values of pixels and leaves them where they are: `(x, level) -> x`, values in [0, 1].

`x` is `[batch, height, width, channels]`, floating, and `level` `[batch]` in [-1, 1]. A level of 0 changes
nothing; what has no direction takes its size.
"""

import jax
import jax.numpy as jnp

from jaxreg.typing import Array

# By how much the factor of an enhancement may differ from 1, and how many of 8 bits may go.
CHANGE, BITS = 0.9, 4
LUMA = (0.299, 0.587, 0.114)


def autocontrast(x: Array, level: Array) -> Array:
  """Stretches each channel to the whole range, at every level."""
  del level
  low, high = x.min(axis=(1, 2), keepdims=True), x.max(axis=(1, 2), keepdims=True)
  return jnp.where(high > low, (x - low) / jnp.where(high > low, high - low, 1), x)


def brightness(x: Array, level: Array) -> Array:
  return _enhanced(x, jnp.zeros_like(x), level)


def color(x: Array, level: Array) -> Array:
  """From and beyond grey; of images without colours, nothing."""
  return _enhanced(x, grey(x), level)


def contrast(x: Array, level: Array) -> Array:
  return _enhanced(x, grey(x).mean(axis=(1, 2), keepdims=True), level)


def equalize(x: Array, level: Array) -> Array:
  """Spreads the 256 values of each channel so that all are about equally frequent, at every level.

  Images of fewer pixels than values stay as they are.
  """
  del level
  batch, height, width, channels = x.shape
  values = jnp.round(255 * jnp.moveaxis(x, -1, 1).reshape(batch, channels, -1)).astype(jnp.int32)
  # Pixels that are darker, for each pixel: the cumulated histogram at its value, without a histogram.
  darker = jax.vmap(jax.vmap(lambda v: jnp.searchsorted(jnp.sort(v), v)))(values)
  brightest = jnp.sum(values == values.max(-1, keepdims=True), axis=-1, keepdims=True)
  step = (height * width - brightest) // 255
  spread = jnp.minimum((step // 2 + darker) // jnp.maximum(step, 1), 255)
  equal = jnp.where(step > 0, spread, values).reshape(batch, channels, height, width)
  return jnp.moveaxis(equal, 1, -1).astype(x.dtype) / 255


def posterize(x: Array, level: Array) -> Array:
  """Drops the last of 8 bits, up to 4 of them."""
  bits = jnp.round(BITS * jnp.abs(level)).astype(jnp.int32)[:, None, None, None]
  # On whole numbers: in floating point a value of 64 / 256 may fall just short of it.
  return ((jnp.round(255 * x).astype(jnp.int32) >> bits) << bits).astype(x.dtype) / 255


def sharpness(x: Array, level: Array) -> Array:
  """From and beyond a blur of three by three pixels that weighs the middle five times; the edge stays."""
  height, width = x.shape[1:3]
  # Its gradient needs the zero to be a constant, which one of jnp is not under jit.
  blurred = jax.lax.reduce_window(x, 0.0, jax.lax.add, (1, 3, 3, 1), (1, 1, 1, 1), "SAME")
  rows, columns = (jnp.arange(size)[:, None] for size in (height, width))
  inside = lambda i, size: (i > 0) & (i < size - 1)
  middle = inside(rows, height) & inside(columns, width).T
  return _enhanced(x, jnp.where(middle[None, :, :, None], (blurred + 4 * x) / 13, x), level)


def solarize(x: Array, level: Array) -> Array:
  """Inverts what is at or above a threshold that falls from beyond 1 to 0."""
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

"""DropBlock: dropout of contiguous regions of feature maps."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_channel_axis, check_count, check_floating, check_key, check_option
from jaxreg._errors import ArgumentError
from jaxreg._sharding import placed_like
from jaxreg.typing import Array, Key


def drop_block(
  key: Key | None,
  x: ArrayLike,
  *,
  rate: ArrayLike,
  block_size: int | tuple[int, int] = 7,
  per_channel: bool = True,
  channel_axis: int = -1,
  inverted: bool = True,
) -> Array:
  r"""Sets square regions of feature maps to zero, so that each entry is dropped with probability `rate`.

  .. math:: y = \frac{m \odot x}{1 - \text{rate}}, \qquad m_{hw} = \prod_{i, j < b} (1 - s_{h + i, w + j}),
    \qquad s \sim \mathrm{Ber}(\gamma), \quad \gamma = 1 - (1 - \text{rate})^{1 / b^2}

  Blocks may overlap and hang over the edge. Every position lies in `b * b` possible blocks, so each is
  dropped with probability exactly `rate`. The paper's `gamma = rate / b^2 * h * w / ((h - b + 1) (w - b +
  1))` is for blocks inside the map and treats overlaps as negligible. It drops less than `rate`, and still
  less at the edges, and the paper scales by the fraction that happens to be kept.

  Args:
    key, inverted: as in `dropout`.
    x: `[..., height, width, channels]`, floating.
    rate: probability of dropping an entry, in [0, 1]; may be traced: the paper lets it grow from 0.
    block_size: `b`, or height and width of a block; odd or even. 1 is dropout.
    per_channel: whether each channel of an example has its own blocks, which the paper found better, or all
      share them.
    channel_axis: the axis of the channels, counted from the end: -3 for `[..., channels, height, width]`.

  Raises:
    ValueError: if a block is larger than the image.

  Example:
    >>> drop_block(jax.random.key(0), jnp.ones((5, 6, 1)), rate=0.3, block_size=2, inverted=False)[..., 0]
    Array([[0., 0., 0., 0., 1., 1.],
           [0., 0., 0., 0., 1., 1.],
           [0., 0., 1., 1., 1., 1.],
           [0., 1., 1., 1., 1., 1.],
           [1., 1., 1., 1., 1., 1.]], dtype=float32)

  References:
    Ghiasi, Lin and Le, `DropBlock: A regularization method for convolutional networks`, 2018, section 3.
  """
  x = check_floating(x, "x")
  if x.ndim < 3:
    raise ValueError(f"x must have shape [..., height, width, channels], got {x.shape}")
  check_channel_axis(channel_axis, (-3, -2, -1))
  *positions, channels = jnp.moveaxis(x, channel_axis, -1).shape
  shape = (*positions, channels if per_channel else 1)
  block = _check_block(rate, block_size, shape)
  if key is None:
    return x
  mask = placed_like(jnp.moveaxis(_mask(key, shape, rate, block), -1, channel_axis), x)
  keep = 1 - jnp.asarray(rate, jnp.promote_types(x.dtype, jnp.float32))
  scale = 1 / jnp.where(keep > 0, keep, 1) if inverted else 1
  return jnp.where(mask, (x * scale).astype(x.dtype), jnp.zeros((), x.dtype))


def _mask(key: Key, shape: tuple[int, ...], rate: ArrayLike, block: tuple[int, int]) -> Array:
  """Draws the kept entries: `[..., height, width, channels]`, bool, true with probability `1 - rate`."""
  *leading, height, width, channels = shape
  # This is 1 - gamma, so that a block of one entry gives `dropout_mask`.
  absent = jnp.exp(jnp.log1p(-jnp.asarray(rate, jnp.float32)) / (block[0] * block[1]))
  seeds = jax.random.bernoulli(
    check_key(key), absent, (*leading, height + block[0] - 1, width + block[1] - 1, channels)
  )
  window = (*[1] * len(leading), *block, 1)
  return jax.lax.reduce_window(seeds, True, jax.lax.bitwise_and, window, (1,) * len(window), "VALID")


def _check_block(
  rate: ArrayLike, block_size: int | tuple[int, int], shape: tuple[int, ...]
) -> tuple[int, int]:
  """Checks a block's size and returns its height and width."""
  check_option(rate, "rate", (), low=0, high=1)
  block = block_size if isinstance(block_size, tuple) else (block_size, block_size)
  for size in block:
    check_count(size, "block_size")
  height, width = shape[-3:-1]
  if len(block) != 2 or block[0] > height or block[1] > width:
    raise ArgumentError("block_size", f"must fit in a map of {height}x{width}, got {block_size}")
  return block

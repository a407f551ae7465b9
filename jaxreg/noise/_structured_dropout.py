"""Dropout of whole feature maps, sequences or residual branches: masks that axes share."""

from __future__ import annotations

from jax.typing import ArrayLike

from jaxreg._checks import (
  check_axes,
  check_batched,
  check_channel_axis,
  check_choice,
  check_count,
  check_floating,
  check_option,
)
from jaxreg.noise._dropout import dropout
from jaxreg.typing import Array, Key


def spatial_dropout(
  key: Key | None,
  x: ArrayLike,
  *,
  rate: ArrayLike,
  num_spatial: int = 2,
  channel_axis: int = -1,
  inverted: bool = True,
) -> Array:
  r"""Sets each channel of each example to zero at all positions at once, with probability `rate`.

  .. math:: y_{hwc} = \frac{m_c\, x_{hwc}}{1 - \text{rate}}, \qquad m_c \sim \mathrm{Ber}(1 - \text{rate})

  Neighbouring positions of a feature map are so alike that dropping single positions removes little.

  Args:
    key, rate, inverted: as in `dropout`.
    x: `[..., *spatial, channels]`, floating.
    num_spatial: number of spatial axes: 1 for sequences, 2 for images, 3 for volumes.
    channel_axis: the axis of the channels, counted from the end: `-1 - num_spatial` if they come first.

  Example:
    >>> spatial_dropout(jax.random.key(2), jnp.ones((2, 2, 3)), rate=0.5)[0]
    Array([[0., 0., 2.],
           [0., 0., 2.]], dtype=float32)

  References:
    Tompson et al., `Efficient Object Localization Using Convolutional Networks`, 2015, section 3.2.
  """
  x = check_floating(x, "x")
  check_count(num_spatial, "num_spatial")
  if x.ndim <= num_spatial:
    raise ValueError(f"x must have {num_spatial} spatial axes and a channel axis, got {x.shape}")
  image = range(-1 - num_spatial, 0)
  check_channel_axis(channel_axis, image)
  axes = tuple(axis for axis in image if axis != channel_axis)
  return dropout(key, x, rate=rate, inverted=inverted, shared_axes=axes)


def recurrent_dropout(
  key: Key | None, x: ArrayLike, *, rate: ArrayLike, time_axis: int = -2, inverted: bool = True
) -> Array:
  r"""Drops the same entries at every time step, with probability `rate`.

  .. math:: y_t = \frac{m \odot x_t}{1 - \text{rate}}, \qquad m \sim \mathrm{Ber}(1 - \text{rate})
    \ \text{once for all}\ t

  This is the variational dropout of Gal and Ghahramani, also known as locked dropout. Semeniuta et al. (2016)
  and Keras use the name recurrent dropout for dropout of the recurrent state, which is another method. Use
  this function for the inputs of a recurrent network. The hidden state is computed inside the scan: draw
  `mask = dropout(key, jnp.ones(h.shape), rate=rate)` before the scan and use `h * mask` in every step.

  Args:
    key, rate, inverted: as in `dropout`.
    x: sequences, `[..., time, features]`, floating.
    time_axis: the axis of time.

  Example:
    >>> recurrent_dropout(jax.random.key(0), jnp.ones((3, 4)), rate=0.5)
    Array([[0., 0., 2., 2.],
           [0., 0., 2., 2.],
           [0., 0., 2., 2.]], dtype=float32)

  References:
    Gal and Ghahramani, `A Theoretically Grounded Application of Dropout in Recurrent Neural Networks`, 2016,
    section 4.
  """
  x = check_floating(x, "x")
  axes = check_axes(time_axis, "time_axis", x.ndim)
  return dropout(key, x, rate=rate, inverted=inverted, shared_axes=axes)


def stochastic_depth(
  key: Key | None,
  x: ArrayLike,
  *,
  rate: ArrayLike,
  per_example: bool = True,
  inverted: bool = True,
) -> Array:
  r"""Sets a residual branch to zero with probability `rate`: `h + stochastic_depth(key, f(h), rate=0.2)`.

  .. math:: y = \frac{b\, x}{1 - \text{rate}}, \qquad b \sim \mathrm{Ber}(1 - \text{rate})

  The paper's rates grow linearly with depth, `rate * l / L` for block `l` of `L`, and it is not inverted.
  Also known as drop path. DropConnect is another method: it drops single weights.

  Args:
    key, rate, inverted: as in `dropout`.
    x: the output of a residual branch, `[batch, ...]`, floating.
    per_example: whether each example draws, or, as in the paper, the whole batch once.

  Example:
    >>> stochastic_depth(jax.random.key(0), jnp.ones((4, 2)), rate=0.5)
    Array([[0., 0.],
           [0., 0.],
           [2., 2.],
           [2., 2.]], dtype=float32)

  References:
    Huang et al., `Deep Networks with Stochastic Depth`, 2016, section 3.
  """
  x = check_batched(x, "x")
  axes = tuple(range(1 if per_example else 0, x.ndim))
  return dropout(key, x, rate=rate, inverted=inverted, shared_axes=axes)


def drop_path_rates(rate: ArrayLike, num_blocks: int, *, schedule: str = "linear") -> list[ArrayLike]:
  r"""Computes the probability of dropping for each block.

  .. math:: r_l = \frac{l}{L} r \ \text{(linear)}, \quad \frac{l - 1}{L - 1} r \ \text{(linear from zero)},
    \quad r \ \text{(constant)}, \qquad l = 1, \dots, L

  Args:
    rate: `r`, the probability for the last block, in [0, 1]; may be traced.
    num_blocks: `L`, the number of blocks.
    schedule: `linear`, the source's; `linear_from_zero`, timm's, whose first block is never dropped; or
      `constant`.

  Returns:
    A list of `num_blocks` rates, for `stochastic_depth`.

  Example:
    >>> drop_path_rates(0.5, 5), drop_path_rates(0.5, 3, schedule="linear_from_zero")
    ([0.1, 0.2, 0.3, 0.4, 0.5], [0.0, 0.25, 0.5])

  References:
    Huang et al., `Deep Networks with Stochastic Depth`, 2016, section 3.
  """
  check_option(rate, "rate", (), low=0, high=1)
  check_count(num_blocks, "num_blocks")
  check_choice(schedule, "schedule", ("linear", "linear_from_zero", "constant"))
  if schedule == "constant":
    return [rate] * num_blocks
  if schedule == "linear":
    return [rate * block / num_blocks for block in range(1, num_blocks + 1)]
  return [rate * block / max(num_blocks - 1, 1) for block in range(num_blocks)]

"""Dropout of whole feature maps."""

from __future__ import annotations

from jax.typing import ArrayLike

from jaxreg._checks import check_count, check_floating, key_first
from jaxreg.noise._dropout import dropout
from jaxreg.typing import Array, Key


@key_first
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
    key: one draw for the whole of `x`; None for no noise.
    x: `[..., *spatial, channels]`, floating.
    rate: probability of dropping a channel, in [0, 1]; may be traced.
    num_spatial: number of spatial axes: 1 for sequences, 2 for images, 3 for volumes.
    channel_axis: the axis of the channels, counted from the end: `-1 - num_spatial` if they come first.
    inverted: whether the kept channels are scaled to keep the mean.

  Returns:
    An array of the shape and dtype of `x`.

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
  if channel_axis not in image:
    raise ValueError(f"channel_axis must lie in [{image[0]}, -1], got {channel_axis}")
  axes = tuple(axis for axis in image if axis != channel_axis)
  return dropout(key, x, rate=rate, inverted=inverted, shared_axes=axes)

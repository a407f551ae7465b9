"""Dropout of whole feature maps."""

from __future__ import annotations

from jax.typing import ArrayLike

from jaxreg.noise._dropout import dropout
from jaxreg.typing import Array, Key, check_count, check_floating


def spatial_dropout(
  key: Key, x: ArrayLike, *, rate: ArrayLike, num_spatial: int = 2, inverted: bool = True
) -> Array:
  r"""Sets each channel of each example to zero at all positions at once, with probability `rate`.

  .. math:: y_{hwc} = \frac{m_c\, x_{hwc}}{1 - \text{rate}}, \qquad m_c \sim \mathrm{Ber}(1 - \text{rate})

  Neighbouring positions of a feature map are so alike that dropping one by one takes little away.

  Args:
    key: one draw for the whole of `x`.
    x: `[..., *spatial, channels]`, floating.
    rate: probability of dropping a channel, in [0, 1]; may be traced.
    num_spatial: number of spatial axes: 1 for sequences, 2 for images, 3 for volumes.
    inverted: whether the kept channels are scaled to keep the mean.

  Returns:
    An array of the shape and dtype of `x`.

  Raises:
    TypeError: if `x` is not floating or `key` not a typed key.
    ValueError: if `rate` is outside [0, 1] or `x` has too few axes.

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
    raise ValueError(f"x must have {num_spatial} spatial axes and one of channels, got {x.shape}")
  axes = tuple(range(-1 - num_spatial, -1))
  return dropout(key, x, rate=rate, inverted=inverted, shared_axes=axes)

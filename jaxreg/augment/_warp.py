"""Linear maps of images about their centre."""

import jax
import jax.numpy as jnp
from jax.scipy.ndimage import map_coordinates

from jaxreg._sharding import partitioned
from jaxreg.augment._mixing import narrowed
from jaxreg.typing import Array


def warped(x: Array, matrices: Array, shifts: Array | None = None, *, fill: float, order: int = 1) -> Array:
  """Samples `x` at `matrices @ (row, column) + shifts` for each pixel; coordinates start at the centre.

  Args:
    x: `[batch, height, width, channels]`.
    matrices: `[batch, 2, 2]`.
    shifts: `[batch, 2]`, in pixels; by default 0.
    fill: value of pixels from outside the image.
    order: 1 for bilinear interpolation, 0 for the nearest pixel.

  Returns:
    An array of the shape and dtype of `x`.
  """
  wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
  sizes = x.shape[1:3]
  middle = [(size - 1) / 2 for size in sizes]

  def one(image: Array, matrix: Array, shift: Array) -> Array:
    rows = (jnp.arange(sizes[0]) - middle[0])[:, None]
    columns = (jnp.arange(sizes[1]) - middle[1])[None, :]
    at = [matrix[i, 0] * rows + matrix[i, 1] * columns + (middle[i] + shift[i]) for i in range(2)]
    sample = lambda channel: map_coordinates(channel, at, order=order, mode="constant", cval=fill)
    return jax.vmap(sample, in_axes=-1, out_axes=-1)(image)

  shifts = jnp.zeros(matrices.shape[:2]) if shifts is None else shifts
  every = partitioned(jax.vmap(one), wide, matrices.astype(wide.dtype), shifts.astype(wide.dtype))
  return narrowed(every, x.dtype)

"""RandAugment: a few operations per image, drawn from a list, all with one magnitude."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_count, check_key, check_range
from jaxreg.augment._images import images, narrowed, with_images
from jaxreg.augment._moved import moved
from jaxreg.augment._operations import ALL, OPERATIONS, changed, check_operations, check_pixels, composed
from jaxreg.typing import Key


def rand_augment(
  key: Key,
  batch: Mapping[str, Any],
  *,
  num_ops: int = 2,
  magnitude: ArrayLike = 9.0,
  operations: Sequence[str] = OPERATIONS,
  fill: float = 0.0,
  value_range: tuple[float, float] | None = None,
  channel_axis: int = -1,
) -> dict[str, Any]:
  r"""Applies `num_ops` operations to each image, each drawn uniformly from a list.

  The paper's list: `identity`, `autocontrast`, `brightness`, `color`, `contrast`, `equalize`, `posterize`,
  `sharpness`, `solarize`, `rotate`, `shear_x`, `shear_y`, `translate_x`, `translate_y`. The direction, darker
  or lighter, left or right, is drawn too. Magnitude 10 rotates by 30 degrees, shears by 0.3, shifts by 0.45
  of a side, scales brightness, colour, contrast and sharpness by 0.1 or 1.9, keeps 4 of 8 bits and inverts
  all values.

  All photometric operations are computed, and each image takes its own: they are pixel arithmetic, which
  compiles to few passes. The geometric operations of an image are all affine. They are composed into one map
  and applied after the photometric ones, by one bilinear sampling. This costs one gather whatever `num_ops`,
  and does not blur repeatedly. A `lax.switch` under `vmap` would compute every branch, each with a gather:
  2.5 times as long for two operations on a CPU.

  Args:
    key: two draws of `[num_ops, batch]`: operations and signs.
    batch: `inputs` `[batch, height, width, channels]`, uint8 or floating; masks, boxes and points move
      along. Labels are assumed to survive every operation, so leave out operations that change them.
    num_ops: at least 1; static.
    magnitude: in [0, 10], for every operation, or `[num_ops, batch]`; `autocontrast` and `equalize` ignore
      it.
    operations: names to draw from; a name that appears twice is drawn twice as often.
    fill: value of pixels from outside the image.
    value_range: the least and largest value of a pixel; by default 0 and 255 for uint8, otherwise 0 and 1.
    channel_axis: the axis of the channels in the inputs: 1 for `[batch, channels, height, width]`.

  Example:
    >>> batch = {"inputs": jnp.array([[0.0, 0.25, 1.0]]).reshape(1, 1, 3, 1)}
    >>> inverted = rand_augment(jax.random.key(0), batch, num_ops=1, magnitude=10, operations=["solarize"])
    >>> inverted["inputs"].ravel()
    Array([1.  , 0.75, 0.  ], dtype=float32)

  References:
    Cubuk et al., `RandAugment: Practical Automated Data Augmentation with a Reduced Search Space`, 2020.
  """
  x = images(batch, channel_axis)
  low, high = check_pixels(x, value_range)
  check_count(num_ops, "num_ops")
  check_range(magnitude, "magnitude", low=0, high=10)
  check_operations(operations)

  for_choice, for_sign = jax.random.split(check_key(key))
  shape, dtype = (num_ops, x.shape[0]), jnp.promote_types(x.dtype, jnp.float32)
  numbers = jnp.asarray([ALL.index(name) for name in operations])
  chosen = numbers[jax.random.randint(for_choice, shape, 0, len(operations))]
  level = jax.random.rademacher(for_sign, shape, dtype) * (jnp.asarray(magnitude, dtype) / 10)
  out = changed(x, chosen, level, operations, fill=fill, value_range=(low, high))
  batch = moved(batch, x.shape[1:3], *composed(chosen, level, x.shape[1:3]))
  return with_images(batch, narrowed(out, x.dtype), channel_axis)

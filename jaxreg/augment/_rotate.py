"""Random rotations in the plane."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg.augment._images import images, with_images
from jaxreg.augment._warp import warped
from jaxreg.typing import Array, Key, check_key, check_range


def rotate(
  key: Key,
  batch: Mapping[str, Any],
  *,
  max_degrees: ArrayLike = 15.0,
  fill: float = 0.0,
  channel_axis: int = -1,
) -> dict[str, Any]:
  """Turns each image about its middle by an angle uniform in `[-max_degrees, max_degrees]`, bilinearly.

  Labels stay as they are: mind what a turn makes of a 6 or a 9.

  Args:
    key: one draw of `[batch]`.
    batch: `inputs` `[batch, height, width, channels]`; the rest is left alone.
    max_degrees: in [0, 180]; positive angles are counterclockwise.
    fill: what comes in from outside.
    channel_axis: which axis of the inputs has the channels: 1 for `[batch, channels, height, width]`.

  Returns:
    The batch with turned inputs, of the same shape and dtype.

  Raises:
    TypeError: if `key` is not a typed key.
    ValueError: if the inputs are not images or `max_degrees` is out of range.

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
  return with_images(batch, warped(x, rotations(angle), fill=fill), channel_axis)


def rotations(degrees: Array) -> Array:
  """Where a turned image looks: `[batch] -> [batch, 2, 2]`, of rows and columns."""
  cos, sin = jnp.cos(jnp.deg2rad(degrees)), jnp.sin(jnp.deg2rad(degrees))
  return jnp.stack([jnp.stack([cos, sin], -1), jnp.stack([-sin, cos], -1)], -2)

"""Random rotations in the plane."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_key, check_range
from jaxreg.augment._images import images, with_images
from jaxreg.augment._moved import moved, warped
from jaxreg.typing import Array, Key


def rotate(
  key: Key,
  batch: Mapping[str, Any],
  *,
  max_degrees: ArrayLike = 15.0,
  fill: float = 0.0,
  channel_axis: int = -1,
) -> dict[str, Any]:
  """Rotates each image about its centre by an angle uniform in `[-max_degrees, max_degrees]`, bilinearly.

  Labels do not change: a rotation can turn a 6 into a 9.

  Args:
    key: one draw of `[batch]`.
    max_degrees: in [0, 180]; positive angles are counterclockwise.
    batch, fill, channel_axis: as in `translate`.

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
  turns = rotations(angle)
  return with_images(moved(batch, x.shape[1:3], turns), warped(x, turns, fill=fill), channel_axis)


def rotations(degrees: Array) -> Array:
  """The sampling matrices of rotated images: `[batch] -> [batch, 2, 2]`, on rows and columns."""
  cos, sin = jnp.cos(jnp.deg2rad(degrees)), jnp.sin(jnp.deg2rad(degrees))
  return jnp.stack([jnp.stack([cos, sin], -1), jnp.stack([-sin, cos], -1)], -2)

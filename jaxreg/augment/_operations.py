"""The operations that RandAugment, AutoAugment and AugMix draw from, applied to a batch."""

from __future__ import annotations

from collections.abc import Collection

import jax.numpy as jnp

from jaxreg._checks import check_ends, check_range, known_values
from jaxreg._errors import ArgumentError
from jaxreg.augment import _photometric
from jaxreg.augment._moved import warped
from jaxreg.augment._rotate import rotations
from jaxreg.typing import Array

# At level 1: degrees, tangent of the shear angle, fraction of the side.
DEGREES, SHEAR, SHIFT = 30.0, 0.3, 0.45
GEOMETRIC = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")
PHOTOMETRIC = (
  *("autocontrast", "brightness", "color", "contrast"),
  *("equalize", "posterize", "sharpness", "solarize"),
)
# RandAugment's list; AutoAugment's policies also use `invert`.
OPERATIONS = ("identity", *PHOTOMETRIC, *GEOMETRIC)
ALL = (*OPERATIONS, "invert")


def check_pixels(x: Array, value_range: tuple[float, float] | None) -> tuple[float, float]:
  """Returns the least and the largest value of a pixel; by default 0 and 255 for uint8, otherwise 0 and 1."""
  if not (jnp.issubdtype(x.dtype, jnp.floating) or x.dtype == jnp.uint8):
    raise TypeError(f"inputs must be uint8 or floating, got {x.dtype}")
  usual = (0.0, 255.0) if x.dtype == jnp.uint8 else (0.0, 1.0)
  low, high = usual if value_range is None else check_ends(value_range, "value_range")
  check_range(high - low, "value_range[1] - value_range[0]", low=0, open_low=True)
  known = known_values(x)
  # Rounding in an earlier operation may leave the range slightly.
  slack = 0.01 * (high - low)
  if known is not None and known.size and (known.min() < low - slack or known.max() > high + slack):
    raise ValueError(
      f"inputs must lie in value_range, [{low:g}, {high:g}], got values from {known.min():g} to "
      f"{known.max():g}; give their range, such as value_range=(0, 255), and normalize after this"
    )
  return low, high


def check_operations(operations: Collection[str], allowed: tuple[str, ...] = OPERATIONS) -> None:
  """Checks that at least one operation is named, and that all names are known."""
  unknown = [name for name in operations if name not in allowed]
  if unknown or not operations:
    raise ArgumentError("operations", f"must be among {', '.join(allowed)}, got {unknown or 'none'}")


def changed(
  x: Array,
  chosen: Array,
  level: Array,
  operations: Collection[str],
  *,
  fill: float,
  value_range: tuple[float, float],
) -> Array:
  """Applies operations to images, in at least float32: the photometric ones, then all geometric ones at once.

  `chosen` `[number, batch]` are indices into `ALL`, in the order of application, and `level` their strengths
  in [-1, 1], where 0 changes nothing. `operations` are the names that may be chosen.
  """
  check_range(fill, "fill")
  low, high = value_range
  dtype = jnp.promote_types(x.dtype, jnp.float32)
  level = level.astype(dtype)
  wide = (x.astype(dtype) - low) / (high - low)
  for which, by in zip(chosen, level):
    for name in sorted(set(operations) & {*PHOTOMETRIC, "invert"}):
      mine = (which == ALL.index(name))[:, None, None, None]
      wide = jnp.where(mine, getattr(_photometric, name)(wide, by), wide)
  wide = wide * (high - low) + low
  if set(operations) & set(GEOMETRIC):
    wide = warped(wide, *composed(chosen, level, x.shape[1:3]), fill=fill)
  return wide


def composed(chosen: Array, level: Array, sizes: tuple[int, ...]) -> tuple[Array, Array]:
  """Composes the operations, in order, into the matrices and shifts that `warped` takes."""
  matrices = jnp.broadcast_to(jnp.eye(2, dtype=level.dtype), (level.shape[1], 2, 2))
  shifts = jnp.zeros((level.shape[1], 2), level.dtype)
  for which, by in zip(chosen, level):
    matrix, shift = _affine(which, by, sizes)
    # The later map gives the positions at which the earlier map is evaluated.
    shifts = shifts + jnp.einsum("bij,bj->bi", matrices, shift)
    matrices = jnp.einsum("bij,bjk->bik", matrices, matrix)
  return matrices, shifts


def _affine(which: Array, by: Array, sizes: tuple[int, ...]) -> tuple[Array, Array]:
  """The map of one operation per image, on rows and columns; identity if it is not geometric."""

  def strength(name, amount):
    return jnp.where(which == ALL.index(name), amount * by, 0)

  still, shear_x, shear_y = 1 + jnp.zeros_like(by), strength("shear_x", SHEAR), strength("shear_y", SHEAR)
  shear = jnp.stack([jnp.stack([still, shear_y], -1), jnp.stack([shear_x, still], -1)], -2)
  # At most one of the two is not the identity.
  matrix = jnp.einsum("bij,bjk->bik", rotations(strength("rotate", DEGREES)), shear)
  rows, columns = strength("translate_y", SHIFT * sizes[0]), strength("translate_x", SHIFT * sizes[1])
  return matrix, jnp.stack([rows, columns], -1)

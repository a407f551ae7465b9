"""Linear maps of images about their centre, and what moves with an image: its mask, boxes and points."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.ndimage import map_coordinates

from jaxreg._checks import check_range, check_wide
from jaxreg._sharding import partitioned
from jaxreg.augment._images import narrowed
from jaxreg.typing import Array

NAMES = ("masks", "boxes", "points")


def warped(x: Array, matrices: Array, shifts: Array | None = None, *, fill: float, order: int = 1) -> Array:
  """Samples `x` at `matrices @ (row, column) + shifts` for each pixel, with coordinates from the centre.

  `matrices` are `[batch, 2, 2]`, `shifts` `[batch, 2]` in pixels; `order` 0 takes the nearest pixel.
  """
  check_range(fill, "fill")
  wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
  sizes = x.shape[1:3]
  middle = [(size - 1) / 2 for size in sizes]

  def one(image: Array, matrix: Array, shift: Array) -> Array:
    rows = (jnp.arange(sizes[0]) - middle[0])[:, None]
    columns = (jnp.arange(sizes[1]) - middle[1])[None, :]
    at = [matrix[i, 0] * rows + matrix[i, 1] * columns + (middle[i] + shift[i]) for i in range(2)]

    def sample(channel):
      return map_coordinates(channel, at, order=order, mode="constant", cval=fill)

    return jax.vmap(sample, in_axes=-1, out_axes=-1)(image)

  shifts = jnp.zeros(matrices.shape[:2]) if shifts is None else shifts
  every = partitioned(jax.vmap(one), wide, matrices.astype(wide.dtype), shifts.astype(wide.dtype))
  return narrowed(every, x.dtype)


def moved(
  batch: Mapping[str, Any], sizes: tuple[int, ...], matrices: Array, shifts: Array | None = None
) -> dict[str, Any]:
  """Returns the batch whose masks, boxes and points, if any, follow images that `warped` has sampled."""
  batch = dict(batch)
  shifts = jnp.zeros(matrices.shape[:2]) if shifts is None else shifts
  if "masks" in batch:
    masks = masks_of(batch, sizes)
    batch["masks"] = warped(masks, matrices, shifts, fill=outside(masks), order=0)[..., 0]
  # To the corners of pixels; on rows and columns, as the maps are.
  middle = jnp.asarray(sizes, jnp.float32) / 2

  def move(points: Array, matrices: Array, shifts: Array, middle: Array) -> Array:
    (a, b), (c, d) = jnp.moveaxis(matrices, 0, -1)
    inverse = jnp.moveaxis(
      jnp.stack([jnp.stack([d, -b]), jnp.stack([-c, a])]) / (a * d - b * c)[None, None], -1, 0
    )
    source = points[..., ::-1] - middle[None, None] - shifts[:, None]
    return (jnp.einsum("bij,bnj->bni", inverse, source) + middle[None, None])[..., ::-1]

  if "points" in batch:
    points = _entries(batch, "points", 2, len(matrices))
    batch["points"] = partitioned(move, points, matrices, shifts, middle)
  if "boxes" in batch:

    def move_boxes(boxes: Array, matrices: Array, shifts: Array, middle: Array) -> Array:
      corners = boxes[..., jnp.asarray([0, 1, 2, 1, 0, 3, 2, 3])].reshape(len(boxes), -1, 2)
      corners = move(corners, matrices, shifts, middle).reshape(*boxes.shape[:2], 4, 2)
      corners = jnp.clip(corners, 0, 2 * middle[None, None, None, ::-1])
      return jnp.concatenate([corners.min(axis=2), corners.max(axis=2)], axis=-1)

    boxes = _entries(batch, "boxes", 4, len(matrices))
    batch["boxes"] = partitioned(move_boxes, boxes, matrices, shifts, middle)
  return batch


def masks_of(batch: Mapping[str, Any], sizes: tuple[int, ...]) -> Array:
  """The masks of a batch as images of one channel."""
  masks = jnp.asarray(batch["masks"])
  if masks.ndim != 3 or masks.shape[1:] != tuple(sizes):
    raise ValueError(f"masks must be [batch, {sizes[0]}, {sizes[1]}], as the inputs, got {masks.shape}")
  return masks[..., None]


def outside(masks: Array) -> int:
  """Returns the value of a mask outside of the image: -1 (no label) if its dtype can hold it, else 0."""
  return -1 if jnp.issubdtype(masks.dtype, jnp.signedinteger) else 0


def _entries(batch: Mapping[str, Any], name: str, width: int, number: int) -> Array:
  x = check_wide(batch[name], name)
  if x.ndim != 3 or x.shape[0] != number or x.shape[2] != width:
    raise ValueError(f"{name} must be [batch, n, {width}], got {x.shape}")
  return x

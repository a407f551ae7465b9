"""What moves with an image: its mask, boxes and points."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from jaxreg._checks import check_wide
from jaxreg._sharding import partitioned
from jaxreg.augment._warp import warped
from jaxreg.typing import Array

NAMES = ("masks", "boxes", "points")


def moved(
  batch: Mapping[str, Any], sizes: tuple[int, ...], matrices: Array, shifts: Array | None = None
) -> dict[str, Any]:
  """Returns the batch whose masks, boxes and points, if any, follow images that `warped` has sampled.

  Args:
    batch: perhaps with `masks`, `boxes` and `points`.
    sizes: the height and the width of the images.
    matrices, shifts: as in `warped`.
  """
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
  """The value of a mask where there is no image: -1, no label, if its dtype can hold it, else 0."""
  return -1 if jnp.issubdtype(masks.dtype, jnp.signedinteger) else 0


def _entries(batch: Mapping[str, Any], name: str, width: int, number: int) -> Array:
  x = check_wide(batch[name], name)
  if x.ndim != 3 or x.shape[0] != number or x.shape[2] != width:
    raise ValueError(f"{name} must be [batch, n, {width}], got {x.shape}")
  return x

"""CutMix: a box from another image, and labels mixed by area."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_key, check_option
from jaxreg._sharding import placed_like
from jaxreg.augment._images import images, inside_box, with_images
from jaxreg.augment._mixup import beta, counting, mixed_labels, partners, shuffled, soft_labels
from jaxreg.augment._moved import masks_of
from jaxreg.typing import Key


def cutmix(
  key: Key,
  batch: Mapping[str, Any],
  *,
  alpha: ArrayLike = 1.0,
  num_classes: int | None = None,
  channel_axis: int = -1,
) -> dict[str, Any]:
  r"""Pastes a box from another image of the batch into each image, and mixes the labels by its area.

  .. math:: h = H \sqrt{1 - \lambda}, \quad w = W \sqrt{1 - \lambda}, \qquad
    \tilde y = \Bigl(1 - \tfrac{a}{HW}\Bigr) y_i + \tfrac{a}{HW} y_j, \qquad
    \lambda \sim \mathrm{Beta}(\alpha, \alpha)

  The centre of the box is any pixel. Parts outside the image are cut off, and `a` counts the remaining
  pixels.

  Args:
    key: two draws of `[2, batch]`, for the shares and the places, and a permutation of the batch.
    batch: `inputs` `[batch, height, width, channels]`; `labels`, and which examples count, as in `mixup`;
      `masks` are pasted as images are, and other entries pass through.
    alpha: above 0; at 1 all areas are equally likely.
    num_classes: needed for integer labels; static.
    channel_axis: the axis of the channels in the inputs: 1 for `[batch, channels, height, width]`.

  Example:
    >>> batch = {"inputs": jnp.zeros((2, 8, 8, 1)), "labels": jnp.array([0, 1])}
    >>> mix = lambda key, batch: cutmix(key, batch, num_classes=10)
    >>> jax.eval_shape(mix, jax.random.key(0), batch)["labels"].shape
    (2, 10)

  References:
    Yun et al., `CutMix: Regularization Strategy to Train Strong Classifiers`, 2019, section 3.1.
  """
  x, labels = images(batch, channel_axis), soft_labels(batch, num_classes)
  check_option(alpha, "alpha", (), low=0, open_low=True)
  number, height, width, _ = x.shape
  keys = jax.random.split(check_key(key), 3)
  side = jnp.sqrt(1 - beta(keys[0], alpha, number))
  row, column = jax.random.uniform(keys[1], (2, number))
  other = partners(keys[2], counting(batch, labels))
  rows, columns = (jnp.floor(size * side).astype(int) for size in (height, width))
  top = jnp.floor(height * row).astype(int) - rows // 2
  left = jnp.floor(width * column).astype(int) - columns // 2
  box = placed_like(inside_box((height, width), top, left, rows, columns), x)
  share = 1 - box.mean(axis=(1, 2, 3))
  mixed_batch = with_images(batch, jnp.where(box, shuffled(x, other), x), channel_axis)
  if "masks" in batch:
    masks = masks_of(batch, (height, width))
    mixed_batch["masks"] = jnp.where(box, shuffled(masks, other), masks)[..., 0]
  return {**mixed_batch, **mixed_labels(batch, labels, other, share)}

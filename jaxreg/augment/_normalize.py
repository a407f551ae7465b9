"""Standardisation of channels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_option
from jaxreg.augment._images import images, with_images
from jaxreg.typing import Key


def normalize(
  key: Key | None, batch: Mapping[str, Any], *, mean: ArrayLike, std: ArrayLike, channel_axis: int = -1
) -> dict[str, Any]:
  """Subtracts a mean and divides by a standard deviation, per channel.

  Args:
    key: not used, and may be None: this is deterministic and meant for evaluation, too.
    batch: `inputs` `[batch, height, width, channels]`, floating; other entries pass through.
    mean, std: `[channels]`, or a scalar; `std` positive.
    channel_axis: the axis of the channels in the inputs: 1 for `[batch, channels, height, width]`.

  Raises:
    TypeError: if the inputs are not floating: integer pixels must be scaled first.

  Example:
    >>> batch = {"inputs": jnp.full((1, 1, 1, 2), 0.75)}
    >>> normalize(None, batch, mean=0.5, std=0.25)["inputs"].ravel()
    Array([1., 1.], dtype=float32)
  """
  del key
  x = images(batch, channel_axis)
  if not jnp.issubdtype(x.dtype, jnp.floating):
    raise TypeError(f"inputs must be floating, got {x.dtype}; scale them first")
  check_option(mean, "mean", x.shape[-1:])
  check_option(std, "std", x.shape[-1:], low=0, open_low=True)
  shape = (1, 1, 1, -1)
  wide = jnp.promote_types(x.dtype, jnp.float32)
  mean, std = (jnp.reshape(jnp.asarray(value, wide), shape) for value in (mean, std))
  return with_images(batch, ((x - mean) / std).astype(x.dtype), channel_axis)

"""Random enlargements and reductions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_key, check_range
from jaxreg.augment._images import images, with_images
from jaxreg.augment._moved import moved, warped
from jaxreg.typing import Key


def scale(
  key: Key,
  batch: Mapping[str, Any],
  *,
  max_factor: ArrayLike = 1.2,
  fill: float = 0.0,
  channel_axis: int = -1,
) -> dict[str, Any]:
  """Scales each image about its centre by a factor from `1 / max_factor` to `max_factor`.

  The logarithm of the factor is uniform, so enlarging and reducing are equally likely; sampling is bilinear.

  Args:
    key: one draw of `[batch]`.
    max_factor: at least 1.
    batch, fill, channel_axis: as in `translate`.

  Example:
    >>> batch = {"inputs": jnp.ones((2, 4, 4, 1))}
    >>> jax.jit(lambda key: scale(key, batch, max_factor=1.0)["inputs"].sum())(jax.random.key(0))
    Array(32., dtype=float32)

  References:
    Na, `Regularization for Deep Learning`, lecture, Chonbuk National University, dataset augmentation.
  """
  x = images(batch, channel_axis)
  check_range(max_factor, "max_factor", low=1)
  exponent = jax.random.uniform(check_key(key), (x.shape[0],), minval=-1)
  factor = jnp.exp(exponent * jnp.log(max_factor))
  matrices = jnp.eye(2)[None] / factor[:, None, None]
  return with_images(moved(batch, x.shape[1:3], matrices), warped(x, matrices, fill=fill), channel_axis)

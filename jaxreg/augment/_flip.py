"""Horizontal flips."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_key, check_option
from jaxreg.augment._images import images, with_images
from jaxreg.augment._moved import moved
from jaxreg.typing import Key


def flip(
  key: Key, batch: Mapping[str, Any], *, rate: ArrayLike = 0.5, channel_axis: int = -1
) -> dict[str, Any]:
  """Mirrors each image left to right with probability `rate`.

  Args:
    key: one draw of `[batch]`.
    rate: probability of a flip, in [0, 1].
    batch, channel_axis: as in `translate`.

  Example:
    >>> batch = {"inputs": jnp.arange(3.0).reshape(1, 1, 3, 1)}
    >>> flip(jax.random.key(0), batch, rate=1.0)["inputs"].ravel()
    Array([2., 1., 0.], dtype=float32)

  References:
    He et al., `Deep Residual Learning for Image Recognition`, 2016, section 4.2.
  """
  x = images(batch, channel_axis)
  check_option(rate, "rate", x.shape[:1], low=0, high=1)
  chosen = jax.random.bernoulli(check_key(key), 1.0 * rate, (x.shape[0],))  # also of the integers 0 and 1
  # On rows and columns.
  mirror = jnp.where(chosen[:, None, None], jnp.diag(jnp.array([1.0, -1.0]))[None], jnp.eye(2)[None])
  flipped = jnp.where(chosen[:, None, None, None], x[:, :, ::-1], x)
  return with_images(moved(batch, x.shape[1:3], mirror), flipped, channel_axis)

"""Colour noise along the principal components of natural images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_key, check_option
from jaxreg.augment._images import images, narrowed, with_images
from jaxreg.augment._operations import check_pixels
from jaxreg.typing import Key

# For ImageNet's pixels, in units of the value range. Rows are red, green and blue; columns are components.
EIGENVALUES = (0.2175, 0.0188, 0.0045)
EIGENVECTORS = ((-0.5675, 0.7192, 0.4009), (-0.5808, -0.0045, -0.8140), (-0.5836, -0.6948, 0.4203))


def lighting(
  key: Key,
  batch: Mapping[str, Any],
  *,
  std: ArrayLike = 0.1,
  value_range: tuple[float, float] | None = None,
  channel_axis: int = -1,
) -> dict[str, Any]:
  r"""Adds one random colour to all pixels of an image, as under another light.

  .. math:: x \leftarrow x + \sum_j \alpha_j \lambda_j v_j, \qquad \alpha_j \sim N(0, \text{std}^2)

  The eigenvalues and eigenvectors belong to the colours of ImageNet's pixels.

  Args:
    key: one draw of `[batch, 3]`.
    batch: `inputs` `[batch, height, width, 3]`, red, green, blue, uint8 or floating; the rest stays.
    std: standard deviation of `alpha`, at least 0.
    value_range, channel_axis: as in `rand_augment`; the result is clipped to the range.

  Example:
    >>> batch = {"inputs": jnp.full((1, 1, 1, 3), 0.5)}
    >>> lighting(jax.random.key(0), batch, std=0.0)["inputs"].ravel()
    Array([0.5, 0.5, 0.5], dtype=float32)

  References:
    Krizhevsky, Sutskever and Hinton, `ImageNet Classification with Deep Convolutional Neural Networks`, 2012,
    section 4.1. He et al., `Deep Residual Learning for Image Recognition`, 2016, section 3.4, names it.
  """
  x = images(batch, channel_axis)
  if x.shape[-1] != 3:
    raise ValueError(f"inputs must have three channels, red, green and blue, got {x.shape}")
  check_option(std, "std", (), low=0)
  low, high = check_pixels(x, value_range)
  alphas = jnp.asarray(std) * jax.random.normal(check_key(key), (x.shape[0], 3))
  components = jnp.array(EIGENVECTORS) * jnp.array(EIGENVALUES)[None, :]
  colours = (high - low) * alphas @ components.T
  y = jnp.clip(x.astype(jnp.promote_types(x.dtype, jnp.float32)) + colours[:, None, None, :], low, high)
  return with_images(batch, narrowed(y, x.dtype), channel_axis)

"""Changes of colours: random ones of brightness, contrast, saturation, hue and light, and standardisation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_key, check_option, check_range, key_first
from jaxreg.augment import _photometric
from jaxreg.augment._images import images, narrowed, with_images
from jaxreg.augment._operations import check_pixels
from jaxreg.typing import Key

# For ImageNet's pixels, in units of the value range. Rows are red, green and blue; columns are components.
EIGENVALUES = (0.2175, 0.0188, 0.0045)
EIGENVECTORS = ((-0.5675, 0.7192, 0.4009), (-0.5808, -0.0045, -0.8140), (-0.5836, -0.6948, 0.4203))


@key_first
def color_jitter(
  key: Key,
  batch: Mapping[str, Any],
  *,
  brightness: ArrayLike = 0.4,
  contrast: ArrayLike = 0.4,
  saturation: ArrayLike = 0.4,
  hue: ArrayLike = 0.0,
  value_range: tuple[float, float] | None = None,
  channel_axis: int = -1,
) -> dict[str, Any]:
  r"""Changes the brightness, then the contrast, the saturation and the hue of each image at random.

  .. math:: x \leftarrow \operatorname{clip}(p + f (x - p)), \qquad f \sim \mathcal U(1 - s, 1 + s)

  The plain image `p` is black for brightness, the mean grey for contrast, and the grey image for saturation.
  The hue turns by :math:`\mathcal U(-s, s)` of a round. torchvision also draws the order.

  Args:
    key: one draw of `[4, batch]`.
    batch: `inputs` `[batch, height, width, channels]`, uint8 or floating; other entries pass through.
    brightness, contrast, saturation: `s`, in [0, 1]; saturation is without effect on images of one channel.
    hue: `s`, in [0, 0.5]; without effect except on images of three channels.
    value_range, channel_axis: as in `rand_augment`.

  Example:
    >>> batch = {"inputs": jnp.full((1, 1, 1, 3), 0.5)}
    >>> color_jitter(jax.random.key(0), batch, brightness=0.0)["inputs"].ravel()
    Array([0.5, 0.5, 0.5], dtype=float32)

  References:
    Howard, `Some Improvements on Deep Convolutional Neural Network Based Image Classification`, 2013.
  """
  x = images(batch, channel_axis)
  low, high = check_pixels(x, value_range)
  wide = (x.astype(jnp.promote_types(x.dtype, jnp.float32)) - low) / (high - low)
  drawn = jax.random.uniform(check_key(key), (4, x.shape[0]), wide.dtype, -1, 1)
  strengths = {"brightness": brightness, "contrast": contrast, "saturation": saturation}
  changes = (_photometric.brightness, _photometric.contrast, _photometric.color)
  for change, (name, strength), by in zip(changes, strengths.items(), drawn[:3], strict=True):
    check_range(strength, name, low=0, high=1)
    wide = change(wide, jnp.asarray(strength, wide.dtype) * by / _photometric.CHANGE)
  check_range(hue, "hue", low=0, high=0.5)
  wide = _photometric.hue(wide, jnp.asarray(hue, wide.dtype) * drawn[3])
  return with_images(batch, narrowed(wide * (high - low) + low, x.dtype), channel_axis)


@key_first
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
  y = jnp.clip(x.astype(jnp.float32) + colours[:, None, None, :], low, high)
  return with_images(batch, narrowed(y, x.dtype), channel_axis)


@key_first
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
  for name, value in {"mean": mean, "std": std}.items():
    check_option(value, name, x.shape[-1:])
  shape = (1, 1, 1, -1)
  wide = jnp.promote_types(x.dtype, jnp.float32)
  mean, std = (jnp.reshape(jnp.asarray(value, wide), shape) for value in (mean, std))
  return with_images(batch, ((x - mean) / std).astype(x.dtype), channel_axis)

"""Random changes of brightness, contrast, saturation and hue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_key, check_range
from jaxreg.augment import _photometric
from jaxreg.augment._images import images, narrowed, with_images
from jaxreg.augment._operations import check_pixels
from jaxreg.typing import Key


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

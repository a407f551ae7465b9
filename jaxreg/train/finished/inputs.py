"""The inputs that a trained model takes: as its data source stores them, or images of any size."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxreg._atomic_files import read_bytes
from jaxreg.train.data.images import Decoding, centre_crop, decode, upright
from jaxreg.train.errors import ArgumentError, one_line
from jaxreg.train.step.batch import scaled
from jaxreg.typing import Array

if TYPE_CHECKING:
  from PIL import Image


def cropped(images: object, decoding: Decoding) -> np.ndarray:
  """Makes the evaluation's crops `[n, size, size, 3]` of images of any size.

  These are an array `[n, height, width, channels]`, or a sequence of files, of Pillow's images, or of arrays
  `[height, width]` or `[height, width, channels]`; arrays are uint8, with 1, 3 or 4 channels.
  """
  if isinstance(images, str | os.PathLike) or not isinstance(images, Iterable):
    raise ValueError(f"inputs must be a sequence of images, got a {type(images).__name__}")
  crops = [centre_crop(_as_image(image, number), decoding) for number, image in enumerate(images)]
  if not crops:
    raise ValueError("inputs must have at least one image, got none")
  return np.stack(crops)


def _as_image(image: object, number: int) -> "Image.Image":
  """Makes a Pillow image of three channels."""
  from PIL import Image

  try:
    if isinstance(image, str | os.PathLike):
      return decode(read_bytes(Path(image)))
    if isinstance(image, Image.Image):
      return upright(image.copy())
  except Exception as error:  # Pillow has no common error for damaged files
    which = f"image {number}" if isinstance(image, Image.Image) else image
    raise ValueError(f"inputs: {which} cannot be decoded ({one_line(error)})") from error
  pixels = np.asarray(image)
  if pixels.dtype != np.uint8 or pixels.shape[2:] not in ((), (1,), (3,), (4,)) or not pixels.size:
    raise ValueError(
      f"inputs: image {number} must be uint8 [height, width] or [height, width, channels] with 1, 3 or 4 "
      f"channels, got {pixels.dtype} {pixels.shape}"
    )
  return _as_image(Image.fromarray(pixels[..., 0] if pixels.shape[2:] == (1,) else pixels), number)


def as_stored(
  inputs: object, shape: tuple[int, ...], stored: str, scale: float, decoding: Decoding | None
) -> Array:
  """Converts examples of this shape to the dtype `stored`, in which the data source stores them.

  They may also be floats that are divided by `scale` or, with `decoding`, images as `cropped` takes them.
  An array of examples of this shape has finished crops.
  """
  if decoding is not None:
    is_array = isinstance(inputs, np.ndarray | jax.Array)
    inputs = inputs if is_array and inputs.shape[1:] == shape else cropped(inputs, decoding)
  inputs = np.asarray(inputs)
  if inputs.shape[1:] != shape:
    wanted = ", ".join(map(str, ("batch", *shape)))
    raise ValueError(f"inputs must have shape [{wanted}], got {inputs.shape}")
  if not is_integer(stored) or inputs.dtype == stored:
    with np.errstate(over="ignore"):
      return jnp.asarray(inputs)
  if scale == 1 or not np.issubdtype(inputs.dtype, np.floating):
    floats = "" if scale == 1 else f", or floating and divided by {scale:g}"
    raise ValueError(f"inputs must be {stored}, as the data source stores them{floats}, got {inputs.dtype}")
  if inputs.size and not (inputs.min() >= 0 and inputs.max() <= 1):
    raise ValueError(
      f"floating inputs must lie in [0, 1], divided by {scale:g}; stored inputs are {stored}, "
      f"got values from {inputs.min():g} to {inputs.max():g}"
    )
  return jnp.asarray(inputs, jnp.float32)


def check_finite(stored: Array, inputs: Any, names: Sequence[str], rows: Sequence[object] | None) -> None:
  """Checks that examples from `as_stored` are finite; errors name the example, by `rows`, and the feature.

  `inputs` are the examples in the units of the data.
  """
  if is_integer(str(stored.dtype)) or np.isfinite(stored).all():
    return
  row, *place = np.argwhere(~np.isfinite(np.asarray(stored)))[0].tolist()
  example = row if rows is None else rows[row]
  name = repr(names[place[0]]) if names else f"input {', '.join(map(str, place))}"
  got = np.asarray(inputs)[row, *place]
  problem = f"row {example}: {name} must be finite in float32 after any standardizing, got {got}"
  raise ArgumentError("inputs", problem)


def in_model_units(inputs: Array, stored: str, scale: float) -> Array:
  """Scales inputs from `as_stored` to model units; floats for an integer source count as scaled already."""
  is_scaled = is_integer(stored) and not is_integer(str(inputs.dtype))
  return inputs if is_scaled else scaled(inputs, scale)


def is_integer(dtype: str) -> bool:
  return np.issubdtype(np.dtype(dtype), np.integer)

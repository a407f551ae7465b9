"""A trained model as a function of its inputs."""

import dataclasses
import functools
import io
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxreg.train.data.dataset import DataSpec
from jaxreg.train.data.images import Decoding, centre_crop, decode
from jaxreg.train.errors import one_line
from jaxreg.train.step.batch import scaled
from jaxreg.train.step.program import Program
from jaxreg.train.step.state import TrainState
from jaxreg.typing import Array, Key


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class Predictor:
  """A trained model: `predict(inputs, *, key=None) -> log-probabilities`.

  Attributes:
    input_shape: the shape of one example.
    input_dtype: the dtype in which the data source stores inputs.
    scale: the divisor of the stored inputs. If inputs are stored as integers, floats are taken as divided
      already.
    num_classes: the number of classes of the log-probabilities.
    step: the step of the checkpoint.
    class_names: the names of the classes, in the order of the log-probabilities; () if the data had none.
    decoding: for a run on images of any size, how its evaluation scales and crops them; None for other runs.
  """

  input_shape: tuple[int, ...]
  input_dtype: str
  scale: float
  num_classes: int
  step: int
  class_names: tuple[str, ...]
  decoding: Decoding | None
  _program: Program
  _state: TrainState

  @functools.cached_property
  def _run(self) -> Callable[..., Array]:
    predict_fn, scale = self._program.predict_fn, self.scale
    return jax.jit(lambda state, x, key: predict_fn(state, in_model_units(x, self.input_dtype, scale), key))

  def __call__(self, inputs: Any, *, key: Key | None = None) -> Array:
    key = jax.random.clone(self._state.key) if key is None else key
    return self._run(self._state, as_stored(inputs, self, self.decoding), key)

  def classify(self, inputs: Any, *, key: Key | None = None) -> list[str]:
    """The name of the most probable class of each input, or its number if the classes have no names."""
    best = np.asarray(self(inputs, key=key).argmax(axis=-1))
    if best.ndim != 1:
      raise ValueError(f"classify needs one class for each input, got predictions of shape {best.shape}")
    names = self.class_names or [str(number) for number in range(self.num_classes)]
    return [names[number] for number in best]

  def __repr__(self) -> str:
    shape = ", ".join(map(str, ("batch", *self.input_shape)))
    kind = self.input_dtype
    if _is_integer(kind) and self.scale != 1:
      kind += f" in [0, {self.scale:g}], or floating in [0, 1]"
    if self.decoding is not None:
      kind += ", or uint8 images of any size"
    return (
      f"Predictor(inputs [{shape}] {kind} -> log-probabilities of {self.num_classes} classes, "
      f"step {self.step})"
    )


def _fits(inputs: Any, shape: tuple[int, ...]) -> bool:
  """Whether the inputs are one array of the shape that the network takes."""
  return np.shape(inputs)[1:] == shape if isinstance(inputs, np.ndarray | jax.Array) else False


def cropped(images: Any, decoding: Decoding) -> np.ndarray:
  """The evaluation's crops `[n, size, size, 3]` of images of any size.

  Args:
    images: an array `[n, height, width, channels]`, or a sequence of files, of Pillow's images, or of arrays
      `[height, width]` or `[height, width, channels]`; arrays are uint8, with 1, 3 or 4 channels.
    decoding: how the run's evaluation scales and crops.
  """
  if isinstance(images, str | os.PathLike) or not isinstance(images, Iterable):
    raise ValueError(f"inputs must be a sequence of images, got a {type(images).__name__}")
  found = [centre_crop(_as_image(image, number), decoding) for number, image in enumerate(images)]
  if not found:
    raise ValueError("inputs must have at least one image, got none")
  return np.stack(found)


def _as_image(given: Any, number: int) -> Any:
  """One image as a Pillow image of three channels."""
  from PIL import Image

  if isinstance(given, str | os.PathLike):
    try:
      return decode(Path(given).read_bytes())
    except Exception as error:  # Pillow has no common error for damaged files
      raise ValueError(f"inputs: {given} cannot be decoded ({one_line(error)})") from error
  if isinstance(given, Image.Image):
    stream = io.BytesIO()
    given.save(stream, "PNG")  # so that its modes and transparency are those of a file
    return decode(stream.getvalue())
  pixels = np.asarray(given)
  if pixels.dtype != np.uint8 or pixels.shape[2:] not in ((), (1,), (3,), (4,)) or not pixels.size:
    raise ValueError(
      f"inputs: image {number} must be uint8 [height, width] or [height, width, channels] with 1, 3 or 4 "
      f"channels, got {pixels.dtype} {pixels.shape}"
    )
  return _as_image(Image.fromarray(pixels[..., 0] if pixels.shape[2:] == (1,) else pixels), number)


def as_stored(inputs: Any, data: "Predictor | DataSpec", decoding: Decoding | None = None) -> Array:
  """The inputs as the data source stores them; they may be given as stored, or as floats that are scaled.

  With `decoding`, they may also be images as `cropped` takes them.
  """
  if decoding is not None and not _fits(inputs, data.input_shape):
    inputs = cropped(inputs, decoding)
  inputs = np.asarray(inputs)
  if inputs.shape[1:] != data.input_shape:
    shape = ", ".join(map(str, ("batch", *data.input_shape)))
    raise ValueError(f"inputs must have shape [{shape}], got {inputs.shape}")
  stored = data.input_dtype
  if not _is_integer(stored) or inputs.dtype == stored:
    return jnp.asarray(inputs)
  scale = data.scale
  if scale == 1 or not np.issubdtype(inputs.dtype, np.floating):
    floats = "" if scale == 1 else f", or floating and divided by {scale:g}"
    raise ValueError(f"inputs must be {stored}, as the data source stores them{floats}, got {inputs.dtype}")
  if inputs.size and not (inputs.min() >= 0 and inputs.max() <= 1):
    raise ValueError(
      f"floating inputs must lie in [0, 1], divided by {scale:g}; stored inputs are {stored}, "
      f"got values from {inputs.min():g} to {inputs.max():g}"
    )
  return jnp.asarray(inputs, jnp.float32)


def in_model_units(inputs: Array, stored: str, scale: float) -> Array:
  """Inputs from `as_stored` as the network takes them; floats for a source of integers are scaled already."""
  is_scaled = _is_integer(stored) and not _is_integer(str(inputs.dtype))
  return inputs if is_scaled else scaled(inputs, scale)


def _is_integer(dtype: str) -> bool:
  return np.issubdtype(np.dtype(dtype), np.integer)

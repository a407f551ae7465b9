"""A trained model as a function of its inputs."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

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
  """

  input_shape: tuple[int, ...]
  input_dtype: str
  scale: float
  num_classes: int
  step: int
  _program: Program
  _state: TrainState

  @functools.cached_property
  def _run(self) -> Callable[..., Array]:
    return jax.jit(self._program.predict_fn)

  def __call__(self, inputs: Any, *, key: Key | None = None) -> Array:
    key = jax.random.clone(self._state.key) if key is None else key
    data = {"input_shape": self.input_shape, "input_dtype": self.input_dtype, "scale": self.scale}
    return self._run(self._state, as_stored(inputs, data), key)

  def __repr__(self) -> str:
    shape = ", ".join(map(str, ("batch", *self.input_shape)))
    kind = self.input_dtype
    if _is_integer(kind) and self.scale != 1:
      kind += f" in [0, {self.scale:g}], or floating in [0, 1]"
    return (
      f"Predictor(inputs [{shape}] {kind} -> log-probabilities of {self.num_classes} classes, "
      f"step {self.step})"
    )


def as_stored(inputs: Any, data: Mapping[str, Any]) -> Array:
  """The inputs as the data source stores them; they may be given as stored, or as floats that are scaled.

  Raises:
    ValueError: for inputs of another shape, dtype or range.
  """
  inputs = np.asarray(inputs)
  if inputs.shape[1:] != tuple(data["input_shape"]):
    shape = ", ".join(map(str, ("batch", *data["input_shape"])))
    raise ValueError(f"inputs must have shape [{shape}], got {inputs.shape}")
  stored = data["input_dtype"]
  if not _is_integer(stored) or inputs.dtype == stored:
    return jnp.asarray(inputs)
  scale = data["scale"]
  if scale == 1 or not np.issubdtype(inputs.dtype, np.floating):
    floats = "" if scale == 1 else f", or floating and divided by {scale:g}"
    raise ValueError(f"inputs must be {stored}, as the data source stores them{floats}, got {inputs.dtype}")
  if inputs.size and not (inputs.min() >= 0 and inputs.max() <= 1):
    raise ValueError(
      f"floating inputs must lie in [0, 1], divided by {scale:g}; stored inputs are {stored}, "
      f"got values from {inputs.min():g} to {inputs.max():g}"
    )
  return jnp.asarray(inputs * scale, jnp.float32)


def _is_integer(dtype: str) -> bool:
  return np.issubdtype(np.dtype(dtype), np.integer)

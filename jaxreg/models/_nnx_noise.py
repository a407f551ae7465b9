"""The functions of `jaxreg.noise` as one NNX module."""

from collections.abc import Callable
from typing import Any

import jax
from flax import nnx
from flax.core import FrozenDict

from jaxreg._noise_options import check_options, is_array
from jaxreg.typing import Array, Key

Source = nnx.Rngs | nnx.RngStream | Key | None


class NNXNoise(nnx.Module):
  """A noise function as a module like `nnx.Dropout`: `NNXNoise(noise.dropout, rate=0.1, rngs=rngs)`.

  `nnx.view(model, deterministic=True)` and `model.eval()` turn the noise off, `model.train()` on. The key
  comes from the `dropout` stream. An option that is an array is an `nnx.Param` and can be trained:
  `rate_logit` of `noise.concrete_dropout`, with its KL in the loss, or the `kernel` of `noise.dropconnect`.

  Attributes:
    function: `(key, x, *, ...) -> x`.
    options: the options of `function` other than arrays.
    parameters: its options that are arrays.
    deterministic: whether noise is off.
  """

  def __init__(
    self, function: Callable[..., Any], *, rngs: Source = None, deterministic: bool = False, **options: Any
  ):
    options = check_options(function, options)
    self.function, self.deterministic = function, deterministic
    # A frozen one has a hash, so a graph definition may be a static argument.
    rest = FrozenDict({name: value for name, value in options.items() if not is_array(value)})
    self.options = nnx.static(rest)
    self.parameters = nnx.data({name: nnx.Param(value) for name, value in options.items() if is_array(value)})
    self.rngs = nnx.data(_stream(rngs).fork() if rngs is not None else None)

  def __call__(
    self, *inputs: Array, deterministic: bool | None = None, rngs: Source = None, **options: Any
  ) -> Array:
    """Applies the noise to `inputs`, usually one array; an option given here replaces the layer's own."""
    off = self.deterministic if deterministic is None else deterministic
    own = {name: parameter[...] for name, parameter in self.parameters.items()}
    return self.function(None if off else self._key(rngs), *inputs, **{**self.options, **own, **options})

  def set_view(self, deterministic: bool | None = None) -> None:
    """Sets the mode of a copy that `nnx.view` makes; `nnx.view_info` reads this text.

    Args:
      deterministic: whether noise is off; None keeps the mode.
    """
    if deterministic is not None:
      self.deterministic = deterministic

  def _key(self, rngs: Source) -> Key:
    if isinstance(rngs, jax.Array):
      return rngs
    source = rngs if rngs is not None else self.rngs
    if source is None:
      raise ValueError("rngs must be given to the module or to its call unless it is deterministic, got None")
    return _stream(source)()


def _stream(rngs: Any) -> nnx.RngStream:
  if isinstance(rngs, nnx.Rngs):
    return rngs["dropout"]
  if isinstance(rngs, nnx.RngStream):
    return rngs
  raise TypeError(f"rngs must be nnx.Rngs or one of its streams, got a {type(rngs).__name__}")

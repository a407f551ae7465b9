"""A function of this folder as a layer, which a model of any library can hold."""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxreg.typing import Array, Key


@functools.partial(
  jax.tree_util.register_dataclass,
  data_fields=("arrays", "inference"),
  meta_fields=("function", "options"),
)
@dataclasses.dataclass(frozen=True)
class Layer:
  """What `layer` makes: a pytree, called as `(x, *, key) -> x`.

  Attributes:
    function: `(key, x, *, ...) -> x`.
    options: its options that are no arrays, as pairs, in order.
    arrays: its options that are: leaves, so that they can be trained.
    inference: whether there is no noise. A leaf, as in `eqx.nn.Dropout`: `eqx.nn.inference_mode` turns it.
  """

  function: Callable[..., Any]
  options: tuple[tuple[str, Any], ...]
  arrays: dict[str, Array]
  inference: bool

  def __call__(self, *inputs: Any, key: Key | None, inference: bool | None = None, **options: Any) -> Any:
    """Noise of `inputs`, most often one array; none where `key` is None or `inference` true.

    An option given here, for instance a `rate` that follows a schedule, takes the place of the layer's own.
    """
    off = self.inference if inference is None else inference
    return self.function(None if off else key, *inputs, **{**dict(self.options), **self.arrays, **options})


def layer(function: Callable[..., Any], *, inference: bool = False, **options: Any) -> Layer:
  """A noise function with its options as a layer, for Equinox models and plain JAX.

  Equinox's models hold it as they hold `eqx.nn.Dropout`. An example there has no batch axis, and its channels
  come first: give `drop_block` and `spatial_dropout` their `channel_axis`, and `stochastic_depth`
  `per="batch"`. An option that is an array is a leaf and can be trained, as `rate_logit` of
  `concrete_dropout`. For Flax there are `models.NNXNoise` and Linen's layers.

  Args:
    function: `(key, x, *, ...) -> x`, of this folder or one's own that takes None for a key.
    inference: whether it begins without noise.
    **options: of the function.

  Returns:
    A `Layer`, called as `layer(x, key=key)`; `key=None` is no noise.

  Raises:
    TypeError: if `function` is not a function, has no such option, or an option cannot be hashed.

  Example:
    >>> from jaxreg.noise import dropout
    >>> drop = layer(dropout, rate=0.5)
    >>> drop(jnp.ones(4), key=jax.random.key(0)), drop(jnp.ones(2), key=None)
    (Array([0., 0., 2., 2.], dtype=float32), Array([1., 1.], dtype=float32))
  """
  check_options(function, options)
  arrays = {name: value for name, value in options.items() if is_array(value)}
  rest = tuple(sorted((name, value) for name, value in options.items() if name not in arrays))
  hash(rest)  # which jit would do later, and say less
  return Layer(function, rest, arrays, inference)


def is_array(option: Any) -> bool:
  return isinstance(option, jax.Array | np.ndarray)


def check_options(function: Callable[..., Any], options: dict[str, Any]) -> None:
  """Checks that a noise function has these options.

  Raises:
    TypeError: if it has not, or is no function.
  """
  if not callable(function):
    raise TypeError(f"function must be a function (key, x, *, ...), got {function!r}")
  try:
    inspect.signature(function).bind_partial(None, None, **options)
  except TypeError as error:
    name = getattr(function, "__name__", "function")
    raise TypeError(f"{name} does not take {', '.join(options) or 'a key and x'}: {error}") from None

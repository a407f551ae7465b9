"""Noise functions as layers that a model of any library can hold."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax

from jaxreg._noise_options import check_options, is_array
from jaxreg.typing import Array, Key


@functools.partial(
  jax.tree_util.register_dataclass,
  data_fields=("arrays", "inference"),
  meta_fields=("function", "options"),
)
@dataclasses.dataclass(frozen=True)
class Layer:
  """The result of `layer`: a pytree, called as `(x, *, key) -> x`.

  Attributes:
    function: `(key, x, *, ...) -> x`.
    options: the options of `function` other than arrays, as pairs, in order.
    arrays: its options that are arrays: leaves, so that they can be trained.
    inference: whether noise is off. A leaf, as in `eqx.nn.Dropout`: `eqx.nn.inference_mode` sets it.
  """

  function: Callable[..., Any]
  options: tuple[tuple[str, Any], ...]
  arrays: dict[str, Array]
  inference: bool

  def __call__(self, *inputs: Any, key: Key | None, inference: bool | None = None, **options: Any) -> Any:
    """Applies the noise to `inputs`, usually one array; no noise if `key` is None or `inference` is true.

    An option given here, for instance a `rate` that follows a schedule, replaces the layer's own.
    """
    off = self.inference if inference is None else inference
    return self.function(None if off else key, *inputs, **{**dict(self.options), **self.arrays, **options})


def layer(function: Callable[..., Any], *, inference: bool = False, **options: Any) -> Layer:
  """Turns a noise function and its options into a layer, for Equinox models and plain JAX.

  Equinox models hold it like `eqx.nn.Dropout`. There examples have no batch axis, and their channels come
  first: give `drop_block` and `spatial_dropout` their `channel_axis`, and `stochastic_depth`
  `per_example=False`. An option that is an array is a leaf and can be trained, like `rate_logit` of
  `concrete_dropout`. Flax has `models.Noise` for Linen and `models.NNXNoise`.

  `inference` is a leaf, too, and no array: use `eqx.filter_jit` and `eqx.filter_grad` where a layer is an
  argument. In plain JAX, close over the layer, train a copy of `layer.arrays` and call
  `layer(x, key=key, **arrays)`.

  Args:
    function: `(key, x, *, ...) -> x`, from this folder, or your own that accepts None as key.
    inference: whether the layer starts without noise.
    **options: options of the function.

  Returns:
    A `Layer`, called as `layer(x, key=key)`; `key=None` adds no noise.

  Raises:
    TypeError: if `function` has no such option, or an option cannot be hashed.

  Example:
    >>> from jaxreg.noise import dropout
    >>> drop = layer(dropout, rate=0.5)
    >>> drop(jnp.ones(4), key=jax.random.key(0)), drop(jnp.ones(2), key=None)
    (Array([0., 0., 2., 2.], dtype=float32), Array([1., 1.], dtype=float32))
  """
  options = check_options(function, options)
  arrays = {name: value for name, value in options.items() if is_array(value)}
  rest = tuple(sorted((name, value) for name, value in options.items() if name not in arrays))
  hash(rest)  # jit would hash it later, with a less clear error
  return Layer(function, rest, arrays, inference)

"""The functions of `jaxreg.noise` as one Linen module."""

from collections.abc import Callable, Mapping
from typing import Any

from flax import linen as nn
from flax.core import FrozenDict

from jaxreg._noise_options import check_options, is_array
from jaxreg.typing import Array


class _Fields(nn.Module):
  function: Callable[..., Any]
  options: FrozenDict[str, Any]


class Noise(_Fields):
  """A noise function as a module, `(x, *, train) -> x`: `Noise(noise.dropout, rate=0.5)(x, train=train)`.

  The key comes from the `dropout` stream; outside training nothing is drawn and no key is needed. An option
  that is an array is the initial value of a parameter of that name: `rate_logit` of `noise.concrete_dropout`,
  with its KL in the loss, or the `kernel` of `noise.dropconnect`.

  Attributes:
    function: `(key, x, *, ...) -> x`, from `jaxreg.noise`, or your own that accepts None as key.
    options: the options of `function`, each given by its name.
  """

  # Flax copies a module by passing its fields, so `options` may also arrive as one mapping.
  def __init__(self, function: Callable[..., Any], options: Mapping[str, Any] | None = None, **more: Any):
    of_module = {field: more.pop(field) for field in ("parent", "name") if field in more}
    options = check_options(function, {**(options or {}), **more})
    super().__init__(function, FrozenDict(options), **of_module)

  @nn.compact
  def __call__(self, *inputs: Array, train: bool, **options: Any) -> Array:
    """Applies the noise to `inputs`, usually one array; an option given here replaces the layer's own."""
    own = {
      name: self.param(name, lambda _, start=value: start) if is_array(value) else value
      for name, value in self.options.items()
    }
    key = self.make_rng("dropout") if train else None
    return self.function(key, *inputs, **{**own, **options})

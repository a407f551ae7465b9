"""Plain functions as a pure module."""

import dataclasses
from collections.abc import Callable

import jax

from jaxreg._errors import ArgumentError
from jaxreg.train.entries import parameters
from jaxreg.train.modules.module import PureModule, Result, Variables, accepted, with_named_leaves
from jaxreg.typing import Array, Key, ModelState, Params, PyTree


@dataclasses.dataclass(frozen=True)
class Backbone:
  """A backbone of plain functions, for `model.name=my_module:NET` with `NET = Backbone(init_fn, apply_fn)`.

  Attributes:
    init_fn: `(key, x) -> params`, or `(key)`; it returns `(params, model_state)` if `apply_fn` takes
      `model_state`. Both are any pytrees of arrays.
    apply_fn: `(params, x, *, key, train) -> features`, or `(params, model_state, x, *, key, train) ->
      (features, model_state)`. It may leave out `key` and `train`. The key is None without noise. With a
      state, predictions that sample noise need an `apply_fn` that also takes `use_running_average`: True
      where the statistics of the state normalise the activations and stay, as without training.
  """

  init_fn: Callable[..., PyTree]
  apply_fn: Callable[..., PyTree]


def functions(backbone: Backbone, x: jax.ShapeDtypeStruct) -> PureModule:
  """Adapts plain functions for inputs like `x`."""
  init_fn, apply_fn = backbone.init_fn, backbone.apply_fn
  stateful = "model_state" in parameters(apply_fn)

  def init(key: Key, x: Array) -> Variables:
    made = init_fn(key, x) if len(parameters(init_fn)) > 1 else init_fn(key)
    return made if stateful else (made, {})

  def apply(
    params: Params,
    model_state: ModelState,
    x: Array,
    *,
    key: Key | None,
    train: bool,
    use_running_average: bool,
  ) -> Result:
    options = accepted(apply_fn, key=key, train=train)
    if "use_running_average" in parameters(apply_fn):
      options["use_running_average"] = use_running_average or not train
    elif stateful and use_running_average:
      raise ArgumentError("mc_samples", "must be 0, or apply_fn must take use_running_average")
    if stateful:
      return apply_fn(params, model_state, x, **options)
    return apply_fn(params, x, **options), model_state

  def bind(params: Params, model_state: ModelState) -> PyTree:
    return (params, model_state) if stateful else params

  return with_named_leaves(init, apply, bind, jax.eval_shape(init, jax.random.key(0), x))

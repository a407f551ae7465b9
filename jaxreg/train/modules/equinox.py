"""Equinox modules as pure modules."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxreg.train.entries import Options, parameters
from jaxreg.train.modules.module import PureModule, Result, Variables, accepted, check_kept, with_named_leaves
from jaxreg.typing import Array, Key, ModelState, Params, PyTree


def equinox(make: Callable[..., PyTree], options: Options, x: jax.ShapeDtypeStruct) -> PureModule:
  """Adapts the class `make` of Equinox modules, for inputs like `x`.

  The parameters are the floating arrays. The state is the module's `eqx.nn.State` and all other arrays. The
  module takes one example, and is mapped over the batch, whose axis is called `batch`.
  """
  import equinox as eqx

  def create(key: Key) -> tuple[PyTree, PyTree]:
    return eqx.nn.make_with_state(make)(**options, **accepted(make, key=key))

  def is_array(x: PyTree) -> bool:
    return isinstance(x, jax.Array | jax.ShapeDtypeStruct)

  def is_param(x: PyTree) -> bool:
    return is_array(x) and jnp.issubdtype(x.dtype, jnp.inexact)

  # Functions, numbers and texts of the module, which no transformation touches.
  static = eqx.filter(eqx.filter_eval_shape(create, jax.random.key(0))[0], is_array, inverse=True)

  def init(key: Key, x: Array) -> Variables:
    del x
    model, state = create(key)
    params, rest = eqx.partition(model, is_param)
    return params, {"arrays": eqx.filter(rest, is_array), "state": state}

  def merged(params: Params, model_state: ModelState, train: bool) -> PyTree:
    model = eqx.combine(params, model_state["arrays"], static)
    return eqx.nn.inference_mode(model, value=not train)

  def evaluated(layer: PyTree) -> PyTree:
    return eqx.nn.inference_mode(layer) if has_statistics(layer) else layer

  def has_statistics(layer: PyTree) -> bool:
    return isinstance(layer, eqx.nn.BatchNorm | eqx.nn.SpectralNorm)

  def apply(
    params: Params,
    model_state: ModelState,
    x: Array,
    *,
    key: Key | None,
    train: bool,
    use_running_average: bool,
  ) -> Result:
    model = merged(params, model_state, train)
    if use_running_average:
      model = jax.tree.map(evaluated, model, is_leaf=has_statistics)
    stateful = "state" in parameters(model)

    def one(x: Array, key: Key | None, state: ModelState) -> Result:
      arguments = accepted(model, key=key, train=train)
      if not stateful:
        return model(x, **arguments), state
      before = jax.tree.leaves(state)
      outputs, state = model(x, state=state, **arguments)
      if use_running_average:
        check_kept(before, state)
      return outputs, state

    subkeys = None if key is None else jax.random.split(key, len(x))
    mapped = jax.vmap(one, in_axes=(0, 0, None), out_axes=(0, None), axis_name="batch")
    outputs, state = mapped(x, subkeys, model_state["state"])
    return outputs, {**model_state, "state": state}

  def bind(params: Params, model_state: ModelState) -> PyTree:
    model = merged(params, model_state, False)
    return (model, model_state["state"]) if "state" in parameters(model) else model

  return with_named_leaves(init, apply, bind, jax.eval_shape(init, jax.random.key(0), x))

"""NNX modules as pure modules."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import itertools
from collections.abc import Callable
from types import EllipsisType

import jax
import jax.numpy as jnp

from jaxreg._leaves import rebuilt
from jaxreg.train import keys
from jaxreg.train.entries import Options
from jaxreg.train.modules.module import PureModule, Result, Variables, accepted, check_kept, with_named_leaves
from jaxreg.typing import Array, Key, ModelState, Params, PyTree


def nnx_module(make: Callable[..., PyTree], options: Options, x: jax.ShapeDtypeStruct) -> PureModule:
  """Adapts the class `make` of NNX modules, for inputs like `x`.

  The parameters are `nnx.Param`. The state is all other variables except keys, which each pass draws.
  """
  from flax import nnx

  kinds: tuple[type | EllipsisType, ...] = (nnx.Param, nnx.RngState, ...)

  def create(key: Key) -> PyTree:
    return make(**options, **accepted(make, rngs=nnx.Rngs(key)))

  def abstract() -> PyTree:
    return create(jax.random.key(0))

  graph, *states = nnx.split(nnx.eval_shape(abstract), *kinds)

  def init(key: Key, x: Array) -> Variables:
    del x
    _, params, _, state = nnx.split(create(key), *kinds)
    return nnx.to_pure_dict(params), nnx.to_pure_dict(state)

  def merged(params: Params, model_state: ModelState, key: Key) -> PyTree:
    numbers, rng_states = itertools.count(), nnx.to_pure_dict(states[1])

    def drawn(leaf: PyTree) -> Array:
      if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jnp.zeros(leaf.shape, leaf.dtype)
      own = keys.numbered(key, next(numbers))
      return jax.random.split(own, leaf.shape) if leaf.shape else own

    new = rebuilt(states)
    for state, values in zip(new, (params, jax.tree.map(drawn, rng_states), model_state), strict=True):
      nnx.replace_by_pure_dict(state, values)
    return nnx.merge(graph, *new)

  def apply(
    params: Params,
    model_state: ModelState,
    x: Array,
    *,
    key: Key | None,
    train: bool,
    use_running_average: bool,
  ) -> Result:
    model = merged(params, model_state, jax.random.key(0) if key is None else key)
    model.train() if train else model.eval()
    if use_running_average:
      model.set_attributes(use_running_average=True, raise_if_not_found=False)
    before = nnx.to_pure_dict(nnx.split(model, *kinds)[-1])
    rngs = None if key is None else nnx.Rngs(keys.named(key, "rngs"))
    outputs = model(x, **accepted(model.__call__, train=train, rngs=rngs))
    after = nnx.to_pure_dict(nnx.split(model, *kinds)[-1])
    if use_running_average:
      check_kept(before, after)
    return outputs, after

  def bind(params: Params, model_state: ModelState) -> PyTree:
    model = merged(params, model_state, jax.random.key(0))
    model.eval()
    return model

  return with_named_leaves(init, apply, bind, jax.eval_shape(init, jax.random.key(0), x))

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeStubs=false
"""Backbones that are no Linen modules: NNX and Equinox classes, and plain functions."""

import dataclasses
import inspect
import sys
from collections.abc import Callable, Mapping
from types import EllipsisType, ModuleType
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import traverse_util

from jaxreg._sharding import partitioned
from jaxreg.train import keys
from jaxreg.train.lookup import Options, parameters
from jaxreg.typing import Array, Key, ModelState, Params, PyTree

Variables = tuple[Params, ModelState]  # any pytrees
Passed = tuple[PyTree, ModelState]  # the features, and the state after the pass
OF_MODULES = ("parent", "name", "axis_name", "rngs", "key")  # arguments of a class that are no options


@dataclasses.dataclass(frozen=True)
class Backbone:
  """A backbone of plain functions, for `model.name=my_module:NET` with `NET = Backbone(init_fn, apply_fn)`.

  Attributes:
    init_fn: `(key, x) -> params`, or `(key)`; it returns `(params, model_state)` if `apply_fn` takes
      `model_state`. Both are any pytrees of arrays.
    apply_fn: `(params, x, *, key, train) -> features`, or `(params, model_state, x, *, key, train) ->
      (features, model_state)`. It may leave out `key` and `train`. The key is None without noise.
  """

  init_fn: Callable[..., PyTree]
  apply_fn: Callable[..., PyTree]


class Functions(NamedTuple):
  """What a backbone comes down to."""

  init_fn: Callable[[Key, Array], Variables]
  apply_fn: Callable[..., Passed]  # (params, model_state, x, *, key, train)
  module_fn: Callable[[Params, ModelState], PyTree]  # to the user's own module


class Adapted(nn.Module):
  """A backbone that is no Linen module, as one: `(x, *, train) -> features`.

  Its variables are nested dicts with the names of the parameters, such as `layers/0/weight`.
  """

  functions: Functions

  def __call__(self, x: Array, *, train: bool) -> PyTree:
    init_fn, apply_fn = self.functions.init_fn, self.functions.apply_fn
    if self.is_initializing():
      for name, tree in zip(("params", "state"), init_fn(self.make_rng("params"), x), strict=True):
        self._put(name, tree)
    key = self.make_rng("dropout") if self.has_rng("dropout") else None

    def run(x: Array, variables: Variables, key: Key | None) -> Passed:
      return apply_fn(*variables, x, key=key, train=train)

    # The module knows of no explicit axes, so JAX chooses within it how arrays are split.
    variables = self._trees(x)
    features, state = partitioned(run, x, variables, key, kept=(slice(1), slice(0)))
    if train and self.is_mutable_collection("state"):
      self._put("state", jax.tree.map(_cast, state, variables[1]))
    return features

  def module(self, x: Array) -> PyTree:
    """The user's own module with the variables of this one; `x` is a batch, for its shape."""
    return self.functions.module_fn(*self._trees(x))

  def _trees(self, x: Array) -> Variables:
    """The parameters and the state, in the trees of the user's own module."""
    like = jax.eval_shape(self.functions.init_fn, jax.random.key(0), jax.ShapeDtypeStruct(x.shape, x.dtype))
    found = self.variables
    return _filled(like[0], found.get("params", {})), _filled(like[1], found.get("state", {}))

  def _put(self, collection: str, tree: PyTree) -> None:
    for name, value in _nested(tree).items():
      self.put_variable(collection, name, value)


def is_backbone(thing: object) -> bool:
  """Whether the trainer takes an object as a backbone: a class of modules, or a `Backbone`."""
  classes = (nn.Module, *filter(None, (_module_class("flax.nnx"), _module_class("equinox"))))
  return isinstance(thing, Backbone) or (isinstance(thing, type) and issubclass(thing, classes))


def as_linen(thing: Callable[..., nn.Module] | Backbone, options: Options) -> nn.Module:
  """A Linen module that calls a module of any library, made with `options`, or a `Backbone`."""
  if isinstance(thing, Backbone):
    return Adapted(_of_functions(thing))
  for package, adapt in {"flax.nnx": _of_nnx, "equinox": _of_equinox}.items():
    found = _module_class(package)
    if found is not None and isinstance(thing, type) and issubclass(thing, found):
      return Adapted(adapt(thing, options))
  return thing(**options)


def _module_class(package: str) -> type | None:
  """The class of the package's modules; None if nobody has imported it, so that no object is of it."""
  return getattr(sys.modules.get(package), "Module", None)


def _of_functions(backbone: Backbone) -> Functions:
  init_fn, apply_fn = backbone.init_fn, backbone.apply_fn
  stateful = "model_state" in parameters(apply_fn)

  def init(key: Key, x: Array) -> Variables:
    made = init_fn(key, x) if len(parameters(init_fn)) > 1 else init_fn(key)
    return made if stateful else (made, {})

  def apply(params: Params, model_state: ModelState, x: Array, *, key: Key | None, train: bool) -> Passed:
    given = _asked(apply_fn, key=key, train=train)
    if stateful:
      return apply_fn(params, model_state, x, **given)
    return apply_fn(params, x, **given), model_state

  def module(params: Params, model_state: ModelState) -> PyTree:
    return (params, model_state) if stateful else params

  return Functions(init, apply, module)


def _of_nnx(make: Callable[..., PyTree], options: Options) -> Functions:
  """The parameters are `nnx.Param`; the state is all other variables except keys, which each pass draws."""
  from flax import nnx

  def create(key: Key) -> PyTree:
    return make(**options, **_asked(make, rngs=nnx.Rngs(key)))

  graph, *abstract = nnx.split(nnx.eval_shape(lambda: create(jax.random.key(0))), *_kinds(nnx))

  def init(key: Key, x: Array) -> Variables:
    _, params, _, state = nnx.split(create(key), *_kinds(nnx))
    return nnx.to_pure_dict(params), nnx.to_pure_dict(state)

  def merged(params: Params, model_state: ModelState, key: Key) -> PyTree:
    of_key, leaves = iter(range(sys.maxsize)), nnx.to_pure_dict(abstract[1])

    def drawn(leaf: PyTree) -> Array:
      if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jnp.zeros(leaf.shape, leaf.dtype)
      own = keys.numbered(key, next(of_key))
      return jax.random.split(own, leaf.shape) if leaf.shape else own

    states = jax.tree.map(_same, abstract)
    for state, values in zip(states, (params, jax.tree.map(drawn, leaves), model_state), strict=True):
      nnx.replace_by_pure_dict(state, values)
    return nnx.merge(graph, *states)

  def apply(params: Params, model_state: ModelState, x: Array, *, key: Key | None, train: bool) -> Passed:
    model = merged(params, model_state, jax.random.key(0) if key is None else key)
    model.train() if train else model.eval()
    rngs = None if key is None else nnx.Rngs(keys.named(key, "rngs"))
    features = model(x, **_asked(model.__call__, train=train, rngs=rngs))
    *_, new = nnx.split(model, *_kinds(nnx))
    # Without what the call has sown.
    return features, _filled(model_state, _nested(nnx.to_pure_dict(new)))

  def module(params: Params, model_state: ModelState) -> PyTree:
    model = merged(params, model_state, jax.random.key(0))
    model.eval()
    return model

  return Functions(init, apply, module)


def _kinds(nnx: ModuleType) -> tuple[type | EllipsisType, ...]:
  return nnx.Param, nnx.RngState, ...


def _of_equinox(make: Callable[..., PyTree], options: Options) -> Functions:
  """The parameters are the floating arrays, and the state the module's `eqx.nn.State` and all other arrays.

  The module takes one example, and is mapped over the batch, whose axis is called `batch`.
  """
  import equinox as eqx

  def create(key: Key) -> tuple[PyTree, PyTree]:
    return eqx.nn.make_with_state(make)(**options, **_asked(make, key=key))

  def is_param(x: PyTree) -> bool:
    return is_array(x) and jnp.issubdtype(x.dtype, jnp.inexact)

  def is_array(x: PyTree) -> bool:
    return isinstance(x, jax.Array | jax.ShapeDtypeStruct)

  # Functions, numbers and texts of the module, which no transformation touches.
  static = eqx.filter(eqx.filter_eval_shape(create, jax.random.key(0))[0], is_array, inverse=True)

  def init(key: Key, x: Array) -> Variables:
    model, state = create(key)
    params, rest = eqx.partition(model, is_param)
    return params, {"arrays": eqx.filter(rest, is_array), "state": state}

  def merged(params: Params, model_state: ModelState, train: bool) -> PyTree:
    model = eqx.combine(params, model_state["arrays"], static)
    return eqx.nn.inference_mode(model, value=not train)

  def apply(params: Params, model_state: ModelState, x: Array, *, key: Key | None, train: bool) -> Passed:
    model = merged(params, model_state, train)
    stateful = "state" in parameters(model)

    def one(x: Array, key: Key | None, state: ModelState) -> Passed:
      given = _asked(model, key=key, train=train)
      return model(x, state=state, **given) if stateful else (model(x, **given), state)

    subkeys = None if key is None else jax.random.split(key, len(x))
    mapped = jax.vmap(one, in_axes=(0, 0, None), out_axes=(0, None), axis_name="batch")
    features, state = mapped(x, subkeys, model_state["state"])
    return features, {**model_state, "state": state}

  def module(params: Params, model_state: ModelState) -> PyTree:
    model = merged(params, model_state, False)
    return (model, model_state["state"]) if "state" in parameters(model) else model

  return Functions(init, apply, module)


def _asked(function: Callable[..., PyTree], **given: object) -> dict[str, object]:
  """The arguments that a function has, or all if it takes any."""
  names = parameters(function)
  any_name = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in names.values())
  return {name: value for name, value in given.items() if any_name or name in names}


def _parts(path: tuple[object, ...]) -> tuple[str, ...]:
  return tuple(jax.tree_util.keystr(path, simple=True, separator="/").split("/"))


def _nested(tree: PyTree) -> dict[str, PyTree]:
  """The leaves of a tree as nested dicts, by the parts of their names."""
  named = jax.tree_util.tree_leaves_with_path(tree)
  return traverse_util.unflatten_dict({_parts(path): leaf for path, leaf in named})


def _filled(like: PyTree, nested: Mapping[str, PyTree]) -> PyTree:
  """The leaves of `nested`, in a tree with the structure of `like`."""
  flat = traverse_util.flatten_dict(nested)

  def leaf(path: tuple[object, ...], _: Array) -> PyTree:
    return flat[_parts(path)]

  return jax.tree_util.tree_map_with_path(leaf, like)


def _same(x: Array) -> Array:
  return x


def _cast(new: Array, old: Array) -> Array:
  return new if jnp.issubdtype(old.dtype, jax.dtypes.prng_key) else new.astype(old.dtype)

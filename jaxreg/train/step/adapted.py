# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
"""Backbones of NNX, of Equinox and of plain functions as modules of Linen: their parameters, states and keys.

So heads, noise, mixing of layers and checkpoints see one kind of module.
"""

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

import jax
from flax import linen as nn
from flax import nnx
from flax.core import FrozenDict
from flax.traverse_util import flatten_dict, unflatten_dict

from jaxreg.typing import Array, Key, PyTree

OF_MODULES = ("parent", "name", "axis_name", "rngs", "key")  # arguments of a class that are no options


def is_backbone(thing: object) -> bool:
  """Whether this is a class of modules of Linen, NNX or Equinox."""
  return isinstance(thing, type) and (issubclass(thing, nn.Module | nnx.Module) or _is_equinox(thing))


def as_linen(cls: type, options: Mapping[str, Any]) -> nn.Module:
  """The module of Linen, `(x, *, train) -> features`, that a class of modules makes with these options."""
  if issubclass(cls, nn.Module):
    return cls(**options)
  if issubclass(cls, nnx.Module):
    return OfNNX(cls, FrozenDict(options))
  return OfEquinox(cls, FrozenDict(options))


class OfNNX(nn.Module):
  """A class of NNX modules, `cls(**options, rngs=rngs)(x)`, in the mode of training or of evaluation."""

  cls: type[nnx.Module]
  options: Mapping[str, Any]

  @nn.compact
  def __call__(self, x: Array, *, train: bool) -> PyTree:
    if self.is_initializing():
      key = self.make_rng("params")
    else:
      key = self.make_rng("dropout") if self.has_rng("dropout") else jax.random.key(0)
    make = functools.partial(self.cls, **self.options, rngs=nnx.Rngs(key))
    inside = nnx.bridge.ToLinen(make, skip_rng=True, metadata_fn=None, name="nnx")

    def call(module: Any, x: Array) -> PyTree:
      module.train() if train else module.eval()
      return module(x, train=train) if _takes(module, "train") else module(x)

    return inside(x, nnx_method=call)


class OfEquinox(nn.Module):
  """A class of Equinox modules, `cls(**options, key=key)(x, key=key)` of one example, and its `State` if any.

  Arrays that are no floating numbers stay as `key=jax.random.key(0)` makes them.
  """

  cls: type
  options: Mapping[str, Any]

  @nn.compact
  def __call__(self, x: Array, *, train: bool) -> PyTree:
    import equinox as eqx

    key = self.make_rng("params") if self.is_initializing() else jax.random.key(0)
    made, state = eqx.nn.make_with_state(self.cls)(**self.options, key=key)
    start, static = eqx.partition(made, eqx.is_inexact_array)
    model = eqx.combine(_declared(self, "params", start), static)
    state = _declared(self, "batch_stats", state)
    model = eqx.nn.inference_mode(model, value=not train)
    draws = train and self.has_rng("dropout") and _takes(model, "key")
    drawn = jax.random.split(self.make_rng("dropout"), len(x)) if draws else None
    keyed = {} if drawn is None else {"key": drawn}

    if not jax.tree.leaves(state):
      return jax.vmap(lambda x, keyed: model(x, **keyed))(x, keyed)
    # BatchNorm takes its means over an axis that the user names, by convention "batch".
    call = jax.vmap(lambda x, keyed: model(x, state, **keyed), axis_name="batch", out_axes=(0, None))
    features, updated = call(x, keyed)
    if self.is_mutable_collection("batch_stats"):
      _store(self, "batch_stats", updated)
    return features


class OfFunctions(nn.Module):
  """Plain functions: `init_fn(key) -> params` and `apply_fn(params, x, *, key, train) -> features`."""

  init_fn: Callable[[Key], PyTree]
  apply_fn: Callable[..., PyTree]

  @nn.compact
  def __call__(self, x: Array, *, train: bool) -> PyTree:
    key = self.make_rng("params") if self.is_initializing() else jax.random.key(0)
    start = self.init_fn(key) if self.is_initializing() else jax.eval_shape(self.init_fn, key)
    draws = train and self.has_rng("dropout")
    drawn = self.make_rng("dropout") if draws else None
    return self.apply_fn(_declared(self, "params", start), x, key=drawn, train=train)


def _declared(module: nn.Module, collection: str, start: PyTree) -> PyTree:
  """The variables of this structure in a collection of the module, which begin as `start`."""
  if module.is_initializing():
    _store(module, collection, start)
  names, structure = _names(start)
  if not names:
    return start
  flat = flatten_dict(module.variables[collection])
  return jax.tree.unflatten(structure, [flat[name] for name in names])


def _store(module: nn.Module, collection: str, tree: PyTree) -> None:
  names, _ = _names(tree)
  nested = unflatten_dict(dict(zip(names, jax.tree.leaves(tree), strict=True)))
  for name, part in nested.items():
    module.put_variable(collection, name, part)


def _names(tree: PyTree) -> tuple[list[tuple[str, ...]], Any]:
  """The path of each leaf as texts, and the structure."""
  found, structure = jax.tree_util.tree_flatten_with_path(tree)
  as_text = functools.partial(jax.tree_util.keystr, simple=True, separator="/")
  names = [tuple(as_text(path).split("/")) for path, _ in found]
  return names, structure


def _is_equinox(cls: type) -> bool:
  equinox = sys.modules.get("equinox")  # whoever has a class of it has imported it
  return equinox is not None and issubclass(cls, equinox.Module)


def _takes(module: object, name: str) -> bool:
  return name in inspect.signature(type(module).__call__).parameters

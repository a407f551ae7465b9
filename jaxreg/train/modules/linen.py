"""Linen modules as pure modules."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import contextlib
from collections.abc import Callable, Generator

from flax import linen as nn

from jaxreg import augment
from jaxreg._errors import ArgumentError
from jaxreg.train.entries import Options, parameters
from jaxreg.train.modules.module import PureModule, Result, Variables
from jaxreg.typing import Array, Key, ModelState, Params, PyTree


class _Named(nn.Module):
  """Calls a module under a name: what a Linen module draws depends on the names of the modules around it."""

  make: Callable[..., nn.Module]
  part: str

  @nn.compact
  def __call__(self, x: Array, **options: bool) -> PyTree:
    return self.make(parent=self, name=self.part)(x, **options)


def linen(module: nn.Module, part: str) -> PureModule:
  """Adapts a Linen module, which is the `part` of a network: `backbone` or `head`.

  The state has the collections of the module except its parameters.
  """
  root = _Named(module.clone, part)
  takes_train = "train" in parameters(module.__call__)

  def init(key: Key, x: Array) -> Variables:
    options: Options = {"train": False} if takes_train else {}
    variables = root.init(key, x, **options)
    named = {collection: tree[part] for collection, tree in variables.items() if part in tree}
    return named.pop("params", {}), named

  def apply(
    params: Params,
    model_state: ModelState,
    x: Array,
    *,
    key: Key | None,
    train: bool,
    mixing: PyTree = None,
  ) -> Result:
    variables = {collection: {part: tree} for collection, tree in {"params": params, **model_state}.items()}
    options: Options = {"train": train} if takes_train else {}
    with _mixed_layers(mixing, part):
      outputs, updated = root.apply(
        variables,
        x,
        **options,
        rngs={} if key is None else {"dropout": key},
        mutable=list(model_state) if train else [],
      )
    return outputs, {**model_state, **{collection: tree[part] for collection, tree in updated.items()}}

  def bind(params: Params, model_state: ModelState) -> nn.Module:
    return module.bind({"params": params, **model_state})

  return PureModule(init, apply, bind)


@contextlib.contextmanager
def _mixed_layers(mixing: PyTree, part: str) -> Generator[None]:
  """Mixes the inputs of the layers inside of `part` that `mixing` names; all of them must be called."""
  wanted = set() if mixing is None else {layer for layer in mixing.shares if layer.startswith(f"{part}/")}
  if mixing is None or not wanted:
    yield
    return
  called: set[str] = set()

  def mix(
    function: Callable[..., PyTree],
    args: tuple[PyTree, ...],
    kwargs: dict[str, PyTree],
    context: nn.module.InterceptorContext,
  ) -> PyTree:
    name = "/".join(context.module.path)
    if context.method_name != "__call__" or not args:
      return function(*args, **kwargs)
    called.add(name)
    if name in wanted:
      args = (augment.mix_hidden(args[0], mixing, layer=name), *args[1:])
    return function(*args, **kwargs)

  with nn.intercept_methods(mix):
    yield
  if missing := wanted - called:
    raise ArgumentError(
      "layers", f"must be among {', '.join(sorted(called - {''}))}, got {', '.join(sorted(missing))}"
    )

"""Linen modules as pure modules."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import contextlib
from collections.abc import Callable, Generator

from flax import errors, traverse_util
from flax import linen as nn

from jaxreg import augment
from jaxreg._errors import ArgumentError
from jaxreg.models import Dense
from jaxreg.train.entries import Options, parameters
from jaxreg.train.modules.module import PureModule, Result, Variables, statistics_error
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
    use_running_average: bool = False,
  ) -> Result:
    variables = {collection: {part: tree} for collection, tree in {"params": params, **model_state}.items()}
    options: Options = {"train": train} if takes_train else {}
    kept = use_running_average or not train
    evaluated = _running_averages(model_state, part) if use_running_average else contextlib.nullcontext()
    with _mixed_layers(mixing, part), evaluated:
      outputs, updated = root.apply(
        variables,
        x,
        **options,
        rngs={} if key is None else {"dropout": key},
        mutable=[] if kept else list(model_state),
      )
    return outputs, {**model_state, **{collection: tree[part] for collection, tree in updated.items()}}

  def bind(params: Params, model_state: ModelState) -> nn.Module:
    return module.bind({"params": params, **model_state})

  return PureModule(init, apply, bind)


@contextlib.contextmanager
def _running_averages(model_state: ModelState, part: str) -> Generator[None]:
  """Calls the layers with statistics inside of `part` in evaluation mode; all statistics must be theirs."""
  owners: set[tuple[str, ...]] = set()

  def evaluate(
    function: Callable[..., PyTree],
    args: tuple[PyTree, ...],
    kwargs: dict[str, PyTree],
    context: nn.module.InterceptorContext,
  ) -> PyTree:
    module = context.module
    own = type(module).__call__ if context.method_name == "__call__" else None
    if own is nn.SpectralNorm.__call__:
      kwargs = {**kwargs, "update_stats": False}
    elif own is Dense.__call__ and module.kind == "spectral_norm":
      kwargs = {**kwargs, "train": False}
    elif own is not nn.BatchNorm.__call__:
      return function(*args, **kwargs)
    if module.path:  # the copy below has none
      owners.add(module.path[1:])
    if own is not nn.BatchNorm.__call__ or module.use_running_average:
      return function(*args, **kwargs)
    # A call cannot overrule the layer's field `use_running_average`, so that a copy of the layer is called.
    kwargs = {name: value for name, value in kwargs.items() if name != "use_running_average"}
    copy = module.clone(parent=None, name=None, use_running_average=True)
    return copy.apply(module.variables, args[0], **kwargs)

  with nn.intercept_methods(evaluate):
    try:
      yield
    except errors.ModifyScopeVariableError as error:
      raise statistics_error(["variables of other layers"]) from error
  names = [path for tree in model_state.values() for path in traverse_util.flatten_dict(tree)]
  others = [path for path in names if not any(path[: len(owner)] == owner for owner in owners)]
  if others:
    raise statistics_error(["/".join(path) for path in others])


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

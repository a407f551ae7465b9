# pyright: reportUnknownMemberType=false
"""The network: its module, and the functions that run it."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Generator, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from jaxreg import augment, models
from jaxreg.augment._manifold_mixup import Mixing
from jaxreg.train import keys
from jaxreg.train.data.dataset import is_tokens
from jaxreg.train.errors import ArgumentError
from jaxreg.train.lookup import Chosen
from jaxreg.train.step.adapted import Adapted, as_linen
from jaxreg.typing import ApplyFn, Array, Key, ModelState, Params, PyTree

Noises = Mapping[str, Sequence[Callable[[Key, PyTree], PyTree]]]  # under the name of what they perturb


@dataclasses.dataclass(frozen=True)
class Network:
  """A module and the functions that run it.

  Attributes:
    model: the Linen module, as in `Program`.
    noises: functions `(key, x) -> x` under the name of what they perturb: `inputs`, `params` or `labels`.
    apply_fn: `(params, model_state, x, *, key, train) -> (outputs, model_state)`.
    pass_fn: the same, with `(features, outputs)`, the inputs of the head in front of what it returns.
    features_fn: the same for the backbone alone.
    head_fn: the same for the head alone, of features; it gets the parameters that `params_fn` returns.
    params_fn: `(params, key) -> params`, with the noise on parameters that the other two add themselves.
  """

  model: models.Classifier
  noises: Noises
  apply_fn: ApplyFn
  pass_fn: ApplyFn
  features_fn: ApplyFn
  head_fn: ApplyFn
  params_fn: Callable[[Params, Key | None], Params]


def make_network(
  model: models.Classifier, noises: Noises, *, mean: Sequence[float], std: Sequence[float], precision: str
) -> Network:
  """The network that standardises its inputs by `mean` and `std`, and computes in the dtype `precision`."""
  run = functools.partial(make_apply_fn, model, mean, std, precision, noises)

  def features(model: models.Classifier, x: Array, train: bool) -> PyTree:
    return model.backbone(x, train=train)

  def both(model: models.Classifier, x: Array, train: bool) -> PyTree:
    of_backbone = features(model, x, train)
    return of_backbone, model.head(of_backbone)

  def head(model: models.Classifier, x: Array, train: bool) -> PyTree:
    del train
    return model.head(x)

  none: Noises = {"params": (), "inputs": ()}
  head_fn = make_apply_fn(model, (), (), precision, none, method=head)
  params_fn = functools.partial(_perturbed, noises, "params")
  return Network(model, noises, run(), run(method=both), run(method=features), head_fn, params_fn)


def _perturbed(noises: Noises, kind: str, x: PyTree, key: Key | None) -> PyTree:
  if key is None or not noises[kind]:
    return x
  # The kind's name is folded into the key, so that other kinds and layers draw other numbers.
  key = keys.named(key, kind)
  for number, perturb in enumerate(noises[kind]):
    x = perturb(keys.numbered(key, number), x)
  return x


def make_backbone(chosen: Chosen, given: Mapping[str, int], input_shape: Sequence[int]) -> nn.Module:
  """The model with its options, and with the arguments `given` by the data and `input_shape` if it asks."""
  asked, known = chosen.entry.needs, {**given, "input_shape": tuple(input_shape)}
  if set(given) - set(asked) or set(asked) - set(known):
    raise ArgumentError(
      "name",
      f"{chosen.name} takes {', '.join(asked) or 'nothing'} from the data, which give "
      f"{', '.join(known)}; give another model or other data, or an argument of your own a default, which "
      "makes it an option",
    )
  return as_linen(chosen.entry.function, {**chosen.options, **{name: known[name] for name in asked}})


@contextlib.contextmanager
def _mixed_layers(mixing: Mixing | None) -> Generator[None]:
  """Mixes the inputs of the modules that `mixing` names; all of them must be called."""
  if mixing is None:
    yield
    return
  called: set[str] = set()
  foreign: set[str] = set()

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
    if isinstance(context.module, Adapted):
      foreign.add(name)
    if name in mixing.shares:
      args = (augment.mix_hidden(args[0], mixing, layer=name), *args[1:])
    return function(*args, **kwargs)

  with nn.intercept_methods(mix):
    yield
  if missing := mixing.shares.keys() - called:
    hint = f"; {', '.join(foreign)} is no Linen module, and nothing is mixed inside of it" if foreign else ""
    raise ValueError(
      f"layers must be among {', '.join(sorted(called - {''}))}, got {', '.join(sorted(missing))}{hint}"
    )


def make_apply_fn(
  model: nn.Module,
  mean: Sequence[float],
  std: Sequence[float],
  precision: str,
  noises: Noises,
  method: Callable[..., PyTree] | None = None,
) -> ApplyFn:
  """The model's function `method`, by default `__call__`, on inputs in the units of `Examples`.

  Its argument `mixing` is the entry of that name in a batch of `augment.manifold_mixup`, whose layers are
  names of modules, such as `backbone/Dense_1`; the inputs of these modules are mixed.
  """
  dtype = jnp.dtype(precision)

  def in_dtype(param: Array) -> Array:
    return param.astype(dtype)

  def apply_fn(
    params: Params,
    model_state: ModelState,
    x: Array,
    *,
    key: Key | None,
    train: bool,
    mixing: Mixing | None = None,
  ) -> tuple[PyTree, ModelState]:
    params = _perturbed(noises, "params", params, key)
    # Parameters and BatchNorm's averages stay in float32, whatever dtype the layers compute in. Losses and
    # masks are float32 as well: they promote the outputs of the head.
    params = jax.tree.map(in_dtype, params)
    if not is_tokens(x.dtype):
      if mean:  # not by `augment.normalize`, which takes images alone
        shape = (1,) * (x.ndim - 1) + (-1,)
        x = (x - np.reshape(np.asarray(mean, np.float32), shape)) / np.reshape(
          np.asarray(std, np.float32), shape
        )
      x = _perturbed(noises, "inputs", x, key).astype(dtype)
    rngs = {} if key is None else {"dropout": key}
    mutable = list(model_state) if train else []
    with _mixed_layers(mixing):
      outputs, updated = model.apply(
        {"params": params, **model_state}, x, train=train, rngs=rngs, mutable=mutable, method=method
      )
    return outputs, {**model_state, **updated}

  return apply_fn

# pyright: reportUnknownMemberType=false
"""The network: its module, the functions that run it, and values of its outputs, whole or by chunks."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Generator, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from jaxreg import augment, models
from jaxreg._sharding import partitioned
from jaxreg.augment._manifold_mixup import Mixing
from jaxreg.losses._linear import by_chunks
from jaxreg.train import keys
from jaxreg.train.data.dataset import is_tokens
from jaxreg.train.errors import ArgumentError
from jaxreg.train.lookup import Chosen
from jaxreg.train.step.adapted import Adapted, as_linen
from jaxreg.train.step.batch import Examples
from jaxreg.typing import ApplyFn, Array, Key, ModelState, Params, PyTree

Noises = Mapping[str, Sequence[Callable[[Key, PyTree], PyTree]]]  # under the name of what they perturb
Outputs = Mapping[str, PyTree]  # what a head returns, by name
# `(values, (features, outputs), model_state)`; by chunks there are no outputs, `{}`.
Passed = tuple[PyTree, tuple[PyTree, Outputs], ModelState]


@dataclasses.dataclass(frozen=True)
class Network:
  """A module and the functions that run it.

  Attributes:
    model: the Linen module, as in `Program`.
    apply_fn: `(params, model_state, x, *, key, train) -> (outputs, model_state)`.
    pass_fn: the same, with `(features, outputs)`, the inputs of the head in front of what it returns.
    features_fn: the same for the backbone alone.
    head_fn: the same for the head alone, of features; it gets the parameters that `params_fn` returns.
    params_fn: `(params, key) -> params`, with the noise on parameters that the other two add themselves.
  """

  model: models.Classifier
  apply_fn: ApplyFn
  pass_fn: ApplyFn
  features_fn: ApplyFn
  head_fn: ApplyFn
  params_fn: Callable[[Params, Key | None], Params]


def make_network(
  model: models.Classifier, noises: Noises, *, mean: Sequence[float], std: Sequence[float], precision: str
) -> Network:
  """The network that standardises its inputs by `mean` and `std`, and computes in the dtype `precision`."""
  run = functools.partial(_make_apply_fn, model, mean, std, precision, noises)

  def features(model: models.Classifier, x: Array, train: bool) -> PyTree:
    return model.backbone(x, train=train)

  def both(model: models.Classifier, x: Array, train: bool) -> PyTree:
    of_backbone = features(model, x, train)
    return of_backbone, model.head(of_backbone)

  def head(model: models.Classifier, x: Array, train: bool) -> PyTree:
    del train
    return model.head(x)

  head_fn = _make_apply_fn(model, (), (), precision, {"params": (), "inputs": ()}, method=head)
  params_fn = functools.partial(_perturbed, noises, "params")
  return Network(model, run(), run(method=both), run(method=features), head_fn, params_fn)


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


def _make_apply_fn(
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
        centre, scale = (np.reshape(np.asarray(numbers, np.float32), shape) for numbers in (mean, std))
        x = (x - centre) / scale
      x = _perturbed(noises, "inputs", x, key).astype(dtype)
    rngs = {} if key is None else {"dropout": key}
    mutable = list(model_state) if train else []
    with _mixed_layers(mixing):
      outputs, updated = model.apply(
        {"params": params, **model_state}, x, train=train, rngs=rngs, mutable=mutable, method=method
      )
    return outputs, {**model_state, **updated}

  return apply_fn


def make_values_fn(network: Network, chunk_size: int) -> Callable[..., Passed]:
  """Builds `values_fn(of_outputs, draws, params, model_state, examples, *, key, train, total=False)`.

  `of_outputs(draws, examples, outputs)` computes a tree of arrays from the outputs of the head. The arrays
  have the shape of the labels; with `total` they are sums over the labels. With `chunk_size`, each call gets
  `chunk_size` labels on one leading axis, and the backward pass calls it again: the outputs of all labels
  are never in memory. `draws` are keys; each chunk has its own.
  """

  def values_fn(
    of_outputs: Callable[..., PyTree],
    draws: tuple[Key, ...],
    params: Params,
    model_state: ModelState,
    examples: Examples,
    *,
    key: Key | None,
    train: bool,
    total: bool = False,
  ) -> Passed:
    if not chunk_size:
      # Manifold mixup: every pass mixes the same hidden features.
      mixing = {} if examples.mixing is None else {"mixing": examples.mixing}
      passed, model_state = network.pass_fn(
        params, model_state, examples.inputs, key=key, train=train, **mixing
      )
      return of_outputs(draws, examples, passed[1]), passed, model_state
    features, model_state = network.features_fn(params, model_state, examples.inputs, key=key, train=train)
    lead = features.shape[:-1]

    def of_chunk(number: Array, part: tuple[Array, ...], whole: tuple[Params, PyTree]) -> PyTree:
      features, labels, weights, where = part
      head, (own, draws) = whole[0], jax.tree.map(functools.partial(_of_chunk, number), whole[1])
      outputs, _ = network.head_fn({"head": head}, {}, features, key=own, train=train)
      values = of_outputs(draws, Examples(features, labels, weights, where), outputs)
      return jax.tree.map(_as_row, values) if total else values

    def by_rows(data: tuple[Array, ...], head: Params, draws: PyTree) -> PyTree:
      def flat(x: Array) -> Array:
        return x.reshape(-1, *x.shape[len(lead) :])

      def whole(x: Array) -> Array:
        return x.sum(axis=0) if total else x.reshape(lead)

      return jax.tree.map(whole, by_chunks(of_chunk, tuple(map(flat, data)), (head, draws), chunk_size))

    data = (features, examples.labels, examples.weights, examples.where)
    key = None if key is None else keys.again(key)
    head = network.params_fn(params, key)["head"]
    values = partitioned(by_rows, data, head, (key, draws), kept=slice(0 if total else -1))
    return values, (features, {}), model_state

  return values_fn


def _of_chunk(number: Array, key: Key) -> Key:
  return keys.numbered(keys.again(key), number)


def _as_row(x: Array) -> Array:
  return x[None]

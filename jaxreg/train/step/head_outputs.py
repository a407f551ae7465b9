"""Values of a head's outputs: of all examples at once, or of a chunk of them at a time."""

import functools
from collections.abc import Callable

import jax

from jaxreg._sharding import partitioned
from jaxreg.losses._linear import by_chunks
from jaxreg.train import keys
from jaxreg.train.step.batch import Examples
from jaxreg.train.step.network import Network
from jaxreg.typing import Array, Key, ModelState, Params, PyTree

# `(values, (features, outputs), model_state)`; by chunks there are no outputs, `{}`.
Passed = tuple[PyTree, tuple[PyTree, dict[str, PyTree]], ModelState]


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

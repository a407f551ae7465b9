"""The forward pass of a step: the network, then the method's loss of each example."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax

from jaxreg._by_chunks import by_chunks
from jaxreg._sharding import partitioned
from jaxreg.train import keys
from jaxreg.train.methods.method import Method, Outputs
from jaxreg.train.step.batch import Examples
from jaxreg.train.step.metrics import Sums
from jaxreg.train.step.network import Network
from jaxreg.train.step.targets import Target
from jaxreg.typing import Array, Key, ModelState, Params, PyTree

Terms = dict[str, Array]


class Pass(NamedTuple):
  """What a forward pass returns in addition to the loss; example terms read it from `view.aux`.

  Attributes:
    features: what enters the head.
    outputs: what the head returns, by name; `{}` by chunks.
    predictions: log-probabilities, or standardized numbers, as `Method.predicts` says; None by chunks.
    logged: quantities of each label that are only logged.
    model_state: the network's state after the pass.
  """

  features: PyTree
  outputs: Outputs
  predictions: Array | None
  logged: dict[str, Array]
  model_state: ModelState


# `(params, batch, *, key) -> (terms [batch], Pass)`, the loss function that `jaxreg.objective` composes.
Forward = Callable[..., tuple[Terms, Pass]]


def make_forward(
  network: Network, method: Method, target: Target, *, most_labels: int | None = None
) -> Forward:
  """Builds `forward(params, batch, *, key) -> (terms, Pass)`; the network has no noise if the key is None.

  The batch has `inputs`, `examples`, `model_state` and the keys `loss_key` and `predict_key`, with which the
  loss and the prediction rule draw in every pass. If labels are mixed and the method needs single ones, the
  loss is the mean over the classes, weighted by their shares. `most_labels` is the largest number of classes
  of a mixed example, so that no losses for other classes are computed; None computes all classes.
  """

  def forward(params: Params, batch: Mapping[str, Any], *, key: Key | None) -> tuple[Terms, Pass]:
    examples: Examples = batch["examples"]
    with jax.named_scope("forward"):
      (features, outputs), model_state = network.features_and_outputs(
        params, batch["model_state"], batch["inputs"], key=key, train=key is not None, mixing=examples.mixing
      )
    draws = method.key_for("loss", batch["loss_key"])
    if method.soft_labels or not examples.mixed:
      terms = method.loss(*draws, **outputs, **{method.labels: examples.labels})
    else:
      terms = _mean_over_classes(method, most_labels, draws, outputs, examples.labels)
    predictions = method.predicted(batch["predict_key"], outputs)
    logged = _logged(method, target, batch["loss_key"], predictions, outputs, examples)
    return named_terms(method, terms), Pass(features, outputs, predictions, logged, model_state)

  return forward


def make_forward_by_chunks(
  network: Network, method: Method, target: Target, *, chunk_size: int, most_labels: int | None = None
) -> Forward:
  """Builds the same function, which computes the head, the loss and the prediction by chunks of the labels.

  The backward pass computes each chunk again, so that the outputs of all labels are never in memory.
  """

  def forward(params: Params, batch: Mapping[str, Any], *, key: Key | None) -> tuple[Terms, Pass]:
    examples: Examples = batch["examples"]
    train = key is not None
    with jax.named_scope("forward"):
      params, x = network.prepared(params, batch["inputs"], key)
      features, model_state = network.features(
        params, batch["model_state"], x, key=key, train=train, mixing=examples.mixing
      )

    def chunk(
      keys_of_chunk: tuple[Key, Key, Key | None], outputs: Outputs, part: Examples
    ) -> tuple[Terms, Terms]:
      loss_key, predict_key, _ = keys_of_chunk
      own = method.key_for("loss", loss_key)
      if method.soft_labels or not part.mixed:
        terms = method.loss(*own, **outputs, **{method.labels: part.labels})
      else:
        terms = _mean_over_classes(method, most_labels, own, outputs, part.labels)
      predictions = method.predicted(predict_key, outputs)
      return named_terms(method, terms), _logged(method, target, loss_key, predictions, outputs, part)

    draws = batch["loss_key"], batch["predict_key"], key
    terms, logged = over_head_chunks(
      network, chunk, params["head"], features, examples, draws, chunk_size=chunk_size
    )
    return terms, Pass(features, {}, None, logged, model_state)

  return forward


def over_head_chunks(
  network: Network,
  function: Callable[..., PyTree],
  head: Params,
  features: Array,
  examples: Examples,
  draws: tuple[Key | None, ...],
  *,
  chunk_size: int,
  total: bool = False,
) -> PyTree:
  """Computes `function(draws, outputs, examples)` of the head's outputs for `chunk_size` labels at a time.

  The function returns arrays with a row per label, or with `total` sums over the labels, which are added.
  Each chunk has its own `draws`; the last one is the key of the head's noise, or None.
  """
  lead = features.shape[:-1]

  def chunk(number: Array, part: tuple[Array, ...], whole: tuple[Params, PyTree]) -> PyTree:
    features, labels, weights, where = part
    head, draws = whole
    draws = tuple(None if key is None else keys.numbered(keys.again(key), number) for key in draws)
    outputs, _ = network.outputs({"head": head}, {}, features, key=draws[-1], train=draws[-1] is not None)
    values = function(draws, outputs, Examples(features, labels, weights, where))
    return jax.tree.map(_as_row, values) if total else values

  def flat(x: Array) -> Array:
    return x.reshape(-1, *x.shape[len(lead) :])

  def joined(x: Array) -> Array:
    return x.sum(axis=0) if total else x.reshape(lead)

  def over_rows(data: tuple[Array, ...], head: Params, draws: PyTree) -> PyTree:
    return jax.tree.map(joined, by_chunks(chunk, tuple(map(flat, data)), (head, draws), chunk_size))

  data = (features, examples.labels, examples.weights, examples.where)
  return partitioned(over_rows, data, head, draws, kept=slice(0 if total else -1))


def make_chunked_eval(
  network: Network, method: Method, target: Target, *, chunk_size: int
) -> Callable[..., Sums]:
  """Builds `(params, model_state, examples, key) -> metrics` of predictions by chunks of the labels."""

  def metrics(params: Params, model_state: ModelState, examples: Examples, key: Key) -> Sums:
    params, x = network.prepared(params, examples.inputs, None)
    features, _ = network.features(params, model_state, x, key=None, train=False)

    def chunk(draws: tuple[Key, None], outputs: Outputs, part: Examples) -> Sums:
      return target.metrics(method.predicted(draws[0], outputs), part)

    return over_head_chunks(
      network, chunk, params["head"], features, examples, (key, None), chunk_size=chunk_size, total=True
    )

  return metrics


def named_terms(method: Method, value: Array | Terms) -> Terms:
  """Returns the terms of a loss by name."""
  return value if isinstance(value, dict) else {method.terms[0]: value}


def _mean_over_classes(
  method: Method, most_labels: int | None, draws: tuple[Key, ...], outputs: Outputs, shares: Array
) -> Terms:
  """Averages the losses for the classes of a mixed label by their shares; one draw serves all classes."""
  classes = shares.shape[-1]
  shares, labels = jax.lax.top_k(shares, min(most_labels or classes, classes))

  def loss(labels: Array) -> Terms:
    return named_terms(method, method.loss(*draws, **outputs, **{method.labels: labels}))

  each = jax.vmap(loss, in_axes=1, out_axes=1)(labels)
  return {name: (shares * values).sum(axis=1) for name, values in each.items()}


def _logged(
  method: Method, target: Target, key: Key, predictions: Array, outputs: Outputs, examples: Examples
) -> dict[str, Array]:
  """Computes the hits of the predictions and the method's diagnostics, of each label."""
  logged = target.hits(predictions, examples)
  if method.diagnose is not None:
    # The loss's own key: the diagnostics report the draws of the loss.
    logged |= method.diagnose(*method.key_for("loss", key), labels=examples.classes, **outputs)
  return jax.lax.stop_gradient(logged)


def _as_row(x: Array) -> Array:
  return x[None]

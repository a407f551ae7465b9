# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
"""The function that a step minimises, the weighted mean of a method's terms plus penalties; its gradient."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxreg import objective as core
from jaxreg.objective._terms import ExampleTerm, Penalty
from jaxreg.objective._view import Pass, View
from jaxreg.train import keys
from jaxreg.train.step.averages import Averaging
from jaxreg.train.step.batch import Examples, by_class, make_examples
from jaxreg.train.step.methods import NUMBERS, Method
from jaxreg.train.step.metrics import weighted
from jaxreg.train.step.network import Outputs, Passed
from jaxreg.train.step.state import ExtraStates, TrainState, Variables
from jaxreg.train.step.targets import CLASSES, Target
from jaxreg.train.step.terms import NetworkView, TrainedFn
from jaxreg.typing import Array, Batch, Key, Metrics, ModelState, Objective, Params, PyTree

RegularizersOf = Callable[[ExtraStates], Mapping[str, Penalty | ExampleTerm]]
# Of each label: `Target.hits`, and the method's diagnostics.
Logged = tuple[dict[str, Array], dict[str, Array]]
Descent = tuple[tuple[Array, tuple[ModelState, Metrics]], Params]  # of `jax.value_and_grad` of an objective


class Given(NamedTuple):
  """What the loss of a step reads beside the parameters; without `apply_key` the pass has no noise."""

  state: TrainState
  examples: Examples
  apply_key: Key | None
  loss_key: Key
  predict_key: Key


class LossPass(NamedTuple):
  """What the loss of a step gives beside its value; the first example term calls `view`."""

  logged: Logged
  model_state: ModelState
  features: PyTree
  outputs: Outputs
  view: Callable[[View], NetworkView]


def make_objective(
  method: Method,
  augmentations: Sequence[Callable[[Key, Batch], Batch]] = (),
  regularizers: RegularizersOf = lambda extras: {},
  *,
  values_fn: Callable[..., Passed],
  average: Averaging | None = None,
  trained_fn: TrainedFn | None = None,
  scale: float = 1.0,
  target: Target = CLASSES,
  most_labels: int | None = None,
  class_weights: Array | None = None,
) -> Objective:
  """Builds `(params, state, batch, key) -> (loss, (model_state, metrics))` of a method with its options.

  A batch has stored `inputs` `[batch, ...]`, `labels` `[batch]` and perhaps `weights` `[batch]`. An example
  of weight 0 has no effect. An example of label -1 has no label. Labels and weights of sequences are
  `[batch, length]`, and a label of weight 0 has no effect.

  The augmentations are applied to the batch in their order, then `make_examples`. An augmentation that mixes
  examples turns the labels into probabilities. A method without soft labels then takes the mean of its losses
  for the classes, weighted by their shares. `most_labels` is the largest number of classes of one mixed
  example, so that no losses for other classes are computed; None computes all classes.

  `class_weights` `[classes]` multiply the weights of the examples, in all but the accuracy. `target` says
  whether the labels are classes or numbers.

  `jaxreg.objective` adds the `regularizers`, functions of the state's extras, to the mean over the examples.
  Example terms see the features of the backbone, and the teacher `trained_fn`. Every term is a metric, and
  the loss is the sum of the terms. `values_fn` is of `make_values_fn`; by chunks no term sees outputs.
  """
  make_view = functools.partial(network_view, method, average, trained_fn)

  def logged(key: Key, predict_key: Key, examples: Examples, outputs: Outputs) -> Logged:
    predictions = target.original(method.predict(predict_key, **outputs))
    diagnostics: dict[str, Array] = {}
    if method.diagnose is not None:
      # The loss's own key: the diagnostics report the draws of the loss.
      key = keys.again(key)
      diagnostics = method.diagnose(key, labels=examples.classes, **outputs)
    return jax.lax.stop_gradient((target.hits(predictions, examples), diagnostics))

  def loss_fn(params: Params, given: Given, *, key: Key | None) -> tuple[dict[str, Array], LossPass]:
    del key  # that of the terms
    state, examples, apply_key, loss_key, predict_key = given

    def of_outputs(
      draws: tuple[Key, Key], examples: Examples, outputs: Outputs
    ) -> tuple[dict[str, Array], Logged]:
      terms = _loss_terms(method, most_labels, draws[0], examples, outputs)
      return terms, logged(*draws, examples, outputs)

    draws = (loss_key, predict_key)
    (values, measured), passed, model_state = values_fn(
      of_outputs, draws, params, state.model_state, examples, key=apply_key, train=apply_key is not None
    )
    return values, LossPass(measured, model_state, *passed, functools.cache(make_view))

  def objective(
    params: Params, state: TrainState, batch: Batch, key: Key
  ) -> tuple[Array, tuple[ModelState, Metrics]]:
    apply_key, loss_key, predict_key, augment_key = keys.streams(key)
    for number, augment in enumerate(augmentations):
      batch = augment(keys.numbered(augment_key, number), batch)
    examples = make_examples(batch, scale, target.standard)
    plain_weights = examples.label_weights
    if class_weights is not None:
      examples = by_class(examples, class_weights)
    terms = regularizers(state.extras)
    composed = core.compose(loss_fn, terms, has_aux=True, with_metrics=True, weights_fn=_label_weights)
    given = Given(state, examples, apply_key, loss_key, predict_key)
    loss, (((hits, diagnostics), model_state, *_), metrics) = composed(params, given, key=augment_key)
    metrics |= {name: weighted(value, plain_weights) for name, value in hits.items()}
    metrics |= {name: weighted(value, examples.label_weights) for name, value in diagnostics.items()}
    return loss, (model_state, jax.lax.stop_gradient(metrics))

  return objective


def _label_weights(given: Given) -> Array:
  return given.examples.label_weights


def _loss_terms(
  method: Method, most_labels: int | None, key: Key, examples: Examples, outputs: Outputs
) -> dict[str, Array]:
  """The terms of the method's loss for each example, `[batch]`; one draw serves all classes of an example."""
  loss = functools.partial(method.loss, key, **outputs)
  if method.soft_labels or not examples.mixed:
    return loss(labels=examples.labels)
  classes = examples.labels.shape[-1]
  shares, labels = jax.lax.top_k(examples.labels, min(most_labels or classes, classes))

  def of_labels(labels: Array) -> dict[str, Array]:
    return loss(labels=labels)

  each = jax.vmap(of_labels, in_axes=1, out_axes=1)(labels)
  return {name: (shares * values).sum(axis=1) for name, values in each.items()}


def network_view(
  method: Method, average: Averaging | None, trained_fn: TrainedFn | None, view: View
) -> NetworkView:
  """What the example terms see of the pass that `jaxreg.objective` shows them."""
  given: Given = view.batch
  state, examples, apply_key, loss_key, predict_key = given
  assert apply_key is not None  # the loss's own pass has noise

  def again(x: Array, noise: Key | None, averaged: Variables | None = None) -> Pass:
    """A further pass, in which the loss draws as in its own."""
    params, of_state = None, state
    if averaged is not None:
      params, of_state = averaged["params"], state.replace(model_state=averaged["model_state"])
    draws = keys.again(loss_key), keys.again(predict_key)
    return view.again(batch=Given(of_state, examples._replace(inputs=x), noise, *draws), params=params)

  def loss_fn(x: Array, noise: Key | None) -> Array:
    return again(x, noise).loss

  def predicted(outputs: Outputs) -> Array:
    # A random prediction rule draws with the loss's key.
    return method.predict(keys.again(loss_key), **outputs)

  def log_probs_fn(x: Array, noise: Key | None) -> Array:
    return predicted(again(x, noise).aux.outputs)

  def averaged_fn(average: Averaging) -> Callable[[Array], Array]:
    current: Variables = {"params": view.params, "model_state": state.model_state}
    averaged = average.params(state.extras["average"], current)
    return lambda x: jax.lax.stop_gradient(predicted(again(x, None, averaged).aux.outputs))

  return NetworkView(
    inputs=examples.inputs,
    weights=examples.weights,
    log_probs=predicted(view.aux.outputs),
    features=view.aux.features,
    outputs=view.aux.outputs,
    noise=None if state.model_state else keys.again(apply_key),
    loss_fn=loss_fn,
    log_probs_fn=log_probs_fn,
    teacher_fn=None if average is None else averaged_fn(average),
    trained_fn=trained_fn,
    predicts_numbers=method.predicts in NUMBERS,
  )


def make_gradient(objective: Objective, parts: int = 1) -> Callable[..., Descent]:
  """The value and gradient of an objective; over `parts` microbatches, weighted by the examples' weights."""
  gradient = jax.value_and_grad(objective, has_aux=True)
  if parts == 1:
    return gradient
  sums, means = optax.microbatching.AccumulationType.SUM, optax.microbatching.AccumulationType.MEAN

  def whole(params: Params, state: TrainState, batch: Batch, key: Key) -> Descent:
    number = len(batch["labels"])

    def one(batch: Batch, position: Array) -> tuple[PyTree, ModelState]:
      part_key = keys.numbered(key, position[0])
      (loss, (model_state, metrics)), grads = gradient(params, state, batch, part_key)
      count = metrics["loss"][1]

      def weighed(x: Array) -> Array:
        return x * count

      return (jax.tree.map(weighed, (loss, grads)), metrics, count), jax.tree.map(_floating, model_state)

    loop = optax.microbatch(one, argnums=(0, 1), microbatch_size=number // parts, accumulator=(sums, means))
    ((loss, grads), metrics, count), model_state = loop(batch, jnp.arange(number))

    def divided(x: Array) -> Array:
      return x / jnp.where(count > 0, count, 1)

    loss, grads = jax.tree.map(divided, (loss, grads))
    return (loss, (jax.tree.map(_restored, model_state, state.model_state), metrics)), grads

  return whole


def _floating(x: Array) -> Array:
  # Counts and flags are the same after every part, so that their mean is exact.
  return x if jnp.issubdtype(x.dtype, jnp.inexact) else x.astype(jnp.float32)


def _restored(mean: Array, old: Array) -> Array:
  return mean if jnp.issubdtype(old.dtype, jnp.inexact) else jnp.round(mean).astype(old.dtype)

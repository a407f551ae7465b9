# pyright: reportUnknownMemberType=false
"""The function that a step minimises: the weighted mean of a method's terms over a batch, plus penalties."""

import functools
from collections.abc import Callable, Mapping, Sequence

import jax

from jaxreg import objective as core
from jaxreg.objective._terms import ExampleTerm
from jaxreg.train import keys
from jaxreg.train.lookup import Options
from jaxreg.train.step.averages import Averaging
from jaxreg.train.step.batch import Examples, by_class, make_examples
from jaxreg.train.step.head_outputs import Passed
from jaxreg.train.step.methods import Method
from jaxreg.train.step.metrics import weighted
from jaxreg.train.step.network_view import Given, Logged, LossPass, Outputs, TrainedFn, make_view_fn
from jaxreg.train.step.regularizers import PenaltyOf
from jaxreg.train.step.state import TrainState
from jaxreg.train.step.targets import CLASSES, Target
from jaxreg.typing import Array, Batch, Key, Metrics, ModelState, Objective, Params


def make_objective(
  method: Method,
  loss_options: Options,
  predict_options: Options,
  augmentations: Sequence[Callable[[Key, Batch], Batch]] = (),
  penalties: Mapping[str, PenaltyOf] | None = None,
  terms: Mapping[str, ExampleTerm] | None = None,
  *,
  values_fn: Callable[..., Passed],
  average: Averaging | None = None,
  trained_fn: TrainedFn | None = None,
  scale: float = 1.0,
  target: Target = CLASSES,
  most_labels: int | None = None,
  class_weights: Array | None = None,
) -> Objective:
  """Builds `(params, state, batch, key) -> (loss, (model_state, metrics))`.

  A batch has stored `inputs` `[batch, ...]`, `labels` `[batch]` and perhaps `weights` `[batch]`. An example
  of weight 0 has no effect. An example of label -1 has no label. Labels and weights of sequences are
  `[batch, length]`, and a label of weight 0 has no effect.

  The augmentations are applied to the batch in their order, then `make_examples`. An augmentation that mixes
  examples turns the labels into probabilities. A method without soft labels then takes the mean of its losses
  for the classes, weighted by their shares. `most_labels` is the largest number of classes of one mixed
  example, so that no losses for other classes are computed; None computes all classes.

  `class_weights` `[classes]` multiply the weights of the examples, in all but the accuracy. `target` says
  whether the labels are classes or numbers.

  `jaxreg.objective` adds the penalties, functions of the state's extras, and the `terms` to the mean over the
  examples. Terms see the features of the backbone, and the teacher `trained_fn`. Every term is a metric, and
  the loss is the sum of the terms. `values_fn` is of `make_values_fn`; by chunks no term sees outputs.
  """
  loss_terms = functools.partial(_loss_terms, method, loss_options, most_labels)
  make_view = make_view_fn(method, predict_options, average=average, trained_fn=trained_fn)

  def logged(key: Key, predict_key: Key, examples: Examples, outputs: Outputs) -> Logged:
    predictions = target.original(method.predict(predict_key, **outputs, **predict_options))
    diagnostics: dict[str, Array] = {}
    if method.diagnose is not None:
      # The loss's own key: the diagnostics report the draws of the loss.
      key = keys.again(key)
      diagnostics = method.diagnose(key, labels=examples.classes, **outputs, **loss_options)
    return jax.lax.stop_gradient((target.hits(predictions, examples), diagnostics))

  def loss_fn(params: Params, given: Given, *, key: Key | None) -> tuple[dict[str, Array], LossPass]:
    del key  # that of the terms
    state, examples, apply_key, loss_key, predict_key = given

    def of_outputs(
      draws: tuple[Key, Key], examples: Examples, outputs: Outputs
    ) -> tuple[dict[str, Array], Logged]:
      return loss_terms(draws[0], examples, outputs), logged(*draws, examples, outputs)

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
    composed = core.compose(
      loss_fn,
      {**{name: of_extras(state.extras) for name, of_extras in (penalties or {}).items()}, **(terms or {})},
      has_aux=True,
      with_metrics=True,
      weights_fn=_label_weights,
    )
    given = Given(state, examples, apply_key, loss_key, predict_key)
    loss, (((hits, diagnostics), model_state, *_), metrics) = composed(params, given, key=augment_key)
    metrics |= {name: weighted(value, plain_weights) for name, value in hits.items()}
    metrics |= {name: weighted(value, examples.label_weights) for name, value in diagnostics.items()}
    return loss, (model_state, jax.lax.stop_gradient(metrics))

  return objective


def _label_weights(given: Given) -> Array:
  return given.examples.label_weights


def _loss_terms(
  method: Method,
  options: Options,
  most_labels: int | None,
  key: Key,
  examples: Examples,
  outputs: Outputs,
) -> dict[str, Array]:
  """The terms of the method's loss for each example, `[batch]`; one draw serves all classes of an example."""
  loss = functools.partial(method.loss, key, **outputs, **options)
  if method.soft_labels or not examples.mixed:
    return loss(labels=examples.labels)
  classes = examples.labels.shape[-1]
  shares, labels = jax.lax.top_k(examples.labels, min(most_labels or classes, classes))

  def of_labels(labels: Array) -> dict[str, Array]:
    return loss(labels=labels)

  each = jax.vmap(of_labels, in_axes=1, out_axes=1)(labels)
  return {name: (shares * values).sum(axis=1) for name, values in each.items()}

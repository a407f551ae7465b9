# pyright: reportUnknownMemberType=false
"""What the terms beside the loss may ask of a step: examples, outputs, further passes of the network."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax

from jaxreg.objective._view import Pass, View
from jaxreg.train import keys
from jaxreg.train.lookup import Options
from jaxreg.train.step.averages import Averaging
from jaxreg.train.step.batch import Examples
from jaxreg.train.step.methods import NUMBERS, Method
from jaxreg.train.step.state import TrainState, Variables
from jaxreg.typing import Array, Key, ModelState, PyTree

Outputs = Mapping[str, PyTree]  # what a head returns, by name
Logged = tuple[
  dict[str, Array], dict[str, Array]
]  # of each label: `Target.hits`, and the method's diagnostics
TrainedFn = Callable[[Key, Array], Array]  # as `NetworkView.trained_fn`


class Given(NamedTuple):
  """What the loss of a step reads beside the parameters; without `apply_key` the pass has no noise."""

  state: TrainState
  examples: Examples
  apply_key: Key | None
  loss_key: Key
  predict_key: Key


@dataclasses.dataclass(frozen=True)
class NetworkView:
  """Everything that a term may ask of the network, at the parameters of the step.

  Attributes:
    inputs: `[batch, ...]`, floating, in the model's units.
    weights: `[batch]`, the weights of all examples, with a label or without.
    log_probs: `[batch, classes]`, from the loss's pass.
    features: `[batch, ...]`, the input of the head in the same pass.
    noise: the key of the loss's pass; None for a model with BatchNorm, because its training mode would mix
      the examples of the batch.
    loss_fn: `(inputs, noise) -> [batch]`, the method's loss; `noise=None` gives the loss in evaluation mode.
    log_probs_fn: `(inputs, noise) -> [batch, classes]`, likewise.
    teacher_fn: `inputs -> [batch, classes]`, log-probabilities under the averaged parameters and statistics,
      without noise and without gradient; None if the run averages no parameters.
    trained_fn: `(key, inputs) -> [batch, classes]`, log-probabilities of a trained run, without gradient; the
      key is for predictions that draw. None if no run is given.
    outputs: what the head returns in the loss's pass, by name, such as `logits` `[batch, classes]`.
    predicts_numbers: whether the labels are numbers; the predictions in place of log-probabilities are then
      standardised, as `Numbers` describes them.
  """

  inputs: Array
  weights: Array
  log_probs: Array
  features: PyTree
  noise: Key | None
  loss_fn: Callable[[Array, Key | None], Array]
  log_probs_fn: Callable[[Array, Key | None], Array]
  teacher_fn: Callable[[Array], Array] | None
  trained_fn: TrainedFn | None = None
  outputs: Outputs = dataclasses.field(default_factory=dict[str, PyTree])
  predicts_numbers: bool = False

  @property
  def same_noise(self) -> Key | None:
    """The key of the noise in the loss's pass, cloned: its second use is intended."""
    return None if self.noise is None else keys.again(self.noise)

  def log_probs_same_noise(self, x: Array) -> Array:
    """The log-probabilities `[batch, classes]` of the inputs `x`, with the noise of the loss's pass."""
    return self.log_probs_fn(x, self.same_noise)


class LossPass(NamedTuple):
  """What the loss of a step gives beside its value; the first example term calls `view`."""

  logged: Logged
  model_state: ModelState
  features: PyTree
  outputs: Outputs
  view: Callable[[View], NetworkView]


def make_view_fn(
  method: Method,
  predict_options: Options,
  *,
  average: Averaging | None,
  trained_fn: TrainedFn | None,
) -> Callable[[View], NetworkView]:
  """Builds `make_view(view)`, for the example terms, of what `jaxreg.objective` shows them."""

  def make_view(view: View) -> NetworkView:
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
      return method.predict(keys.again(loss_key), **outputs, **predict_options)

    def log_probs_fn(x: Array, noise: Key | None) -> Array:
      return predicted(again(x, noise).aux.outputs)

    teacher_fn = None
    if average is not None:
      current: Variables = {"params": view.params, "model_state": state.model_state}
      averaged = average.params(state.extras["average"], current)

      def averaged_fn(x: Array) -> Array:
        return jax.lax.stop_gradient(predicted(again(x, None, averaged).aux.outputs))

      teacher_fn = averaged_fn
    return NetworkView(
      inputs=examples.inputs,
      weights=examples.weights,
      log_probs=predicted(view.aux.outputs),
      features=view.aux.features,
      outputs=view.aux.outputs,
      noise=None if state.model_state else keys.again(apply_key),
      loss_fn=loss_fn,
      log_probs_fn=log_probs_fn,
      teacher_fn=teacher_fn,
      trained_fn=trained_fn,
      predicts_numbers=method.predicts in NUMBERS,
    )

  return make_view

# pyright: reportUnknownMemberType=false
"""What the terms beside the loss may ask of a step: examples, outputs, further passes of the network."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxreg.train import keys
from jaxreg.train.lookup import Options
from jaxreg.train.step.averages import Averaging
from jaxreg.train.step.batch import Examples
from jaxreg.train.step.methods import NUMBERS, Method
from jaxreg.train.step.state import TrainState, Variables
from jaxreg.typing import ApplyFn, Array, Key, ModelState, Params, PyTree

Outputs = Mapping[str, PyTree]  # what a head returns, by name
Logged = tuple[
  dict[str, Array], dict[str, Array]
]  # of each label: `Target.hits`, and the method's diagnostics
TrainedFn = Callable[[Key, Array], Array]  # as `NetworkView.trained_fn`


class Given(NamedTuple):
  """What the loss of a step reads beside the parameters."""

  state: TrainState
  examples: Examples
  apply_key: Key
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
  view: Callable[[], NetworkView]


def make_view_fn(
  apply_fn: ApplyFn,
  method: Method,
  predict_options: Options,
  loss_terms: Callable[[Key, Examples, Outputs], dict[str, Array]],
  *,
  features_fn: ApplyFn | None,
  average: Averaging | None,
  trained_fn: TrainedFn | None,
) -> Callable[[Params, Given, Outputs], NetworkView]:
  """Builds `make_view(params, given, outputs)`, for the example terms."""

  def make_view(params: Params, given: Given, outputs: Outputs) -> NetworkView:
    state, examples, apply_key, loss_key, _ = given
    current: Variables = {"params": params, "model_state": state.model_state}
    mixing = {} if examples.mixing is None else {"mixing": examples.mixing}

    def outputs_fn(x: Array, noise: Key | None, variables: Variables) -> Outputs:
      params, model_state = variables["params"], variables["model_state"]
      return apply_fn(params, model_state, x, key=noise, train=noise is not None, **mixing)[0]

    def loss_fn(x: Array, noise: Key | None) -> Array:
      values = loss_terms(keys.again(loss_key), examples, outputs_fn(x, noise, current))
      return sum(values.values(), start=jnp.zeros(()))

    def log_probs_fn(x: Array, noise: Key | None, variables: Variables = current) -> Array:
      # A random prediction rule draws with the loss's key.
      return method.predict(keys.again(loss_key), **outputs_fn(x, noise, variables), **predict_options)

    features = teacher_fn = None
    if features_fn is not None:
      # This repeats the loss's pass; the compiler merges the two.
      same_key = keys.again(apply_key)
      features, _ = features_fn(
        params, state.model_state, examples.inputs, key=same_key, train=True, **mixing
      )
    if average is not None:
      averaged = average.params(state.extras["average"], current)

      def averaged_fn(x: Array) -> Array:
        return jax.lax.stop_gradient(log_probs_fn(x, None, averaged))

      teacher_fn = averaged_fn
    return NetworkView(
      inputs=examples.inputs,
      weights=examples.weights,
      log_probs=method.predict(keys.again(loss_key), **outputs, **predict_options),
      features=features,
      outputs=outputs,
      noise=None if state.model_state else keys.again(apply_key),
      loss_fn=loss_fn,
      log_probs_fn=log_probs_fn,
      teacher_fn=teacher_fn,
      trained_fn=trained_fn,
      predicts_numbers=method.predicts in NUMBERS,
    )

  return make_view

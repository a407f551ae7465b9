"""The pure functions of a run."""

# pyright: reportMissingTypeStubs=false

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from jaxreg.train.methods.method import Method
from jaxreg.train.step.batch import Examples, make_examples
from jaxreg.train.step.forward import Forward
from jaxreg.train.step.metrics import Sums
from jaxreg.train.step.network import Network
from jaxreg.train.step.state import Extras, TrainState
from jaxreg.train.step.targets import Target
from jaxreg.typing import ApplyFn, Array, Batch, Key, Metrics, ModelState, Params


@dataclasses.dataclass(frozen=True)
class Program:
  """The pure functions of a run.

  Attributes:
    init: `(seed) -> TrainState`.
    network: the backbone and the head as pure functions.
    scale: the divisor of stored inputs.
    target: whether the labels are classes or numbers; what predictions are, and how they are measured.
    forward: `(params, batch, *, key) -> (terms, Pass)`: the network and the method's loss of each example.
    train_step: `(state, batch, *, axis_name=None) -> (state, metrics)`.
    sharpness_step: takes the arguments of `train_step`, and returns the state as it was and the sharpness
      along the update.
    predict_fn: `(state, inputs, key) -> predictions`, with the state's `params`, of inputs as in `Examples`;
      predicted numbers are standardised, and `target.original` turns them into the units of the data.
    predict_step: `(state, batch, number) -> predictions`, from `predict_fn`, with keys of the run.
    eval_step: `(state, batch, number) -> metrics`, of `predict_step`'s predictions.
    extras: builds and updates the state's extras, and gives the parameters for predictions.
    ensemble: how many replicas in a row predict together.
    method: the head, the loss and the prediction rule; the latter two have their options.
    name: the name of the method.
    terms: the names of the terms that the loss adds up.
    schedule: `step -> learning rate`.
    steps_per_epoch, num_steps: the length of the run.
    abstract: the state's shapes and dtypes.
  """

  init: Callable[[Array | int], TrainState]
  network: Network
  scale: float
  target: Target
  forward: Forward
  train_step: Callable[..., tuple[TrainState, Metrics]]
  sharpness_step: Callable[..., tuple[TrainState, Metrics]]
  predict_fn: Callable[..., Array]
  predict_step: Callable[..., Array]
  eval_step: Callable[..., Sums]
  extras: Extras
  ensemble: int
  method: Method
  name: str
  terms: tuple[str, ...]
  schedule: optax.Schedule
  steps_per_epoch: int
  num_steps: int
  abstract: TrainState

  @property
  def apply_fn(self) -> ApplyFn:
    """`(params, model_state, x, *, key, train) -> (outputs, model_state)`, of inputs as in `Examples`."""
    return self.network.apply

  def losses(self, params: Params, model_state: ModelState, examples: Examples, *, key: Key | None) -> Array:
    """Computes the method's loss of each label, the sum of its terms.

    With `key=None` the network is in evaluation mode, and a loss that draws always draws the same.
    """
    apply_key, loss_key = (None, jax.random.key(0)) if key is None else jax.random.split(key)
    batch = {"inputs": examples.inputs, "examples": examples, "model_state": model_state}
    batch |= {"loss_key": loss_key, "predict_key": loss_key}
    terms, _ = self.forward(params, batch, key=apply_key)
    return functools.reduce(jnp.add, terms.values())

  def examples(self, batch: Batch) -> Examples:
    """Returns the examples of a stored batch, which is not augmented."""
    return make_examples(batch, self.scale, numbers=self.target.numbers)

  def predicting(self, state: TrainState) -> TrainState:
    """Returns the state with the parameters for predictions."""
    return self.extras.predicting(state)

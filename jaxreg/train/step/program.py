# pyright: reportMissingTypeStubs=false
"""The pure functions of a run."""

import dataclasses
from collections.abc import Callable

import optax

from jaxreg import models
from jaxreg.train.step.batch import Examples, make_examples
from jaxreg.train.step.methods import Method
from jaxreg.train.step.metrics import Sums
from jaxreg.train.step.network import Passed
from jaxreg.train.step.state import Extras, TrainState
from jaxreg.train.step.targets import Target
from jaxreg.typing import ApplyFn, Array, Batch, Metrics


@dataclasses.dataclass(frozen=True)
class Program:
  """The pure functions of a run.

  Attributes:
    init: `(seed) -> TrainState`.
    model: the Linen module, of which a backbone of another kind is a part.
    scale: the divisor of stored inputs.
    target: whether the labels are classes or numbers; what predictions are, and how they are measured.
    apply_fn: `(params, model_state, x, *, key, train) -> (outputs, model_state)`, of inputs as in `Examples`.
    train_step: `(state, batch, *, axis_name=None) -> (state, metrics)`.
    predict_fn: `(state, inputs, key) -> predictions`, with the state's `params`, of inputs as in `Examples`.
    predict_step: `(state, batch, number) -> predictions`, from `predict_fn`, with keys of the run.
    eval_step: `(state, batch, number) -> metrics`, of `predict_step`'s predictions.
    values_fn: what `make_values_fn` builds, with `method.chunk_size`.
    evaluated: `(state, metric) -> state`, called after each evaluation on the validation split, or None.
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
  model: models.Classifier
  scale: float
  target: Target
  apply_fn: ApplyFn
  train_step: Callable[..., tuple[TrainState, Metrics]]
  predict_fn: Callable[..., Array]
  predict_step: Callable[..., Array]
  eval_step: Callable[..., Sums]
  values_fn: Callable[..., Passed]
  evaluated: Callable[[TrainState, Array], TrainState] | None
  extras: Extras
  ensemble: int
  method: Method
  name: str
  terms: tuple[str, ...]
  schedule: optax.Schedule
  steps_per_epoch: int
  num_steps: int
  abstract: TrainState

  def examples(self, batch: Batch) -> Examples:
    """The examples of a stored batch, which is not augmented."""
    return make_examples(batch, self.scale, self.target.standard)

  def predicting(self, state: TrainState) -> TrainState:
    """The state with the parameters for predictions."""
    return self.extras.predicting(state)

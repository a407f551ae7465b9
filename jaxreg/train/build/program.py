"""The pure functions of a run, put together as a configuration says."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxreg import models
from jaxreg.train.build import parts
from jaxreg.train.step import named as toolbox
from jaxreg.train.step.averages import make_average
from jaxreg.train.config.fields import Config
from jaxreg.train.data.dataset import is_tokens
from jaxreg.train.step.side_state import Extras
from jaxreg.train.step.methods import Method, find_method
from jaxreg.train.step.network import make_apply_fn
from jaxreg.train.step.objective import make_objective
from jaxreg.train.step.optimizer import unbalance
from jaxreg.train.step.state import TrainState
from jaxreg.train.step.step import make_eval_step, make_predict_fn, make_predict_step, make_train_step
from jaxreg.typing import ApplyFn, Array


@dataclasses.dataclass(frozen=True)
class Program:
  """The pure functions of a run.

  Attributes:
    init: `(seed) -> TrainState`.
    model: the Linen module.
    apply_fn: `(params, model_state, x, *, key, train) -> (outputs, model_state)`.
    train_step: `(state, batch, *, axis_name=None) -> (state, metrics)`.
    predict_fn: `(state, inputs, key) -> log_probs`, with the state's `params`.
    predict_step: `(state, batch, number) -> log_probs`, of the same, with keys of the run.
    eval_step: `(state, batch, number) -> metrics`, of those.
    extras: what the state holds beside the parameters, and which of them are predicted with.
    ensemble: so many replicas in a row predict together.
    method: what `method.name` names.
    loss_options, predict_options: options of the loss and of the prediction rule.
    schedule: `step -> learning rate`.
    steps_per_epoch, num_steps: the length of the run.
    abstract: the state's shapes and dtypes.
  """

  init: Callable[[Array | int], TrainState]
  model: models.Classifier
  apply_fn: ApplyFn
  train_step: Callable[..., tuple[TrainState, dict[str, Any]]]
  predict_fn: Callable[..., Array]
  predict_step: Callable[..., Array]
  eval_step: Callable[..., dict[str, Any]]
  extras: Extras
  ensemble: int
  method: Method
  loss_options: dict[str, Any]
  predict_options: dict[str, Any]
  schedule: optax.Schedule
  steps_per_epoch: int
  num_steps: int
  abstract: TrainState

  def predicting(self, state: TrainState) -> TrainState:
    """The state with the parameters to predict with."""
    return self.extras.predicting(state)


def make_program(config: Config, data: dict[str, Any], steps_per_epoch: int, num_steps: int) -> Program:
  """The functions of a run of so many steps, for data as `Dataset.describe` gives it.

  Raises:
    ValueError, TypeError: for options that do not fit each other, the data or the model.
  """
  length = {"steps_per_epoch": steps_per_epoch, "num_steps": num_steps}
  method, options = find_method(config.method.name), parts.method_options(config)
  model = parts.make_model(config, data, options["head"])
  noises = parts.make_noises(config, data)
  make_apply = functools.partial(
    make_apply_fn,
    model,
    data["scale"],
    config.augment.mean,
    config.augment.std,
    config.precision,
    noises,
  )
  apply_fn = make_apply()
  schedule = parts.make_schedule(config, **length)
  optimizer = parts.make_optimizer(config, data, model, schedule)
  regularizers = config.regularizers.to_dict()
  average = make_average(config.average.name, **length, **config.average.get(config.average.name, {}))
  extras = Extras(average, toolbox.make_duals(regularizers), reference=toolbox.needs_reference(regularizers))
  init = _make_init(config, data, model, optimizer, extras)
  abstract = jax.eval_shape(init, jax.ShapeDtypeStruct((), jnp.uint32))
  parts.check_state(config, data, has_statistics=bool(abstract.model_state))

  objective = make_objective(
    apply_fn,
    method,
    options["loss"],
    options["predict"],
    parts.make_augmentations(config, data, noises["labels"]),
    toolbox.make_penalties(regularizers),
    parts.make_terms(config, data),
    features_fn=make_apply(method=lambda model, x, train: model.backbone(x, train=train)),
    average=average if config.average.name == "ema" else None,
    scale=data["scale"],
    most_labels=parts.most_labels(config),
  )
  predict_fn = make_predict_fn(apply_fn, method, options["predict"], mc_samples=config.evaluate.mc_samples)
  predict_step = make_predict_step(predict_fn)
  return Program(
    init=init,
    model=model,
    apply_fn=apply_fn,
    train_step=make_train_step(objective, optimizer, schedule, accumulate=config.accumulate, extras=extras),
    predict_fn=predict_fn,
    predict_step=predict_step,
    eval_step=make_eval_step(predict_step),
    extras=extras,
    ensemble=config.ensemble,
    method=method,
    loss_options=options["loss"],
    predict_options=options["predict"],
    schedule=schedule,
    **length,
    abstract=abstract,
  )


def _make_init(
  config: Config,
  data: dict[str, Any],
  model: models.Classifier,
  optimizer: optax.GradientTransformation,
  extras: Extras,
) -> Callable[[Array | int], TrainState]:
  """Builds `init(seed) -> TrainState`."""
  dtype = jnp.int32 if is_tokens(data["input_dtype"]) else jnp.float32
  input_shape, spread = data["input_shape"], config.model.unbalance

  def init(seed: Array | int) -> TrainState:
    run_key, init_key = jax.random.split(jax.random.key(seed))
    variables = dict(model.init(init_key, jnp.zeros((1, *input_shape), dtype), train=False))
    params = variables.pop("params")
    if spread:
      params = unbalance(jax.random.fold_in(run_key, 2**32 - 3), params, spread)
    return TrainState(
      jnp.int32(0), run_key, params, variables, optimizer.init(params), extras.init(params, variables)
    )

  return init

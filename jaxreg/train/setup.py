"""From a configuration to functions: below here, nothing sees a configuration."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.errors import FlaxError
from jax.sharding import AxisType

from jaxreg import augment, models
from jaxreg.train import sources
from jaxreg.train.config import Config
from jaxreg.train.data import Dataset
from jaxreg.train.errors import RunError
from jaxreg.train.methods import METHODS, Method
from jaxreg.train.objective import make_objective
from jaxreg.train.optimizer import make_optimizer, make_schedule
from jaxreg.train.state import TrainState
from jaxreg.train.step import make_eval_step, make_train_step
from jaxreg.typing import ApplyFn


@dataclasses.dataclass(frozen=True)
class Program:
  """The pure functions of a run.

  Attributes:
    init: `() -> TrainState`, a function of the seed.
    apply_fn: `(params, model_state, x, *, key, train) -> (outputs, model_state)`.
    train_step: `(state, batch, *, axis_name=None) -> (state, metrics)`.
    eval_step: `(state, batch, number) -> metrics`.
    method: the row of `METHODS`.
    predict_options: options of the prediction rule.
    steps_per_epoch, num_steps: the length of the run.
  """

  init: Callable[[], TrainState]
  apply_fn: ApplyFn
  train_step: Callable[..., tuple[TrainState, dict[str, Any]]]
  eval_step: Callable[..., dict[str, Any]]
  method: Method
  predict_options: dict[str, Any]
  steps_per_epoch: int
  num_steps: int


def load_data(config: Config) -> Dataset:
  """The data set that `config.data` names, checked.

  Raises:
    RunError: naming the field or file at fault.
  """
  name = config.data.name
  data = getattr(sources, name)(**config.data[name])
  return data.checked(f"data.{name}").limited(config.data.limit)


def make_mesh() -> jax.sharding.Mesh:
  """One axis, `data`, over all devices."""
  # Auto axes: with the default Explicit ones, gathers and dropout on the batch axis raise.
  return jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))


def build(config: Config, data: dict[str, Any]) -> Program:
  """The functions that `config` describes, for data as `Dataset.describe` gives it.

  Everything is traced abstractly once, so that what does not fit is told before anything is written.

  Raises:
    RunError: for options that no step can be built from.
  """
  num_train = data["sizes"]["train"]
  if config.batch_size > num_train:
    raise RunError(
      f"batch_size: must be at most the number of training examples, {num_train}, got {config.batch_size}"
    )
  steps_per_epoch = num_train // config.batch_size
  num_steps = config.steps or config.epochs * steps_per_epoch

  channels = data["input_shape"][-1] if data["input_shape"] else 0
  if len(config.augment.mean) not in (0, channels):
    raise RunError(
      f"augment.mean, augment.std: must be {channels} numbers, one a channel, got {config.augment.mean}"
    )
  try:
    program = _build(config, data, steps_per_epoch, num_steps)
    state = jax.eval_shape(program.init)
    batch = {
      "inputs": jax.ShapeDtypeStruct((config.batch_size, *data["input_shape"]), data["input_dtype"]),
      "labels": jax.ShapeDtypeStruct((config.batch_size,), jnp.int32),
      "weights": jax.ShapeDtypeStruct((config.batch_size,), jnp.float32),
    }
    jax.eval_shape(program.train_step, state, batch)
    jax.eval_shape(program.eval_step, state, batch, 0)
  except (ValueError, TypeError, ZeroDivisionError, FlaxError) as error:
    chosen = ", ".join(f"{part}.{config[part].name}" for part in ("model", "method", "optimizer"))
    raise RunError(f"config: {str(error).splitlines()[0]} (with {chosen})") from error
  return program


def _build(config: Config, data: dict[str, Any], steps_per_epoch: int, num_steps: int) -> Program:
  method = METHODS[config.method.name]
  method_options = config.method[config.method.name].to_dict()
  head = method.head(num_classes=data["num_classes"], **method_options["head"])
  backbone = getattr(models, config.model.name)(**config.model[config.model.name].to_dict())
  model = models.Classifier(backbone, head)
  apply_fn = _make_apply(model, data["scale"], config.augment.mean, config.augment.std)
  augmentations = [
    functools.partial(getattr(augment, name), **config.augment[name].to_dict())
    for name in config.augment.names
  ]

  schedule_name = config.optimizer.schedule.name
  schedule = make_schedule(
    schedule_name,
    config.optimizer.learning_rate,
    steps_per_epoch=steps_per_epoch,
    num_steps=num_steps,
    warmup_epochs=config.optimizer.schedule.warmup_epochs,
    **config.optimizer.schedule.get(schedule_name, {}),
  )
  decay = config.optimizer.weight_decay
  optimizer = make_optimizer(
    config.optimizer.name,
    schedule,
    config.optimizer[config.optimizer.name].to_dict(),
    weight_decay=decay.rate,
    decoupled=decay.decoupled,
    mask=decay.mask,
    clip_norm=config.optimizer.clip_norm,
  )

  def init() -> TrainState:
    run_key, init_key = jax.random.split(jax.random.key(config.seed))
    inputs = jnp.zeros((1, *data["input_shape"]), jnp.float32)
    variables = dict(model.init(init_key, inputs, train=False))
    params = variables.pop("params")
    return TrainState(jnp.int32(0), run_key, params, variables, optimizer.init(params))

  objective = make_objective(
    apply_fn, method, method_options["loss"], method_options["predict"], augmentations
  )
  return Program(
    init=init,
    apply_fn=apply_fn,
    train_step=make_train_step(objective, optimizer, schedule),
    eval_step=make_eval_step(apply_fn, method, method_options["predict"]),
    method=method,
    predict_options=method_options["predict"],
    steps_per_epoch=steps_per_epoch,
    num_steps=num_steps,
  )


def _make_apply(model: Any, scale: float, mean: Sequence[float], std: Sequence[float]) -> ApplyFn:
  def apply_fn(params, model_state, x, *, key, train):
    x = x.astype(jnp.float32) / scale
    if mean:
      x = augment.normalize(None, {"inputs": x}, mean=np.asarray(mean), std=np.asarray(std))["inputs"]
    rngs = {} if key is None else {"dropout": key}
    outputs, updated = model.apply(
      {"params": params, **model_state}, x, train=train, rngs=rngs, mutable=list(model_state) if train else []
    )
    return outputs, {**model_state, **updated}

  return apply_fn

"""The pure functions of a run, put together as a configuration says."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxreg import augment, models
from jaxreg.train import toolbox
from jaxreg.train.averages import make_average
from jaxreg.train.config import Config
from jaxreg.train.data import is_tokens
from jaxreg.train.extras import Extras
from jaxreg.train.methods import METHODS, Method
from jaxreg.train.network import make_apply_fn, make_backbone
from jaxreg.train.objective import make_objective
from jaxreg.train.optimizer import make_optimizer, unbalance
from jaxreg.train.schedule import make_schedule
from jaxreg.train.state import TrainState
from jaxreg.train.step import make_eval_step, make_predict_fn, make_predict_step, make_train_step
from jaxreg.train.terms import TERMS
from jaxreg.typing import ApplyFn, Array, Batch, Key


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
    method: the row of `METHODS`.
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
  method = METHODS[config.method.name]
  method_options = config.method[config.method.name].to_dict()
  # What a prediction rule must have of the options, it has of the loss's.
  needed = [
    name
    for name, parameter in inspect.signature(method.predict).parameters.items()
    if parameter.default is inspect.Parameter.empty and name in method_options["loss"]
  ]
  method_options["predict"] |= {name: method_options["loss"][name] for name in needed}
  head = method.head(num_classes=data["num_classes"], **method_options["head"])
  backbone = make_backbone(
    config.model.name, config.model[config.model.name].to_dict(), data.get("model", {})
  )
  model = models.Classifier(backbone, head)
  if is_tokens(data["input_dtype"]) and "gaussian_noise" in config.noise.names:
    raise ValueError(
      f"noise.names: gaussian_noise is on inputs, and those of data.{config.data.name} are tokens"
    )
  noises = toolbox.make_noises(config.noise.to_dict())
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
  mixing = [name for name in config.augment.names if name in ("mixup", "cutmix")]
  if len(mixing) > 1:
    raise ValueError(f"augment.names: only one may mix examples, got {' and '.join(mixing)}")
  augmentations = [_on_labels(noise, data["num_classes"]) for noise in noises["labels"]]
  augmentations += [_augmentation(config, name, data) for name in config.augment.names]
  regularizers = config.regularizers.to_dict()
  terms = toolbox.make_terms(regularizers)
  if config.data.unlabelled.batch_size and all(term.needs_labels for term in terms.values()):
    raise ValueError(
      "data.unlabelled.batch_size: nothing looks at examples without labels; name one of "
      f"{', '.join(name for name, needs in TERMS.items() if not needs)} in regularizers.names, or give 0"
    )
  if terms and (is_tokens(data["input_dtype"]) or data.get("label_shape")):
    raise ValueError(f"regularizers.names: {', '.join(terms)} are for inputs that are no sequences of tokens")

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
  chosen, wrapper = config.optimizer.name, None
  options = config.optimizer[chosen].to_dict()
  if "inner" in options:
    wrapper, chosen = (chosen, options), options.pop("inner")
    options = config.optimizer[chosen].to_dict()
  optimizer = make_optimizer(
    chosen,
    schedule,
    options,
    wrapper=wrapper,
    weight_decay=decay.rate,
    decoupled=decay.decoupled,
    mask=decay.mask,
    clip_norm=config.optimizer.clip_norm,
    constraints=toolbox.make_constraints(config.optimizer.constraints.to_dict(), schedule),
    network={
      "apply": lambda params, x: model.apply({"params": params}, x, train=False),
      "input_shape": data["input_shape"],
      "num_examples": data["sizes"]["train"],
    },
  )

  average = make_average(
    config.average.name,
    num_steps=num_steps,
    steps_per_epoch=steps_per_epoch,
    **config.average.get(config.average.name, {}),
  )
  extras = Extras(average, toolbox.make_duals(regularizers), reference="l2_sp" in regularizers["names"])
  spread = config.model.unbalance

  def init(seed: Array | int) -> TrainState:
    run_key, init_key = jax.random.split(jax.random.key(seed))
    dtype = jnp.int32 if is_tokens(data["input_dtype"]) else jnp.float32
    inputs = jnp.zeros((1, *data["input_shape"]), dtype)
    variables = dict(model.init(init_key, inputs, train=False))
    params = variables.pop("params")
    if spread:
      params = unbalance(jax.random.fold_in(run_key, 2**32 - 3), params, spread)
    return TrainState(
      jnp.int32(0), run_key, params, variables, optimizer.init(params), extras.init(params, variables)
    )

  objective = make_objective(
    apply_fn,
    method,
    method_options["loss"],
    method_options["predict"],
    augmentations,
    toolbox.make_penalties(regularizers),
    terms,
    features_fn=make_apply(method=lambda model, x, train: model.backbone(x, train=train)),
    average=average if config.average.name == "ema" else None,
    scale=data["scale"],
  )
  predict_fn = make_predict_fn(
    apply_fn, method, method_options["predict"], mc_samples=config.evaluate.mc_samples
  )
  predict_step = make_predict_step(predict_fn)
  abstract = jax.eval_shape(init, jax.ShapeDtypeStruct((), jnp.uint32))
  if abstract.model_state and config.average.name in ("swa", "ema"):
    raise ValueError(
      "average.name: statistics, as of BatchNorm, are not those of averaged parameters; give none or "
      f"early_stopping, or average afterwards with jaxreg.averaging, got {config.average.name}"
    )
  if chosen == "path_sgd" and (abstract.model_state or is_tokens(data["input_dtype"])):
    raise ValueError("optimizer.name: path_sgd is for networks of images or vectors without normalisation")
  if chosen == "path_sgd" and method.head not in (models.SoftmaxHead, models.AttentionHead):
    raise ValueError(
      f"optimizer.name: path_sgd is for heads that give logits by affine layers alone, which that of "
      f"method.name={config.method.name} does not"
    )
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
    loss_options=method_options["loss"],
    predict_options=method_options["predict"],
    schedule=schedule,
    steps_per_epoch=steps_per_epoch,
    num_steps=num_steps,
    abstract=abstract,
  )


def _augmentation(config: Config, name: str, data: Mapping[str, Any]) -> Callable[..., Any]:
  """The function of `jaxreg.augment` with its options, and with what the data say."""
  function = getattr(augment, name)
  options = config.augment[name].to_dict()
  if "value_range" in inspect.signature(function).parameters:
    options["value_range"] = (0.0, data["scale"])
  if "num_classes" in inspect.signature(function).parameters:
    if config.data.unlabelled.batch_size:
      raise ValueError(f"augment.names: {name} mixes labels, and some examples have none; leave it out")
    options["num_classes"] = data["num_classes"]
  return functools.partial(function, **options)


def _on_labels(noise: Callable[..., Any], num_classes: int) -> Callable[..., Any]:
  """Label noise as an augmentation, before those that mix labels."""

  def augment(key: Key, batch: Batch) -> Batch:
    return {**batch, "labels": noise(key, batch["labels"], num_classes=num_classes)}

  return augment

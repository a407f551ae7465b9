"""From a configuration to functions: below here, nothing sees a configuration."""

import dataclasses
import functools
import inspect
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.errors import FlaxError
from jax.sharding import AxisType

from jaxreg import augment, models
from jaxreg.train import sources, toolbox
from jaxreg.train.averages import make_average
from jaxreg.train.config import Config
from jaxreg.train.data import Dataset, is_tokens
from jaxreg.train.errors import RunError
from jaxreg.train.extras import Extras
from jaxreg.train.methods import METHODS, Method
from jaxreg.train.objective import make_objective
from jaxreg.train.optimizer import make_optimizer, make_schedule, unbalance
from jaxreg.train.replicas import Loop, Vmap, make_replicas
from jaxreg.train.state import TrainState
from jaxreg.train.step import make_eval_step, make_predict_step, make_train_step
from jaxreg.typing import ApplyFn, Array, Key


@dataclasses.dataclass(frozen=True)
class Program:
  """The pure functions of a run.

  Attributes:
    init: `(seed) -> TrainState`.
    model: the Linen module.
    apply_fn: `(params, model_state, x, *, key, train) -> (outputs, model_state)`.
    train_step: `(state, batch, *, axis_name=None) -> (state, metrics)`.
    predict_step: `(state, batch, number) -> log_probs`, with the state's `params`.
    eval_step: `(state, batch, number) -> metrics`, of the same.
    extras: what the state holds beside the parameters, and which of them are predicted with.
    ensemble: so many replicas in a row predict together.
    method: the row of `METHODS`.
    loss_options, predict_options: options of the loss and of the prediction rule.
    steps_per_epoch, num_steps: the length of the run.
    abstract: the state's shapes and dtypes.
  """

  init: Callable[[Array | int], TrainState]
  model: models.Classifier
  apply_fn: ApplyFn
  train_step: Callable[..., tuple[TrainState, dict[str, Any]]]
  predict_step: Callable[..., Array]
  eval_step: Callable[..., dict[str, Any]]
  extras: Extras
  ensemble: int
  method: Method
  loss_options: dict[str, Any]
  predict_options: dict[str, Any]
  steps_per_epoch: int
  num_steps: int
  abstract: TrainState

  def predicting(self, state: TrainState) -> TrainState:
    """The state with the parameters to predict with."""
    return state.replace(params=self.extras.predicting(state.params, state.extras))


def load_data(config: Config) -> Dataset:
  """The data set that `config.data` names, checked.

  Raises:
    RunError: naming the field or file at fault.
  """
  name = config.data.name
  data = getattr(sources, name)(**config.data[name])
  data = data.checked(f"data.{name}").subset(**config.data.subset).limited(config.data.limit)
  data = data.with_flipped_labels(**config.data.flipped_labels)
  return data.with_unlabelled() if config.data.unlabelled.batch_size else data.without_rest()


def make_mesh() -> jax.sharding.Mesh:
  """One axis, `data`, over all devices."""
  # Auto axes: with the default Explicit ones, gathers and dropout on the batch axis raise.
  return jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))


def check_devices(config: Config) -> None:
  """Checks that a batch can be laid out on the devices.

  Raises:
    RunError: if it cannot.
  """
  if config.parallel == "pmap" and jax.process_count() > 1:
    raise RunError(f"parallel: pmap runs in one process, here are {jax.process_count()}; give parallel=jit")
  devices = jax.device_count()
  unlabelled = config.data.unlabelled.batch_size
  if unlabelled and (config.parallel == "pmap" or config.accumulate > 1):
    raise RunError(
      "data.unlabelled.batch_size: parts of a batch would have examples with labels only, or without; give "
      f"parallel=jit and accumulate=1, got {config.parallel} and {config.accumulate}"
    )
  if (config.batch_size + unlabelled) % devices:
    raise RunError(
      f"batch_size: must with data.unlabelled.batch_size be divisible by the number of devices, {devices}, "
      f"got {config.batch_size} + {unlabelled}"
    )
  if not unlabelled and config.batch_size % (devices * config.accumulate):
    parts = f", {devices}"
    if config.accumulate > 1:
      parts = f" times accumulate, {devices} * {config.accumulate}"
    raise RunError(f"batch_size: must be divisible by the number of devices{parts}, got {config.batch_size}")


def steps_per_dispatch(config: Config) -> int:
  """How many steps one dispatch makes: on a CPU one, because there convolutions in a loop are slow."""
  alone = jax.default_backend() == "cpu" or config.parallel == "pmap"
  return config.steps_per_dispatch or (1 if alone else 8)


def is_resident(config: Config, dataset: Dataset) -> bool:
  """Whether the data are to lie on the devices."""
  return dataset.nbytes <= config.data.resident_gib * 2**30


def replicas_of(config: Config, mesh: jax.sharding.Mesh, program: "Program") -> Vmap | Loop:
  """The form in which the replicas are trained."""
  return make_replicas(
    mesh,
    config.replicas_by,
    number=config.replicas,
    params=program.abstract.params,
    parallel=config.parallel,
  )


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
  unlabelled, rest = config.data.unlabelled.batch_size, data["sizes"].get("unlabelled", 0)
  if unlabelled > rest:
    raise RunError(
      f"data.unlabelled.batch_size: must be at most {rest}, what data.{config.data.name} and data.subset "
      f"leave of the training examples, got {unlabelled}"
    )
  steps_per_epoch = num_train // config.batch_size
  num_steps = config.steps or config.epochs * steps_per_epoch

  if is_tokens(data["input_dtype"]) and (config.augment.names or len(config.augment.mean)):
    raise RunError(
      f"augment: is for images, and the inputs of data.{config.data.name} are tokens; leave it empty"
    )
  channels = data["input_shape"][-1] if data["input_shape"] else 0
  if len(config.augment.mean) not in (0, channels):
    raise RunError(
      f"augment.mean, augment.std: must be {channels} numbers, one a channel, got {config.augment.mean}"
    )
  try:
    program = _build(config, data, steps_per_epoch, num_steps)
    state = program.abstract
    size = config.batch_size + unlabelled
    batch = {
      "inputs": jax.ShapeDtypeStruct((size, *data["input_shape"]), data["input_dtype"]),
      "labels": jax.ShapeDtypeStruct((size, *data.get("label_shape", ())), jnp.int32),
      "weights": jax.ShapeDtypeStruct((size, *data.get("label_shape", ())), jnp.float32),
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
  backbone = _make_backbone(
    config.model.name, config.model[config.model.name].to_dict(), data.get("model", {})
  )
  model = models.Classifier(backbone, head)
  if is_tokens(data["input_dtype"]) and "gaussian_noise" in config.noise.names:
    raise ValueError(
      f"noise.names: gaussian_noise is on inputs, and those of data.{config.data.name} are tokens"
    )
  make_apply = functools.partial(
    _make_apply,
    model,
    data["scale"],
    config.augment.mean,
    config.augment.std,
    config.precision,
    toolbox.make_noises(config.noise.to_dict()),
  )
  apply_fn = make_apply()
  augmentations = [_augmentation(config, name, data) for name in config.augment.names]
  regularizers = config.regularizers.to_dict()
  terms = toolbox.make_terms(regularizers)
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
  optimizer = make_optimizer(
    config.optimizer.name,
    schedule,
    config.optimizer[config.optimizer.name].to_dict(),
    weight_decay=decay.rate,
    decoupled=decay.decoupled,
    mask=decay.mask,
    clip_norm=config.optimizer.clip_norm,
    constraints=toolbox.make_constraints(config.optimizer.constraints.to_dict(), schedule),
    network={
      "apply": lambda params, x: model.apply({"params": params}, x, train=False),
      "input_shape": data["input_shape"],
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
    return TrainState(jnp.int32(0), run_key, params, variables, optimizer.init(params), extras.init(params))

  objective = make_objective(
    apply_fn,
    method,
    method_options["loss"],
    method_options["predict"],
    augmentations,
    toolbox.make_penalties(regularizers),
    terms,
    features_fn=make_apply(method=lambda model, x, train: model.backbone(x, train=train)),
    average=average if config.average.name in ("swa", "ema") else None,
    scale=data["scale"],
  )
  predict_step = make_predict_step(
    apply_fn, method, method_options["predict"], mc_samples=config.evaluate.mc_samples
  )
  abstract = jax.eval_shape(init, jax.ShapeDtypeStruct((), jnp.uint32))
  if abstract.model_state and config.average.name in ("swa", "ema"):
    raise ValueError(
      "average.name: the statistics of BatchNorm are not those of averaged parameters; give none or "
      f"early_stopping, or average afterwards with jaxreg.averaging, got {config.average.name}"
    )
  if config.optimizer.name == "path_sgd" and (abstract.model_state or is_tokens(data["input_dtype"])):
    raise ValueError("optimizer.name: path_sgd is for networks of images or vectors without normalisation")
  return Program(
    init=init,
    model=model,
    apply_fn=apply_fn,
    train_step=make_train_step(objective, optimizer, schedule, accumulate=config.accumulate, extras=extras),
    predict_step=predict_step,
    eval_step=make_eval_step(predict_step),
    extras=extras,
    ensemble=config.ensemble,
    method=method,
    loss_options=method_options["loss"],
    predict_options=method_options["predict"],
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


def _make_backbone(name: str, options: dict[str, Any], given: dict[str, int]) -> Any:
  """The model with its options and with what the data tell it.

  Raises:
    RunError: if the data tell another thing than the model asks.
  """
  model = getattr(models, name)
  parameters = inspect.signature(model).parameters.values()
  asked = [parameter.name for parameter in parameters if parameter.default is inspect.Parameter.empty]
  if set(asked) != set(given):
    raise RunError(
      f"model.name: {name} asks the data for {', '.join(asked) or 'nothing'}, "
      f"and these tell {', '.join(given) or 'nothing'}; give another model.name or data.name"
    )
  return model(**given, **options)


def _make_apply(
  model: Any,
  scale: float,
  mean: Sequence[float],
  std: Sequence[float],
  precision: str,
  noises: Mapping[str, Sequence[Callable[[Key, Any], Any]]],
  method: Callable[..., Any] | None = None,
) -> ApplyFn:
  """The model's function `method`, by default what it is called for, on inputs as they are stored."""
  dtype = jnp.dtype(precision)

  def perturbed(x: Any, kind: str, key: Key | None) -> Any:
    if key is None or not noises[kind]:
      return x
    # By the name of the kind, so that none of them draws as another does, or as the layers do.
    key = jax.random.fold_in(key, zlib.crc32(kind.encode()))
    for number, perturb in enumerate(noises[kind]):
      x = perturb(jax.random.fold_in(key, number), x)
    return x

  def apply_fn(params, model_state, x, *, key, train):
    params = perturbed(params, "params", key)
    # Parameters and BatchNorm's averages are kept in float32 whatever the layers compute in; so are losses
    # and masks, which promote what the head returns.
    params = jax.tree.map(lambda p: p.astype(dtype), params)
    if not is_tokens(x.dtype):
      x = x.astype(jnp.float32) / scale
      if mean:
        x = augment.normalize(None, {"inputs": x}, mean=np.asarray(mean), std=np.asarray(std))["inputs"]
      x = perturbed(x, "inputs", key).astype(dtype)
    rngs = {} if key is None else {"dropout": key}
    mutable = list(model_state) if train else []
    outputs, updated = model.apply(
      {"params": params, **model_state}, x, train=train, rngs=rngs, mutable=mutable, method=method
    )
    return outputs, {**model_state, **updated}

  return apply_fn

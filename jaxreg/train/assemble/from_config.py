"""The one assembler: from a configuration and a description of the data to the pure functions of a run."""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.errors import FlaxError

from jaxreg import losses, paths, symmetry
from jaxreg._errors import ArgumentError
from jaxreg.train import keys
from jaxreg.train.assemble import compatibility
from jaxreg.train.config.checks import check
from jaxreg.train.config.choices import Config, chosen, chosen_all, flatten, named_in, relevant
from jaxreg.train.config.fields import is_read, row_of
from jaxreg.train.data.dataset import DataSpec, Standard
from jaxreg.train.entries import Options, parameters
from jaxreg.train.errors import RunError, field_error, first_line
from jaxreg.train.methods.method import Method
from jaxreg.train.modules.adapt import adapt
from jaxreg.train.modules.functions import Backbone, functions
from jaxreg.train.modules.linen import linen
from jaxreg.train.modules.module import PureModule
from jaxreg.train.step.forward import make_forward, make_forward_by_chunks
from jaxreg.train.step.network import Network
from jaxreg.train.step.optimizer import make_optimizer, step_name
from jaxreg.train.step.predictions import make_predictions
from jaxreg.train.step.program import Program
from jaxreg.train.step.regularizers import (
  make_augmentations,
  make_constraints,
  make_limits,
  make_noises,
  make_prox,
  make_regularizers,
  most_labels,
)
from jaxreg.train.step.schedule import make_schedule
from jaxreg.train.step.sharpness import make_sharpness_step
from jaxreg.train.step.state import Extras, TrainState
from jaxreg.train.step.step import make_objective, make_train_step
from jaxreg.train.step.targets import Classes, Numbers, Target
from jaxreg.train.step.terms import TeacherFn, half_squared_distance
from jaxreg.train.user_modules import is_yours, short
from jaxreg.typing import Array, Key, Params, PyTree

# What functions raise for options that do not fit; another error of our own code is a fault with a traceback.
OPTIONS_FAIL = (ValueError, TypeError, AttributeError, ArithmeticError, FlaxError)


def build(
  config: Config, data: DataSpec, *, teacher: TeacherFn | None = None, backbone: Backbone | None = None
) -> Program:
  """Builds the functions that `config` describes, for data as `Dataset.describe` gives it.

  A `backbone` takes the place of `model.name`.

  Both steps are traced abstractly once, so that an error is raised before anything is written. Without the
  teacher of a distillation, the program serves for predictions: its training step lacks that term.
  """
  check(config)
  length = compatibility.length(config, data.sizes)
  compatibility.check_data(config, data)
  try:
    program = _assemble(config, data, teacher, backbone, **length)
    _trace(program, data, config)
  except RunError:
    raise
  except Exception as error:  # Objects of a user's own modules can fail in any way.
    if not (isinstance(error, OPTIONS_FAIL) or _own_objects(config)):
      raise
    raise _field_error(error, config) from error
  return program


def make_program(
  config: Config,
  *,
  input_shape: Sequence[int],
  num_classes: int,
  num_examples: int,
  input_dtype: str = "float32",
  scale: float = 1.0,
  class_counts: Sequence[int] = (),
  label_shape: Sequence[int] = (),
  teacher: TeacherFn | None = None,
  init_fn: Callable[..., PyTree] | None = None,
  apply_fn: Callable[..., PyTree] | None = None,
) -> Program:
  """Makes the pure functions that `config` describes, for a training loop of your own.

  Args:
    config: from `base_config()`, or from a file in `configs/`.
    input_shape: the shape of one example.
    num_classes: the number of classes of the labels; 0 for numbers, which your batches hold standardised.
    num_examples: the size of the training set, for schedules that count epochs.
    input_dtype: the dtype of the inputs in a batch.
    scale: the divisor of the inputs, such as 255 for uint8 images.
    class_counts: the number of training examples of each class, for `method.class_weights`.
    label_shape: `[labels]` for several labels an example.
    teacher: `(key, inputs) -> log-probabilities` for `regularizers.distillation`, on inputs divided by
      `scale`; it is traced, and takes the place of the run in `teacher.workdir`.
    init_fn, apply_fn: a backbone of plain functions in place of `model.name`, as `Backbone` takes them:
      `(key, x) -> params` and `(params, x, *, key, train) -> features`.

  Returns:
    An object of pure functions: `state = program.init(seed)`, then `state, metrics =
    program.train_step(state, batch)` under `jax.jit`, and `program.predict_fn(state, inputs, key)`. A batch
    has `inputs` `[batch, ...]` and `labels` `[batch]`, and may have `weights` `[batch]`. Each metric is a
    pair of a sum and a count.

  Raises:
    RunError: for options from which no step can be built.
  """
  if "distillation" in config.regularizers.names and teacher is None:
    raise RunError("regularizers.distillation: make_program reads no run; give it a function teacher")
  if (init_fn is None) != (apply_fn is None):
    raise RunError("init_fn, apply_fn: must be given together")
  backbone = Backbone(init_fn, apply_fn) if init_fn and apply_fn else None
  numbers = 0 if num_classes else math.prod(label_shape)
  data = DataSpec(
    input_shape=tuple(input_shape),
    input_dtype=input_dtype,
    num_classes=num_classes,
    sizes={"train": num_examples},
    scale=scale,
    class_counts=tuple(class_counts),
    label_shape=tuple(label_shape),
    label_mean=(0.0,) * numbers,
    label_std=(1.0,) * numbers,
  )
  return build(config, data, teacher=teacher, backbone=backbone)


def _assemble(
  config: Config, data: DataSpec, teacher: TeacherFn | None, backbone: Backbone | None, **length: int
) -> Program:
  method, options = _method(config)
  target = _target(config, data, method, options["predict"])
  noises = make_noises(chosen_all(config, "noise"), paths.kernels_only)
  network = Network(
    _backbone(config, data, backbone),
    _head(data, method, options["head"]),
    noises,
    mean=data.mean or config.augment.mean,
    std=data.std or config.augment.std,
    precision=config.precision,
  )
  optimizer, schedule = _optimizer(config, data, network, length)
  extras = _extras(config, length)
  init = _init(config, data, network, optimizer, extras)
  abstract = jax.eval_shape(init, jax.ShapeDtypeStruct((), jnp.uint32))
  compatibility.check_state(config, data, method, has_statistics=bool(abstract.model_state))

  chunk_size, named = config.method.chunk_size, chosen_all(config, "augment")
  kind = functools.partial(make_forward_by_chunks, chunk_size=chunk_size) if chunk_size else make_forward
  forward = kind(network, method, target, most_labels=most_labels(named))
  objective = make_objective(
    forward,
    make_regularizers(
      [x for x in chosen_all(config, "regularizers") if teacher or not x.needs("teacher")],
      paths.kernels_only,
      teacher=teacher,
      divergence=half_squared_distance if data.has_numbers else None,
    ),
    augmentations=make_augmentations(
      named,
      noises["labels"],
      scale=data.scale,
      num_classes=data.num_classes,
      unlabelled=bool(config.data.unlabelled.batch_size),
    ),
    extras=extras,
    scale=data.scale,
    target=target,
    class_weights=_class_weights(config, data),
  )
  train_step = make_train_step(objective, optimizer, schedule, accumulate=config.accumulate, extras=extras)
  predict_fn, predict_step, eval_step = make_predictions(
    network,
    method,
    extras,
    target,
    data.scale,
    mc_samples=config.evaluate.mc_samples,
    combine=config.evaluate.combine,
    mirror=config.evaluate.mirror,
    chunk_size=chunk_size,
  )
  return Program(
    init=init,
    network=network,
    scale=data.scale,
    target=target,
    forward=forward,
    train_step=train_step,
    sharpness_step=make_sharpness_step(objective, train_step, accumulate=config.accumulate),
    predict_fn=predict_fn,
    predict_step=predict_step,
    eval_step=eval_step,
    extras=extras,
    ensemble=config.ensemble,
    method=method,
    name=short(config.method.name),
    terms=(*method.terms, *map(short, config.regularizers.names)),
    schedule=schedule,
    **length,
    abstract=abstract,
  )


def _method(config: Config) -> tuple[Method, Mapping[str, Options]]:
  """Returns the method with its options bound, and the options of head and prediction rule."""
  named = chosen(config, "method")
  method: Method = named.entry.function
  loss = named.options["loss"]
  shared = {name: loss[name] for name in method.shared}
  head_options = {name: value for name, value in shared.items() if name in parameters(method.head)}
  head, predict = {**named.options["head"], **head_options}, {**named.options["predict"], **shared}
  bound = dataclasses.replace(
    method,
    loss=functools.partial(method.loss, **loss),
    predict=functools.partial(method.predict, **predict),
    diagnose=method.diagnose and functools.partial(method.diagnose, **loss),
  )
  return bound, {"head": head, "predict": predict}


def _target(config: Config, data: DataSpec, method: Method, options: Options) -> Target:
  """Tells whether the labels are classes or numbers."""
  if not data.has_numbers:
    return Classes(refined=config.checkpoint.best == "val/nll_refined")
  standard = Standard(data.label_mean, data.label_std)
  return Numbers(standard, method.predicts, tuple(options.get("levels", ())), config.evaluate.alpha)


def _backbone(config: Config, data: DataSpec, backbone: Backbone | None) -> PureModule:
  """Returns the `backbone`, or the one of `model.name` with its options and what it takes from the data."""
  x = _one_input(data)
  if backbone is not None:
    return functions(backbone, x)
  model = chosen(config, "model")
  needs, known = model.entry.needs, {**data.model, "input_shape": tuple(data.input_shape)}
  if set(data.model) - set(needs) or set(needs) - set(known):
    raise RunError(
      f"model.name: {model.name} takes {', '.join(needs) or 'nothing'} from the data, which give "
      f"{', '.join(known)}; give another model or other data, or an argument of your own a default, which "
      "makes it an option"
    )
  return adapt(model.entry.function, {**model.options, **{name: known[name] for name in needs}}, x)


def _head(data: DataSpec, method: Method, options: Options) -> PureModule:
  """Makes the head of the method, for the labels of the data."""
  return linen(method.head(**{name: getattr(data, name) for name in method.from_data}, **options), "head")


def _one_input(data: DataSpec) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct((1, *data.input_shape), jnp.int32 if data.has_tokens else jnp.float32)


def _init(
  config: Config,
  data: DataSpec,
  network: Network,
  optimizer: optax.GradientTransformation,
  extras: Extras,
) -> Callable[[Array | int], TrainState]:
  x = _one_input(data)

  def init(seed: Array | int) -> TrainState:
    run_key, init_key = keys.root(seed)
    params, model_state = network.init(init_key, jnp.zeros(x.shape, x.dtype))
    if config.model.unbalance:
      params = _unbalanced(keys.unbalance(run_key), params, config.model.unbalance)
    state = TrainState(jnp.int32(0), run_key, params, model_state, optimizer.init(params))
    return state.replace(extras=extras.init(state.variables))

  return init


def _unbalanced(key: Key, params: Params, std: float) -> Params:
  """Rescales the hidden units of an MLP by log-normal factors; the network's function stays the same."""
  layers = len(params["backbone"])
  for i, subkey in enumerate(jax.random.split(key, layers)):
    units = params["backbone"][f"Dense_{i}"]["bias"].shape[0]
    after = f"backbone/Dense_{i + 1}/kernel" if i + 1 < layers else "head/*kernel"
    scales = jnp.exp(std * jax.random.normal(subkey, (units,)))
    params = symmetry.rescale_units(params, scales, incoming=f"backbone/Dense_{i}/*", outgoing=after)
  return params


def _optimizer(
  config: Config, data: DataSpec, network: Network, length: Mapping[str, int]
) -> tuple[optax.GradientTransformationExtraArgs, optax.Schedule]:
  """Makes the optimizer (perhaps in a wrapper) with decay, clipping and constraints, and its schedule."""
  options = config.optimizer
  schedule = make_schedule(
    chosen(config, "optimizer.schedule"),
    options.learning_rate,
    warmup_epochs=options.schedule.warmup_epochs,
    **length,
  )
  step, wrapper = chosen(config, "optimizer", step_name(options)), chosen(config, "optimizer")
  named = chosen_all(config, "optimizer.constraints")

  def apply_fn(params: Params, x: Array) -> PyTree:
    features, _ = network.features(params, {}, x, key=None, train=False)
    return network.outputs(params, {}, features, key=None, train=False)[0]

  optimizer = make_optimizer(
    step,
    schedule,
    wrapper=wrapper.without("inner") if wrapper.kind == "wrapper" else None,
    weight_decay=_decay_rate(config, length),
    kind=options.weight_decay.kind,
    mask=options.weight_decay.mask,
    blocks=options.weight_decay.blocks,
    peak=_peak(schedule, length["num_steps"]) if options.weight_decay.kind == "corrected" else None,
    clip_norm=options.clip_norm,
    constraints={} if step.needs("prox") else make_constraints(named, paths.kernels_only, schedule),
    network={
      "prox": make_prox(named, paths.kernels_only),
      "apply_fn": apply_fn,
      "input_shape": data.input_shape,
      "num_examples": data.sizes["train"],
    },
  )
  return optimizer, schedule


def _peak(schedule: optax.Schedule, num_steps: int) -> float:
  """Computes the largest learning rate of a run."""
  return float(np.max(schedule(np.arange(num_steps))))


def _decay_rate(config: Config, length: Mapping[str, int]) -> optax.ScalarOrSchedule:
  """Returns the rate of the weight decay: a number, or a schedule if it changes over the run."""
  decay = config.optimizer.weight_decay
  if not decay.rate or decay.schedule.name == "constant":
    return decay.rate
  return make_schedule(chosen(config, "optimizer.weight_decay.schedule"), decay.rate, **length)


def _extras(config: Config, length: Mapping[str, int]) -> Extras:
  """Makes what the state holds in addition to its parameters."""
  named = chosen_all(config, "regularizers")
  try:
    average = chosen(config, "average").bound(**length)()
  except ArgumentError as error:
    raise field_error(f"average.{config.average.name}", error) from error
  reference = any(each.needs("reference") for each in named)
  limits = make_limits(named, paths.kernels_only, config.regularizers.dual_learning_rate)
  return Extras(average, limits, reference=reference, schedule_free=config.optimizer.name == "schedule_free")


def _class_weights(config: Config, data: DataSpec) -> Array | None:
  """Computes the weights of the classes that `method.class_weights` asks for."""
  scheme, limit = config.method.class_weights, config.method.class_weights_limit
  if scheme == "none":
    return None
  if not data.class_counts:
    raise RunError("method.class_weights: needs single-label classes with known class counts")
  if 0 < limit < 1:
    raise RunError(f"method.class_weights_limit: must be 0 or at least 1, got {limit}")
  return losses.class_weights(np.asarray(data.class_counts), scheme=scheme, limit=limit or None)


def _trace(program: Program, data: DataSpec, config: Config) -> None:
  """Traces the training step and the evaluation step on shapes alone."""
  shape, batch_size = jax.ShapeDtypeStruct, config.batch_size + config.data.unlabelled.batch_size
  batch = {
    "inputs": shape((batch_size, *data.input_shape), data.input_dtype),
    "labels": shape((batch_size, *data.label_shape), "float32" if data.has_numbers else "int32"),
  }
  step = program.sharpness_step if config.log.sharpness_every else program.train_step
  jax.eval_shape(step, program.abstract, batch)
  jax.eval_shape(program.eval_step, program.abstract, batch, 0)


def _field_error(error: Exception, config: Config) -> RunError:
  """Names the field of an `ArgumentError`, if exactly one field that the functions read has this argument.

  No function reads the fields of a call, such as `mesh.model`.
  """
  if isinstance(error, ArgumentError):
    flat = flatten(config)
    fields = [field for field in relevant(flat) if field.split(".")[-1] == error.argument]
    fields = [field for field in fields if row_of(field).scope != "call" and is_read(field, flat)]
    if len(fields) == 1:
      return RunError(f"{fields[0]}: {error.problem}")
  names = [f"{part}.{config[part].name}" for part in ("model", "method", "optimizer")]
  names += [f"{group}.{name}" for group, name in _own_objects(config) if f"{group}.{name}" not in names]
  kind = "" if isinstance(error, OPTIONS_FAIL) else f"{type(error).__name__}: "
  return RunError(f"config: {kind}{first_line(error)} (with {', '.join(names)})")


def _own_objects(config: Config) -> list[tuple[str, str]]:
  """Returns the group and the name of each object of a user's own modules that is traced."""
  named = ((group, name) for _, group, name in named_in(flatten(config)) if is_yours(name))
  return [(group, name) for group, name in dict.fromkeys(named) if group != "data"]

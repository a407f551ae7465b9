# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
"""The one assembler: from a configuration and a description of the data to the pure functions of a run."""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Generator, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from flax.errors import FlaxError

from jaxreg import losses, models, paths
from jaxreg.train.assemble import compatibility
from jaxreg.train.config.checks import check
from jaxreg.train.config.choices import Config, chosen, chosen_all, flatten, relevant
from jaxreg.train.config.fields import row_of
from jaxreg.train.data.dataset import DataSpec
from jaxreg.train.errors import ArgumentError, RunError, first_line
from jaxreg.train.lookup import Fields, Options, parameters, short
from jaxreg.train.step.adapted import Backbone, as_linen
from jaxreg.train.step.augmentations import make_augmentations
from jaxreg.train.step.batch import Standard
from jaxreg.train.step.extras import Extras
from jaxreg.train.step.head_outputs import Passed, make_values_fn
from jaxreg.train.step.init import make_init
from jaxreg.train.step.methods import Method
from jaxreg.train.step.network import Network, make_backbone, make_network
from jaxreg.train.step.network_view import TrainedFn
from jaxreg.train.step.objective import make_objective
from jaxreg.train.step.optimizer import make_optimizer, step_name
from jaxreg.train.step.predict import (
  make_chunked_eval_step,
  make_eval_step,
  make_predict_fn,
  make_predict_step,
)
from jaxreg.train.step.program import Program
from jaxreg.train.step.regularizers import (
  make_constraints,
  make_limits,
  make_noises,
  make_penalties,
  make_prox,
  make_terms,
  most_labels,
)
from jaxreg.train.step.schedule import make_schedule
from jaxreg.train.step.state import SweptState, TrainState
from jaxreg.train.step.step import make_train_step
from jaxreg.train.step.targets import CLASSES, Numbers, Target
from jaxreg.typing import Array, Objective, Params, PyTree


def build(
  config: Config,
  data: DataSpec,
  *,
  teacher: TrainedFn | None = None,
  backbone: nn.Module | None = None,
) -> Program:
  """The functions that `config` describes, for data as `Dataset.describe` gives it.

  A `backbone` takes the place of `model.name`.

  Both steps are traced abstractly once, so that an error is raised before anything is written. Without the
  teacher of a distillation, the program serves for predictions: its training step lacks that term.
  """
  length = compatibility.length(config, data.sizes)
  compatibility.check_inputs(config, data)
  try:
    program = _assemble(config, data, teacher, backbone, **length)
    _trace(program, data, config.batch_size + config.data.unlabelled.batch_size)
  except (ValueError, TypeError, AttributeError, ArithmeticError, FlaxError) as error:
    raise RunError(_of_a_field(first_line(error), config)) from error
  compatibility.check_numbers(config)
  return program


def sweep(
  program: Program,
  config: Config,
  data: DataSpec,
  fields: Sequence[str],
  *,
  teacher: TrainedFn | None = None,
) -> Program:
  """The `program` of `config` for runs that differ in the numbers of these fields, which are traced.

  `init` takes a seed and the values of the fields by name, which the state keeps.

  Raises:
    RunError: if the values decide what the functions are, so that no program serves several of them.
  """
  length = compatibility.length(config, data.sizes)

  def of(strengths: Mapping[str, Array]) -> Program:
    traced = config.copy_and_resolve_references().unlock()
    with traced.ignore_type():
      traced.update_from_flattened_dict(strengths)
    return _assemble(traced, data, teacher, None, **length)

  def init(start: tuple[Array, dict[str, Array]]) -> SweptState:
    seed, strengths = start
    return SweptState(**vars(of(strengths).init(seed)), strengths=strengths)

  def swept(name: str) -> Callable[..., PyTree]:
    def function(state: SweptState, *args: PyTree, **given: PyTree) -> PyTree:
      return getattr(of(state.strengths), name)(state, *args, **given)

    return function

  number = jax.ShapeDtypeStruct((), jnp.float32)
  functions = ("train_step", "predict_fn", "predict_step", "eval_step", "evaluated")
  try:
    several = dataclasses.replace(
      program,
      init=init,
      abstract=jax.eval_shape(init, (jax.ShapeDtypeStruct((), jnp.uint32), dict.fromkeys(fields, number))),
      **{name: swept(name) for name in functions if getattr(program, name)},
    )
    _trace(several, data, config.batch_size + config.data.unlabelled.batch_size)
  except (ValueError, TypeError, AttributeError, ArithmeticError, FlaxError) as error:
    raise RunError(f"{', '.join(fields)}: cannot be traced ({first_line(error)})") from error
  if _shapes(dataclasses.replace(several.abstract, strengths={})) != _shapes(program.abstract):
    raise RunError(f"{', '.join(fields)}: cannot be traced (they change the state)")
  return several


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
  label_mean: Sequence[float] = (),
  label_std: Sequence[float] = (),
  teacher: TrainedFn | None = None,
  init_fn: Callable[..., PyTree] | None = None,
  apply_fn: Callable[..., PyTree] | None = None,
) -> Program:
  """The pure functions that `config` describes, for a training loop of your own.

  Args:
    config: from `base_config()`, or from a file in `configs/`.
    input_shape: the shape of one example.
    num_classes: the number of classes of the labels; 0 for labels that are numbers.
    num_examples: the size of the training set, for schedules that count epochs.
    input_dtype: the dtype of the inputs in a batch.
    scale: the divisor of the inputs, such as 255 for uint8 images.
    class_counts: the number of training examples of each class, for `method.class_weights`.
    label_shape: `[labels]` for several labels an example.
    label_mean, label_std: of each number, by which labels are standardised; default 0 and 1.
    teacher: `(key, inputs) -> log-probabilities` for `regularizers.distillation`, on inputs divided by
      `scale`; it is traced, and takes the place of the run in `teacher.workdir`.
    init_fn, apply_fn: a backbone of plain functions in place of `model.name`, as `Backbone` takes them:
      `(key, x) -> params` and `(params, x, *, key, train) -> features`.

  Returns:
    A `Program`: `state = program.init(seed)`, then `state, metrics = program.train_step(state, batch)` under
    `jax.jit`. A batch has `inputs` `[batch, ...]` and `labels` `[batch]`, and may have `weights` `[batch]`.
    Each metric is a pair of a sum and a count.

  Raises:
    RunError: for options from which no step can be built.
  """
  check(config)
  if "distillation" in config.regularizers.names and teacher is None:
    raise RunError("regularizers.distillation: make_program reads no run; give it a function teacher")
  if (init_fn is None) != (apply_fn is None):
    raise RunError("init_fn, apply_fn: must be given together")
  backbone = as_linen(Backbone(init_fn, apply_fn), {}) if init_fn and apply_fn else None
  numbers = 0 if num_classes else math.prod(label_shape)
  data = DataSpec(
    input_shape=tuple(input_shape),
    input_dtype=input_dtype,
    num_classes=num_classes,
    sizes={"train": num_examples},
    scale=scale,
    class_counts=tuple(class_counts),
    label_shape=tuple(label_shape),
    label_mean=tuple(label_mean) or (0.0,) * numbers,
    label_std=tuple(label_std) or (1.0,) * numbers,
  )
  return build(config, data, teacher=teacher, backbone=backbone)


def _assemble(
  config: Config,
  data: DataSpec,
  teacher: TrainedFn | None,
  backbone: nn.Module | None,
  *,
  steps_per_epoch: int,
  num_steps: int,
) -> Program:
  length = {"steps_per_epoch": steps_per_epoch, "num_steps": num_steps}
  method, options = _method(config)
  network = _network(config, data, method, options["head"], backbone)
  optimizer, schedule = _optimizer(config, data, network.model, length)
  extras = _extras(config, length)
  init = make_init(
    network.model,
    optimizer,
    extras,
    input_shape=data.input_shape,
    dtype=jnp.dtype("int32" if data.has_tokens else "float32"),
    unbalanced=config.model.unbalance,
  )
  abstract = jax.eval_shape(init, jax.ShapeDtypeStruct((), jnp.uint32))
  compatibility.check_state(config, data, method, has_statistics=bool(abstract.model_state))
  target = _target(config, data, method, options["predict"])
  values_fn = make_values_fn(network, config.method.chunk_size)
  objective = _objective(config, data, method, options, network, values_fn, extras, teacher, target)
  draws = {name: config.evaluate[name] for name in ("mc_samples", "combine", "mirror")}
  predict_fn = make_predict_fn(
    network.apply_fn, method, options["predict"], **draws, extras=extras, target=target
  )
  predict_step = make_predict_step(predict_fn, data.scale, target)
  if config.method.chunk_size and not draws["mc_samples"] and not draws["mirror"] and extras.draw is None:
    eval_step = make_chunked_eval_step(values_fn, method, options["predict"], data.scale)
  else:
    eval_step = make_eval_step(predict_step, data.scale, target)
  return Program(
    init=init,
    model=network.model,
    scale=data.scale,
    target=target,
    apply_fn=network.apply_fn,
    train_step=make_train_step(objective, optimizer, schedule, accumulate=config.accumulate, extras=extras),
    predict_fn=predict_fn,
    predict_step=predict_step,
    eval_step=eval_step,
    values_fn=values_fn,
    evaluated=extras.evaluated,
    extras=extras,
    ensemble=config.ensemble,
    method=method,
    loss_options=options["loss"],
    predict_options=options["predict"],
    name=short(config.method.name),
    terms=(*method.terms, *map(short, config.regularizers.names)),
    schedule=schedule,
    **length,
    abstract=abstract,
  )


def _method(config: Config) -> tuple[Method, Mapping[str, Options]]:
  """The method, and the options of its head, loss and prediction rule."""
  named = chosen(config, "method")
  method: Method = named.entry.function
  options = named.options
  shared = {name: options["loss"][name] for name in method.shared}
  of_head = {name: value for name, value in shared.items() if name in parameters(method.head)}
  both = {"head": {**options["head"], **of_head}, "predict": {**options["predict"], **shared}}
  return method, {**options, **both}


def _target(config: Config, data: DataSpec, method: Method, options: Options) -> Target:
  """Whether the labels are classes or numbers."""
  if not data.has_numbers:
    return CLASSES
  mean, std = data.label_mean, data.label_std
  standard = Standard(mean, std) if data.label_shape else Standard(mean[0], std[0])
  return Numbers(standard, method.predicts, tuple(options.get("levels", ())), config.evaluate.alpha)


def _network(
  config: Config, data: DataSpec, method: Method, head: Options, backbone: nn.Module | None
) -> Network:
  """The backbone with the method's head, and the functions that run it."""
  compatibility.check_noises(config, data)
  try:
    backbone = backbone or make_backbone(chosen(config, "model"), data.model, data.input_shape)
  except ArgumentError as error:
    raise error.of_section("model") from error
  compatibility.check_method(config, data)
  needs = (*method.of_data, *chosen(config, "method").entry.needs)
  given: Fields = {name: getattr(data, name) for name in needs}
  return make_network(
    models.Classifier(backbone, method.head(**given, **head)),
    make_noises(chosen_all(config, "noise"), getattr(paths, config.noise.mask)),
    precision=config.precision,
    **{name: getattr(data, name) or config.augment[name] for name in ("mean", "std")},
  )


def _optimizer(
  config: Config, data: DataSpec, model: models.Classifier, length: Mapping[str, int]
) -> tuple[optax.GradientTransformationExtraArgs, optax.Schedule]:
  """The optimizer, alone or within a wrapper, with decay, clipping and constraints; and its schedule."""
  options = config.optimizer
  schedule = make_schedule(
    chosen(config, "optimizer.schedule"),
    options.learning_rate,
    warmup_epochs=options.schedule.warmup_epochs,
    **length,
  )
  step, wrapper = chosen(config, "optimizer", step_name(options)), chosen(config, "optimizer")
  named, mask = chosen_all(config, "optimizer.constraints"), getattr(paths, options.constraints.mask)

  def apply_fn(params: Params, x: Array) -> PyTree:
    return model.apply({"params": params}, x, train=False)

  optimizer = make_optimizer(
    step,
    schedule,
    wrapper=wrapper.without("inner") if wrapper.kind == "wrapper" else None,
    weight_decay=options.weight_decay.rate,
    decoupled=options.weight_decay.decoupled,
    mask=options.weight_decay.mask,
    clip_norm=options.clip_norm,
    constraints={} if step.needs("prox") else make_constraints(named, mask, schedule),
    network={
      "prox": make_prox(named, mask),
      "apply_fn": apply_fn,
      "input_shape": data.input_shape,
      "num_examples": data.sizes["train"],
    },
  )
  return optimizer, schedule


def _extras(config: Config, length: Mapping[str, int]) -> Extras:
  """What the state holds beside its parameters."""
  named = chosen_all(config, "regularizers")
  with _of_group(f"average.{config.average.name}"):
    average = chosen(config, "average").bound(**length)()
  mask, rate = getattr(paths, config.regularizers.mask), config.regularizers.dual_learning_rate
  reference = any(each.needs("reference") for each in named)
  return Extras(average, make_limits(named, mask, rate), reference=reference)


def _objective(
  config: Config,
  data: DataSpec,
  method: Method,
  options: Mapping[str, Options],
  network: Network,
  values_fn: Callable[..., Passed],
  extras: Extras,
  teacher: TrainedFn | None,
  target: Target,
) -> Objective:
  """The loss of the method on augmented examples, with the penalties and terms that the config names."""
  regularizers, augmentations = chosen_all(config, "regularizers"), chosen_all(config, "augment")
  compatibility.check_terms(config, data)
  terms = make_terms(regularizers)
  if teacher is None:
    terms.pop("distillation", None)
  return make_objective(
    method,
    options["loss"],
    options["predict"],
    make_augmentations(
      augmentations,
      network.noises["labels"],
      scale=data.scale,
      num_classes=data.num_classes,
      unlabelled=bool(config.data.unlabelled.batch_size),
    ),
    make_penalties(regularizers, getattr(paths, config.regularizers.mask)),
    terms,
    values_fn=values_fn,
    average=extras.average if config.average.name == "ema" else None,
    trained_fn=teacher,
    scale=data.scale,
    target=target,
    most_labels=most_labels(augmentations),
    class_weights=_class_weights(config, data),
  )


def _class_weights(config: Config, data: DataSpec) -> Array | None:
  """The weights of the classes that `method.class_weights` asks for."""
  scheme, limit = config.method.class_weights, config.method.class_weights_limit
  if scheme == "none":
    return None
  if not data.class_counts:
    raise RunError("method.class_weights: needs one class an example, whose counts are known")
  if 0 < limit < 1:
    raise RunError(f"method.class_weights_limit: must be 0 or at least 1, got {limit}")
  return losses.class_weights(np.asarray(data.class_counts), scheme=scheme, limit=limit or None)


def _shapes(state: TrainState) -> list[tuple[tuple[int, ...], np.dtype]]:
  return [(x.shape, x.dtype) for x in jax.tree.leaves(state)]


def _trace(program: Program, data: DataSpec, batch_size: int) -> None:
  """Traces the training step and the evaluation step on shapes alone."""
  shape = jax.ShapeDtypeStruct
  batch = {
    "inputs": shape((batch_size, *data.input_shape), data.input_dtype),
    "labels": shape((batch_size, *data.label_shape), "float32" if data.has_numbers else "int32"),
  }
  jax.eval_shape(program.train_step, program.abstract, batch)
  jax.eval_shape(program.eval_step, program.abstract, batch, 0)


@contextlib.contextmanager
def _of_group(group: str) -> Generator[None]:
  """Turns an argument error `NAME must ...` into one of the field `group.NAME`."""
  try:
    yield
  except ValueError as error:
    name, _, rest = first_line(error).partition(" ")
    raise RunError(f"{group}.{name}: {rest}") from error


def _of_a_field(message: str, config: Config) -> str:
  """A function's message `NAME must ...`, with the full field if exactly one field in use has that name.

  No function reads the fields of a call, such as `mesh.model`.
  """
  name, space, rest = message.partition(" ")
  fields = [field for field in relevant(flatten(config)) if field.split(".")[-1] == name]
  fields = [field for field in fields if row_of(field).scope != "call"]
  if len(fields) == 1 and space:
    return f"{fields[0]}: {rest}"
  names = ", ".join(f"{part}.{config[part].name}" for part in ("model", "method", "optimizer"))
  return f"config: {message} (with {names})"

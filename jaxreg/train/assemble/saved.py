"""Restores a run from its work directory: its configuration, its functions and one of its states."""

import functools
from pathlib import Path
from typing import SupportsIndex

import jax

from jaxreg.train.assemble.from_config import build
from jaxreg.train.config.checks import check
from jaxreg.train.config.choices import Config, add_options, base_config, check_imports, flatten, relevant
from jaxreg.train.config.fields import reads_streams, row_of
from jaxreg.train.data.dataset import DataSpec
from jaxreg.train.data.images import Decoding
from jaxreg.train.entries import Options
from jaxreg.train.errors import ArgumentError, RunError, field_error
from jaxreg.train.run import workdir as workdirs
from jaxreg.train.run.checkpoint import pick_and_restore, restore_state
from jaxreg.train.run.manifest import pick_step
from jaxreg.train.sealed_tables import Json
from jaxreg.train.step.program import Program
from jaxreg.train.step.state import TrainState
from jaxreg.train.step.terms import TeacherFn
from jaxreg.train.user_paths import local_path
from jaxreg.typing import Array, Key


def restore_config(config: Config, workdir: Path, overrides: Options | None = None) -> Config:
  """`config` with the values that `workdir` was trained with; `overrides` come last."""
  saved = {
    field: value for field, value in workdirs.read_config(workdir).items() if row_of(field).scope != "call"
  }
  config = config.copy_and_resolve_references().unlock()
  try:
    check_imports(saved)
    add_options(config, saved)
  except RunError as error:
    raise ArgumentError("workdir", f"{workdir}: {error}") from error
  known, read = flatten(config), relevant(saved)
  saved = {field: value for field, value in saved.items() if field in known or field in read}
  for field, value in {**saved, **(overrides or {})}.items():
    *parents, name = field.split(".")
    try:
      if field not in known:
        raise KeyError(field)
      functools.reduce(lambda part, parent: part[parent], parents, config)[name] = _with_tuples(value)
    except (KeyError, TypeError):
      raise ArgumentError(
        "workdir", f"{workdir} was trained by a version of jaxreg that had a field {field}"
      ) from None
  return config.lock()


def _with_tuples(value: Json) -> object:
  """The value of a JSON file as configurations have it: its lists, also those in lists, are tuples."""
  return tuple(map(_with_tuples, value)) if isinstance(value, list) else value


def places(config: Config) -> Options:
  """The places of data in `config` that differ from the defaults: overrides for a run whose data moved."""
  defaults = flatten(base_config())
  given = {field: value for field, value in flatten(config).items() if row_of(field).scope == "place"}
  return {field: value for field, value in given.items() if value != defaults[field]}


def decoding_of(workdir: Path) -> Decoding | None:
  """How the evaluation of a run makes its inputs of images of any size; None for a run on other inputs."""
  config = restore_config(base_config(), workdir)
  return Decoding(**config.data.stream) if reads_streams(flatten(config)) else None


def restore_run(
  workdir: Path, checkpoint: str | int, replica: object
) -> tuple[Program, TrainState, DataSpec]:
  """The functions of a run, one replica's state and the description of the run's data."""
  config = restore_config(base_config(), workdir)
  data = workdirs.read_data(workdir)
  try:
    check(config)
    program = build(config, data)
  except RunError as error:
    raise ArgumentError("workdir", f"{workdir}: {error}") from error
  if not (isinstance(replica, SupportsIndex) and 0 <= int(replica) < config.replicas):
    raise ArgumentError(
      "replica", f"must be an integer of at least 0 and below {config.replicas}, got {replica!r}"
    )
  _, state = pick_and_restore(
    workdir,
    lambda: pick_step(workdir, checkpoint, config.checkpoint.best),
    lambda step: restore_state(program, workdir, step, int(replica), config.replicas),
  )
  return program, state, data


def make_teacher(data: DataSpec, workdir: str) -> TeacherFn:
  """Returns a run's best checkpoint as `(key, inputs) -> log-probabilities`, without gradient.

  The inputs are those of `Examples`. The parameters are constants of the compiled caller.
  """
  try:
    program, state, theirs = restore_run(local_path(workdir, "workdir"), "best", 0)
  except ArgumentError as error:
    raise field_error("teacher", error) from error
  for name in ("input_shape", "input_dtype", "num_classes", "scale"):
    given, here = getattr(theirs, name), getattr(data, name)
    if given != here:
      raise RunError(f"teacher.workdir: {workdir} was trained with {name} {given}, and here it is {here}")
  # On the host, so that the constants are bound to no device. SWAG's teacher is its mean: no draws a step.
  state = jax.device_get(state.replace(key=None, opt_state=(), extras={}))

  def teacher(key: Key, inputs: Array) -> Array:
    return jax.lax.stop_gradient(program.predict_fn(state, inputs, key))

  return teacher

"""Restores a run from its work directory: its configuration, its functions and one of its states."""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxreg.train.build.program import build
from jaxreg.train.config.choices import add_options, check_imports
from jaxreg.train.config.fields import Config, base_config, flatten, relevant
from jaxreg.train.errors import RunError
from jaxreg.train.run import workdir as workdirs
from jaxreg.train.run.manifest import pick_step
from jaxreg.train.run.restore import pick_and_restore, restore_state
from jaxreg.train.step.program import Program
from jaxreg.train.step.state import TrainState


def restore_config(config: Config, workdir: Path, overrides: Mapping[str, Any] | None = None) -> Config:
  """`config` with the values that `workdir` was trained with; `overrides` come last.

  Raises:
    RunError: if nothing was trained there, or if a version with other fields trained it.
  """
  saved = {
    field: value for field, value in workdirs.read_config(workdir).items() if not workdirs.FREE.match(field)
  }
  config = config.copy_and_resolve_references().unlock()
  try:
    check_imports(saved)
    add_options(config, saved)
  except RunError as error:
    raise RunError(f"workdir: {workdir}: {error}") from error
  known, read = flatten(config), relevant(saved)
  saved = {field: value for field, value in saved.items() if field in known or field in read}
  for field, value in {**saved, **(overrides or {})}.items():
    *parents, name = field.split(".")
    try:
      if field not in known:
        raise KeyError(field)
      functools.reduce(lambda part, parent: part[parent], parents, config)[name] = (
        tuple(value) if isinstance(value, list) else value
      )
    except (KeyError, TypeError):
      raise RunError(
        f"workdir: {workdir} was trained by a version of jaxreg that had a field {field}"
      ) from None
  return config.lock()


def places(config: Config) -> dict[str, Any]:
  """The places of data in `config` that differ from the defaults: overrides for a run whose data moved."""
  defaults = flatten(base_config())
  given = {field: value for field, value in flatten(config).items() if workdirs.PLACES.match(field)}
  return {field: value for field, value in given.items() if value != defaults[field]}


def restore_run(
  workdir: Path, checkpoint: str | int, replica: int
) -> tuple[Program, TrainState, dict[str, Any]]:
  """The functions of a run, one replica's state and the description of the run's data.

  Raises:
    RunError: if the work directory holds nothing usable.
  """
  config = restore_config(base_config(), workdir)
  data = workdirs.read_data(workdir)
  program = build(config, data)
  if not 0 <= replica < config.replicas:
    raise RunError(f"replica: must be at least 0 and below {config.replicas}, got {replica}")
  _, state = pick_and_restore(
    workdir,
    lambda: pick_step(workdir, checkpoint, config.checkpoint.best),
    lambda step: restore_state(program, workdir, step, replica, config.replicas),
  )
  return program, state, data

"""Restores a run from its work directory: its configuration, functions, data and states."""

import dataclasses
import functools
from collections.abc import Iterator
from typing import SupportsIndex

import numpy as np
from etils.epath import Path

from jaxreg.train.assemble.from_config import build
from jaxreg.train.assemble.load_data import is_resident, load_data
from jaxreg.train.assemble.run_parts import replicas_of
from jaxreg.train.config.choices import Config, add_options, base_config, check_imports, flatten, relevant
from jaxreg.train.config.fields import reads_streams, row_of
from jaxreg.train.data.batches import Source, make_source
from jaxreg.train.data.dataset import Dataset, DataSpec, Split
from jaxreg.train.data.images import Decoding
from jaxreg.train.devices import processes
from jaxreg.train.devices.replicas import Loop, Vmap, stacked
from jaxreg.train.entries import Options
from jaxreg.train.errors import ArgumentError, RunError
from jaxreg.train.run import workdir as workdirs
from jaxreg.train.run.checkpoint import abstract, pick_and_restore, restore, restore_state
from jaxreg.train.run.evaluation import outputs_over, predicting_state
from jaxreg.train.run.folder_name import EVALUATES
from jaxreg.train.run.manifest import pick_step
from jaxreg.train.sealed_tables import Json
from jaxreg.train.step.program import Program
from jaxreg.train.step.state import States, TrainState


def restore_config(config: Config, workdir: Path, overrides: Options | None = None) -> Config:
  """Returns `config` with the values that `workdir` was trained with; `overrides` come last."""
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
      problem = f"{workdir} was trained by a version of jaxreg that had a field {field}"
      raise ArgumentError("workdir", problem) from None
  return config.lock()


def _with_tuples(value: Json) -> object:
  """Turns the lists of a value from a JSON file, nested ones too, into tuples, as in configurations."""
  return tuple(map(_with_tuples, value)) if isinstance(value, list) else value


def decoding_of(config: Config) -> Decoding | None:
  """Returns how the evaluation of a run scales and crops images; None for a run on other inputs."""
  return Decoding(**config.data.stream) if reads_streams(flatten(config)) else None


def restore_run(
  workdir: Path, checkpoint: str | int, replica: object, config: Config | None = None
) -> tuple[Program, TrainState, DataSpec]:
  """Returns the functions of a run, one replica's state and the description of the run's data.

  `config` is the run's own by default. It may predict in another way.
  """
  config = config or restore_config(base_config(), workdir)
  data = workdirs.read_data(workdir)
  try:
    program = build(config, data)
  except RunError as error:
    raise ArgumentError("workdir", f"{workdir}: {error}") from error
  if not (isinstance(replica, SupportsIndex) and 0 <= int(replica) < config.replicas):
    problem = f"must be an integer of at least 0 and below {config.replicas}, got {replica!r}"
    raise ArgumentError("replica", problem)
  _, state = pick_and_restore(
    workdir,
    lambda: pick_step(workdir, checkpoint, config.checkpoint.best),
    lambda step: restore_state(program, workdir, step, int(replica), config.replicas),
  )
  return program, state, data


@dataclasses.dataclass(frozen=True)
class RestoredRun:
  """A trained run: its functions, its data and the states of one checkpoint, as `replicas` lays them out."""

  program: Program
  dataset: Dataset
  replicas: Vmap | Loop
  states: States
  step: int
  number: int  # of replicas
  batch_size: int  # of an evaluation
  resident: bool  # whether the data are kept in the devices' memory

  def each(self) -> Iterator[TrainState]:
    """Yields the state of each replica, with the parameters for predictions."""
    return (
      predicting_state(self.program, self.replicas, self.states, replica) for replica in range(self.number)
    )

  def source(self, split: Split) -> Source:
    standard = self.program.target.standard
    return make_source(self.replicas.mesh, split, resident=self.resident, standard=standard)

  def outputs(self, state: TrainState, source: Source) -> dict[str, np.ndarray]:
    """Returns the head's `..._logits` and the `predictions` for every example, on the host."""
    return outputs_over(self.program, self.replicas.mesh, state, source, self.batch_size)


def restore_states(config: Config, workdir: Path) -> RestoredRun:
  """Restores the checkpoint of `workdir` that `config.evaluate` names, on the devices."""
  processes.same("config", flatten(config))
  dataset = processes.everywhere(lambda: load_data(config))
  description = dataset.describe()
  processes.same("data", description.table())
  program = build(config, description)

  def pick() -> int:
    workdirs.check_same(workdir, flatten(config), description, EVALUATES)
    return pick_step(workdir, config.evaluate.checkpoint, config.checkpoint.best)

  replicas = replicas_of(config, program)
  like = abstract(stacked(program.abstract, config.replicas), replicas.stacked_layout)
  step, states = pick_and_restore(
    workdir,
    pick,
    lambda step: processes.everywhere(lambda: restore(workdir, step, like)),
    agree=processes.first,
  )
  states, sizes = replicas.unpack(states), (config.replicas, config.eval_batch_size)
  return RestoredRun(program, dataset, replicas, states, step, *sizes, is_resident(config, dataset))

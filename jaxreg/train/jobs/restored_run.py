"""A trained run with its data and the states of all replicas, for jobs that evaluate it."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from jaxreg.train.assemble.from_config import build
from jaxreg.train.assemble.load_data import is_resident, load_data
from jaxreg.train.assemble.run_parts import replicas_of
from jaxreg.train.config.choices import Config, flatten
from jaxreg.train.data.batches import Source, make_source
from jaxreg.train.data.dataset import Dataset, Split
from jaxreg.train.devices import processes
from jaxreg.train.devices.replicas import Loop, Vmap, stacked
from jaxreg.train.run import workdir as workdirs
from jaxreg.train.run.checkpoint import abstract, pick_and_restore, restore
from jaxreg.train.run.folder_name import EVALUATES
from jaxreg.train.run.manifest import pick_step
from jaxreg.train.run.whole_split import outputs_over, predicting_state
from jaxreg.train.step.program import Program
from jaxreg.train.step.state import States, TrainState


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
    """The state of each replica in turn, with the parameters for predictions."""
    return (
      predicting_state(self.program, self.replicas, self.states, replica) for replica in range(self.number)
    )

  def source(self, split: Split) -> Source:
    return make_source(self.replicas.mesh, split, resident=self.resident)

  def outputs(self, state: TrainState, source: Source) -> dict[str, np.ndarray]:
    """The head's `..._logits` and the `predictions` for every example, on the host."""
    return outputs_over(self.program, self.replicas.mesh, state, source, self.batch_size)


def restore_states(config: Config, workdir: Path) -> RestoredRun:
  """The checkpoint of `workdir` that `config.evaluate` names, on the devices."""
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

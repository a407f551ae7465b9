"""`job = evaluate`: the metrics of a checkpoint on a split."""

import dataclasses
from pathlib import Path
from typing import Any

from jaxreg.train.assemble.from_config import build
from jaxreg.train.assemble.load_data import is_resident, load_data
from jaxreg.train.assemble.run_parts import replicas_of
from jaxreg.train.config.choices import Config, flatten
from jaxreg.train.data.dataset import Dataset
from jaxreg.train.data.placement import make_source
from jaxreg.train.devices import processes
from jaxreg.train.devices.replicas import Loop, Vmap, stacked
from jaxreg.train.jobs.elsewhere import detection
from jaxreg.train.jobs.measures import further_measures
from jaxreg.train.run import workdir as workdirs
from jaxreg.train.run.checkpoint import abstract, restore
from jaxreg.train.run.evaluation import make_evaluate
from jaxreg.train.run.manifest import pick_step
from jaxreg.train.run.restore import pick_and_restore
from jaxreg.train.step.metrics import averaged
from jaxreg.train.step.program import Program


@dataclasses.dataclass(frozen=True)
class Restored:
  """A trained run: its functions, its data and the states of one checkpoint, as `replicas` lays them out."""

  program: Program
  dataset: Dataset
  replicas: Vmap | Loop
  states: Any
  step: int


def evaluate(config: Config, workdir: Path) -> dict[str, Any]:
  """Evaluates a checkpoint of `workdir`, as `config.evaluate` says.

  Raises:
    RunError: if `workdir` holds nothing usable, or if it was trained under another configuration.
  """
  run = restore_states(config, workdir)
  split = config.evaluate.split
  resident = is_resident(config, run.dataset)
  source = make_source(run.replicas.mesh, run.dataset.splits()[split], resident=resident)
  runs = make_evaluate(run.program, run.replicas, config.eval_batch_size)(run.states, source, split)
  shown = (run.program, run.replicas, run.states, run.dataset)
  sizes = {"number": config.replicas, "batch_size": config.eval_batch_size}
  if names := config.evaluate.measures:
    options = {"resident": resident, "alpha": config.evaluate.alpha}
    runs |= further_measures(*shown, split, names, **sizes, **options)
  if config.evaluate.ood:
    runs |= detection(*shown, run.dataset.splits()[split], config.evaluate.ood, **sizes)
  return {"step": run.step, **averaged(runs)}


def restore_states(config: Config, workdir: Path) -> Restored:
  """The checkpoint of `workdir` that `config.evaluate` names, on the devices."""
  processes.same("config", flatten(config))
  dataset = processes.everywhere(lambda: load_data(config))
  description = dataset.describe()
  processes.same("data", description.table())
  program = build(config, description)

  def pick() -> int:
    workdirs.check_same(workdir, flatten(config), description, workdirs.EVALUATES)
    return pick_step(workdir, config.evaluate.checkpoint, config.checkpoint.best)

  replicas = replicas_of(config, program)
  like = abstract(stacked(program.abstract, config.replicas), replicas.stacked_layout)
  step, stacked_states = pick_and_restore(
    workdir,
    pick,
    lambda step: processes.everywhere(lambda: restore(workdir, step, like)),
    agree=processes.first,
  )
  states = replicas.unpack(stacked_states)
  return Restored(program, dataset, replicas, states, step)

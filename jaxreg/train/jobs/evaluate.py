"""`job = evaluate`: the metrics of a checkpoint on a split. `report` puts the results of any job in words."""

import dataclasses
from pathlib import Path
from typing import Any

from jaxreg.train.build.dataset import is_resident, load_data
from jaxreg.train.build.program import build
from jaxreg.train.build.run import replicas_of
from jaxreg.train.config.fields import Config, flatten
from jaxreg.train.data.dataset import Dataset
from jaxreg.train.data.placement import make_source
from jaxreg.train.devices import processes
from jaxreg.train.devices.replicas import Loop, Vmap, stacked
from jaxreg.train.jobs.compare import markdown
from jaxreg.train.jobs.flatness.figures import markdown as flatness_lines
from jaxreg.train.run import workdir as workdirs
from jaxreg.train.run.checkpoint import abstract, restore
from jaxreg.train.run.evaluation import make_evaluate
from jaxreg.train.run.manifest import pick_step
from jaxreg.train.run.restore import pick_and_restore
from jaxreg.train.step.metrics import averaged, shown
from jaxreg.train.step.program import Program


def report(results: dict[str, Any], config: Config, workdir: Path) -> str:
  """The results as a few lines for people."""
  if config.job == "compare":
    where = f"in {workdir}: compare.md, compare.json, figures/, and a folder a run"
    return f"{markdown(results)}\n{where}"
  if config.job == "flatness":
    return f"{flatness_lines(results)}\nin {workdir}: flatness.json, figures/, and a folder a run"
  if config.job == "translate":
    found = "   ".join(
      f"{name} BLEU {shown(results, f'{name}/bleu', digits=2)}" for name in ("greedy", "beam")
    )
    where = f"in {workdir}: translations.txt, translate.json"
    return f"{config.evaluate.split}, checkpoint of step {results['step']}\n{found}\n{where}"
  lines = []
  for split in ("train", "val", "test"):
    if f"{split}/error" in results:
      error = shown(results, f"{split}/error", factor=100, digits=2)
      nll = shown(results, f"{split}/nll", digits=4)
      ece = shown(results, f"{split}/ece", factor=100, digits=2)
      lines.append(f"{split:5} error {error}%   NLL {nll}   ECE {ece}%")
  what = f"{config.method.name}, checkpoint of step {results['step']}"
  number, members = config.replicas // config.ensemble, config.ensemble
  if number > 1:
    each = "seeds" if members == 1 else f"ensembles of {members}"
    what += f", {number} {each}, mean ± 95 % confidence interval"
  elif members > 1:
    what += f", an ensemble of {members}"
  if config.job == "dropmax_figures":
    lines.append(f"in {workdir}: figures/, and what the training left")
  if config.job == "train":
    lines.append(f"in {workdir}: results.json, metrics.jsonl, figures/, checkpoints/, tensorboard/")
  return "\n".join([what, *lines])


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
  source = make_source(
    run.replicas.mesh, run.dataset.splits()[split], resident=is_resident(config, run.dataset)
  )
  runs = make_evaluate(run.program, run.replicas, config.eval_batch_size)(run.states, source, split)
  return {"step": run.step, **averaged(runs)}


def restore_states(config: Config, workdir: Path) -> Restored:
  """The checkpoint of `workdir` that `config.evaluate` names, on the devices.

  Raises:
    RunError: if `workdir` holds nothing usable, or if it was trained under another configuration.
  """
  processes.same("config", flatten(config))
  dataset = processes.everywhere(lambda: load_data(config))
  description = dataset.describe()
  processes.same("data", description)
  program = build(config, description)

  def pick() -> int:
    workdirs.check_same(workdir, flatten(config), description, workdirs.FREE_TO_EVALUATE)
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

"""The jobs that `config.job` can name."""

from pathlib import Path
from typing import Any

from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxreg.train import processes
from jaxreg.train import workdir as workdirs
from jaxreg.train.checkpoint import abstract, restore
from jaxreg.train.compare import markdown
from jaxreg.train.config import Config, flatten
from jaxreg.train.data import make_source
from jaxreg.train.evaluate import make_evaluate
from jaxreg.train.flatness_figures import markdown as flatness_lines
from jaxreg.train.load import pick_step
from jaxreg.train.metrics import averaged, shown
from jaxreg.train.replicas import stacked
from jaxreg.train.setup import build, is_resident, load_data, make_mesh, replicas_of


def report(results: dict[str, Any], config: Config, workdir: Path) -> str:
  """The results as a few lines for people."""
  if config.job == "compare":
    where = f"in {workdir}: compare.md, compare.json, figures/, and a folder a run"
    return f"{markdown(results)}\n{where}"
  if config.job == "flatness":
    return f"{flatness_lines(results)}\nin {workdir}: flatness.json, figures/, and a folder a run"
  lines = []
  for split in ("train", "val", "test"):
    if f"{split}/error" in results:
      error = shown(results, f"{split}/error", factor=100, digits=2)
      nll = shown(results, f"{split}/nll", digits=4)
      ece = shown(results, f"{split}/ece", factor=100, digits=2)
      lines.append(f"{split:5} error {error}%   NLL {nll}   ECE {ece}%")
  what = f"{config.method.name}, checkpoint of step {results['step']}"
  if config.replicas > 1:
    what += f", {config.replicas} seeds, mean ± 95 % confidence interval"
  if config.job == "train":
    lines.append(f"in {workdir}: results.json, metrics.jsonl, figures/, checkpoints/, tensorboard/")
  return "\n".join([what, *lines])


def evaluate(config: Config, workdir: Path) -> dict[str, Any]:
  """Evaluates a checkpoint of `workdir`, as `config.evaluate` says.

  Raises:
    RunError: if nothing usable is there, or if it was trained under another configuration.
  """
  processes.same("config", flatten(config))
  dataset = processes.everywhere(lambda: load_data(config))
  description = dataset.describe()
  program = build(config, description)

  def pick() -> int:
    workdirs.check_same(workdir, config, description, workdirs.FREE_TO_EVALUATE)
    return pick_step(workdir, config.evaluate.checkpoint, config.checkpoint.best)

  step = processes.first(pick)
  mesh = make_mesh()
  replicas = replicas_of(config, mesh, program)
  like = stacked(program.abstract, config.replicas)
  states = replicas.unpack(restore(workdir, step, abstract(like, NamedSharding(mesh, P()))))
  split = config.evaluate.split
  source = make_source(mesh, dataset.splits()[split], resident=is_resident(config, dataset))
  runs = make_evaluate(program, replicas, config.eval_batch_size)(states, source, split)
  return {"step": step, **averaged(runs)}

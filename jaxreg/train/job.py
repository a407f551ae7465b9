"""The jobs that `config.job` can name."""

from pathlib import Path

import jax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxreg.train import workdir as workdirs
from jaxreg.train.checkpoint import abstract, restore
from jaxreg.train.config import Config
from jaxreg.train.data import resident
from jaxreg.train.evaluate import make_evaluate
from jaxreg.train.load import pick_step
from jaxreg.train.setup import build, load_data, make_mesh


def report(results: dict[str, float], config: Config, workdir: Path) -> str:
  """The results as a few lines for people."""
  lines = []
  for split in ("train", "val", "test"):
    if f"{split}/error" in results:
      error, nll, ece = (results[f"{split}/{name}"] for name in ("error", "nll", "ece"))
      lines.append(f"{split:5} error {error:.2%}   NLL {nll:.4f}   ECE {ece:.2%}")
  what = f"{config.method.name}, checkpoint of step {results['step']}"
  if config.job == "train":
    lines.append(f"in {workdir}: results.json, metrics.jsonl, figures/, checkpoints/, tensorboard/")
  return "\n".join([what, *lines])


def evaluate(config: Config, workdir: Path) -> dict[str, float]:
  """Evaluates a checkpoint of `workdir`, as `config.evaluate` says.

  Raises:
    RunError: if nothing usable is there, or if it was trained under another configuration.
  """
  dataset = load_data(config)
  program = build(config, dataset.describe())
  workdirs.check_same(workdir, config, dataset.describe(), workdirs.FREE_TO_EVALUATE)
  step = pick_step(workdir, config.evaluate.checkpoint, config.checkpoint.best)
  mesh = make_mesh()
  state = restore(workdir, step, abstract(jax.eval_shape(program.init), NamedSharding(mesh, P())))
  split = config.evaluate.split
  data = resident(mesh, dataset.splits()[split])
  return {"step": step, **make_evaluate(program, mesh, config.eval_batch_size)(state, data, split)}

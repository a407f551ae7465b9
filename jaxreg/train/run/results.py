"""What a finished run leaves in its work directory, beside its records and checkpoints."""

from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxreg import calibration
from jaxreg.train.build.program import Program
from jaxreg.train.config.fields import Config
from jaxreg.train.data.placement import Source
from jaxreg.train.devices import processes
from jaxreg.train.devices.replicas import Loop, Vmap
from jaxreg.train.errors import RunError
from jaxreg.train.lookup import short
from jaxreg.train.run.evaluation import bins_over, make_sums, outputs_over
from jaxreg.train.run.figures import save_figures
from jaxreg.train.run.files import sealed, write_json
from jaxreg.train.step.metrics import averaged


def write_results(
  config: Config,
  workdir: Path,
  program: Program,
  replicas: Vmap | Loop,
  step: int,
  states: Any,
  test: Source,
  labels: np.ndarray,
  runs: dict[str, np.ndarray],
) -> dict[str, Any]:
  """Writes figures, `reliability.json` and, last, `results.json`; returns what is in that.

  Args:
    step: at which the run ended, with these `states`.
    test, labels: the test split; the figures show the first replica, or the first ensemble, on it.
    runs: the metrics, each `[replicas]`.

  Raises:
    RunError: if they cannot be written.
  """
  outputs, bins = _predictions(config, program, replicas, states, test, labels)
  results = {"step": step, **averaged(runs)}
  seeds = range(config.seed, config.seed + config.replicas)
  if len(seeds) > program.ensemble:
    firsts = list(seeds)[:: program.ensemble]
    results["replicas"] = {"seed": firsts, **{name: values.tolist() for name, values in runs.items()}}

  def write() -> None:
    terms = (*program.method.terms, *map(short, config.regularizers.names))
    save_figures(workdir, short(config.method.name), seeds, terms, bins, outputs, labels)
    reliability = {name: np.asarray(sums).tolist() for name, sums in bins.items()}
    write_json(workdir / "reliability.json", sealed(reliability))
    # Last: a run with results is done.
    write_json(workdir / "results.json", sealed(results))

  try:
    processes.first(write)
  except OSError as error:
    raise RunError(
      f"{workdir}: the results cannot be written ({error}); the same command tries again"
    ) from error
  return results


def _predictions(
  config: Config,
  program: Program,
  replicas: Vmap | Loop,
  states: Any,
  test: Source,
  labels: np.ndarray,
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
  """The outputs for every test example, where they can be kept, and the sums of the reliability."""
  if program.ensemble > 1:  # what its members predict alone is not what it predicts
    sums = make_sums(program, replicas, config.eval_batch_size)(states, test)
    return {}, jax.tree.map(lambda x: x[0], sums["ece"])
  shown = (program, replicas.mesh, replicas.pick(states, 0), test, config.eval_batch_size)
  if labels.ndim > 1:  # of every token of every sequence, the outputs are too many to keep
    return {}, bins_over(*shown)
  outputs = outputs_over(*shown)
  return outputs, calibration.ece_bins(outputs["log_probs"], labels)

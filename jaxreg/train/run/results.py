"""The figures and results that a finished run writes to its work directory."""

from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxreg import calibration
from jaxreg.train.devices import processes
from jaxreg.train.errors import RunError
from jaxreg.train.files import sealed, write_json
from jaxreg.train.run.evaluation import bins_over, make_sums, outputs_over
from jaxreg.train.run.figures import save_figures
from jaxreg.train.run.loop import Run
from jaxreg.train.step.metrics import averaged


def write_results(
  run: Run, workdir: Path, step: int, states: Any, labels: np.ndarray, values: dict[str, np.ndarray]
) -> dict[str, Any]:
  """Writes figures, `reliability.json` and, last, `results.json`; returns the content of `results.json`.

  Args:
    step: the step at which the run ended, with these `states`.
    labels: the labels of the test split; the figures show the first replica, or the first ensemble, on it.
    values: the metrics, each `[replicas]`.
  """
  program, seeds = run.program, run.seeds
  outputs, bins = _predictions(run, states, labels)
  results = {"step": step, **averaged(values)}
  if len(seeds) > program.ensemble:
    firsts = list(seeds)[:: program.ensemble]
    results["replicas"] = {"seed": firsts, **{name: each.tolist() for name, each in values.items()}}

  def write() -> None:
    save_figures(workdir, program.name, seeds, program.terms, bins, outputs, labels)
    reliability = {name: np.asarray(sums).tolist() for name, sums in bins._asdict().items()}
    write_json(workdir / "reliability.json", sealed(reliability))
    # Written last, because a run with results counts as finished.
    write_json(workdir / "results.json", sealed(results))

  try:
    processes.first(write)
  except OSError as error:
    raise RunError(
      f"{workdir}: the results cannot be written ({error}); the same command tries again"
    ) from error
  return results


def _predictions(run: Run, states: Any, labels: np.ndarray) -> tuple[dict[str, np.ndarray], calibration.Bins]:
  """The outputs for every test example, if they can be kept, and the sums of the calibration bins."""
  program, replicas, test = run.program, run.replicas, run.data["test"]
  if program.ensemble > 1:  # the outputs of single members are not the ensemble's prediction
    sums = make_sums(program, replicas, run.eval_batch_size)(states, test)
    return {}, jax.tree.map(lambda x: x[0], sums["ece"])
  shown = (program, replicas.mesh, replicas.pick(states, 0), test, run.eval_batch_size)
  if labels.ndim > 1:  # outputs for every token of every sequence are too many to keep
    return {}, bins_over(*shown)
  outputs = outputs_over(*shown)
  return outputs, calibration.ece_bins(outputs["log_probs"], labels)

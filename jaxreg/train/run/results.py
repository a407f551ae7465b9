"""What a finished run writes to its work directory: figures, `reliability.json` and `results.json`."""

import jax
import numpy as np
from etils.epath import Path
from matplotlib.figure import Figure
from scipy.special import expit

from jaxreg import plots
from jaxreg._atomic_files import write_figures, write_json
from jaxreg._paper_names import paper_name
from jaxreg.calibration import Bins
from jaxreg.train.devices import processes
from jaxreg.train.errors import RunError
from jaxreg.train.run.evaluation import outputs_over, predicting_state
from jaxreg.train.run.goodput import Times
from jaxreg.train.run.loop import Run
from jaxreg.train.run.metrics_file import read_records
from jaxreg.train.sealed_tables import Table, sealed
from jaxreg.train.step.metrics import averaged, summarize
from jaxreg.train.step.state import States
from jaxreg.train.step.targets import CLASSES, Numbers, Target


def final_metrics(
  run: Run, states: States, val: dict[str, np.ndarray] | None
) -> tuple[dict[str, np.ndarray], Bins | None] | None:
  """Returns metrics `[replicas]` and the first replica's bins on test, if any; None after a signal."""
  # The last evaluation may have used the live parameters; a run killed after its last step has none.
  if val is None or run.program.extras.evaluated:
    sums = run.evaluate(states, run.data["val"])
    if sums is None:
      return None
    val = summarize(sums, "val")
  sums = run.evaluate(states, run.data["test"])
  if sums is None:
    return None
  return val | summarize(sums, "test"), jax.tree.map(lambda x: x[0], sums.get("ece"))


def write_results(
  run: Run,
  workdir: Path,
  step: int,
  states: States,
  labels: np.ndarray,
  values: dict[str, np.ndarray],
  bins: Bins | None,
  title: str,
  token: str,
  times: Times,
) -> Table:
  """Writes figures, `reliability.json` and, last, `results.json`; returns the results without times.

  The figures show the first replica, or the first ensemble, on the test split with these `labels`. Metrics in
  `values` are `[replicas]` each; `bins` come from `final_metrics`; `token` is the run's.
  `results.json` also has the run's goodput.
  """
  program, seeds = run.program, run.seeds
  outputs: dict[str, np.ndarray] = {}
  # A member's outputs are not the ensemble's, and outputs for every token are too many to keep.
  if program.ensemble == 1 and (labels.ndim == 1 or bins is None):
    first = predicting_state(program, run.replicas, states, 0)
    outputs = outputs_over(program, run.replicas.mesh, first, run.data["test"], run.eval_batch_size)
  results = {"step": step, **averaged(values)}
  if len(seeds) > program.ensemble:
    firsts = list(seeds)[:: program.ensemble]
    results["replicas"] = {"seed": firsts, **{name: each.tolist() for name, each in values.items()}}

  def write() -> None:
    name = f"{paper_name(program.name)}, {title}"
    goodput = times.finish()
    save_figures(workdir, name, seeds, program.terms, bins, outputs, labels, goodput, program.target)
    if bins is not None:
      reliability = {name: np.asarray(sums).tolist() for name, sums in bins._asdict().items()}
      write_json(workdir / "reliability.json", sealed(reliability, token))
    # Written last, because a run with results counts as finished.
    write_json(workdir / "results.json", sealed({**results, "goodput": goodput}, token))

  try:
    processes.first(write)
  except OSError as error:
    raise RunError(f"{workdir}: results cannot be written ({error}); the same command tries again") from error
  return results


def save_figures(
  workdir: Path,
  name: str,
  seeds: range,
  terms: tuple[str, ...],
  bins: Bins | None,
  outputs: Table,
  labels: np.ndarray,
  goodput: Table,
  target: Target = CLASSES,
) -> list[str]:
  """Draws the figures for which there are records or test outputs; returns the file names."""
  first = f"{name}, seed {seeds[0]}"
  title = first if len(seeds) == 1 else f"{name}, mean of the seeds {seeds[0]} to {seeds[-1]}"
  records = read_records(workdir)
  figures = {
    "curves": plots.curves(records, title=title),
    "goodput": plots.goodput({"run": goodput}, title=name),
  }
  if bins is not None:
    figures["reliability"] = plots.reliability({"test": bins}, title=first)
  elif outputs and isinstance(target, Numbers):
    figures["predicted"] = _predicted(target, outputs["predictions"], labels, first)
  if len(terms) > 1:
    figures["terms"] = plots.terms(records, terms, title=title)
  if "retain_logits" in outputs:
    retain = outputs["retain_logits"]
    # Without posterior or residual logits, the posterior equals the prior.
    posterior = outputs.get("posterior_logits", retain + outputs.get("residual_logits", 0))
    if any("train/retain_target" in record for record in records):
      figures["diagnostics"] = plots.diagnostics(records, title=title)
    maps = (expit(retain), expit(posterior), labels, outputs["predictions"])
    figures["retain_maps"] = plots.retain_maps(*maps, title=first)
  write_figures(workdir / "figures", figures)
  return [f"{name}.png" for name in figures]


def _predicted(target: Numbers, predictions: np.ndarray, labels: np.ndarray, title: str) -> Figure:
  """Draws the first target's predictions against its values, with predicted quantiles if there are any."""
  predictions = target.original(predictions)
  levels, quantiles = target.quantiles(predictions)
  point = np.asarray(target.point(predictions))

  def first(x: np.ndarray) -> np.ndarray:
    return x.reshape(len(labels), -1, *x.shape[labels.ndim :])[:, 0]

  bands = first(quantiles) if len(levels) else None
  return plots.predicted(first(labels), first(point), bands, levels=levels, title=title)

"""The figures of a finished run."""

from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import expit

from jaxreg import plots
from jaxreg.calibration import Bins
from jaxreg.plots._names import paper_name
from jaxreg.train.files import write_figures
from jaxreg.train.run.log import read_records


def save_figures(
  workdir: Path,
  method: str,
  seeds: range,
  terms: tuple[str, ...],
  bins: Bins,
  outputs: dict[str, Any],
  labels: np.ndarray,
) -> list[str]:
  """Draws figures of the run's records and of its first seed's test outputs into `workdir/figures`.

  A figure is left out if its records or outputs are missing. `bins` are the sums of `calibration.ece_bins`
  over the test split.

  Returns:
    The file names.
  """
  name = paper_name(method)
  first = f"{name}, seed {seeds[0]}"
  title = first if len(seeds) == 1 else f"{name}, mean of the seeds {seeds[0]} to {seeds[-1]}"
  records = read_records(workdir)
  figures = {
    "curves": plots.curves(records, title=title),
    "reliability": plots.reliability({"test": bins}, title=first),
  }
  if len(terms) > 1:
    figures["terms"] = plots.terms(records, terms, title=title)
  if "retain_logits" in outputs:
    retain = outputs["retain_logits"]
    # Without posterior or residual logits, the posterior equals the prior.
    posterior = outputs.get("posterior_logits", retain + outputs.get("residual_logits", 0))
    if any("train/retain_target" in record for record in records):
      figures["diagnostics"] = plots.diagnostics(records, title=title)
    figures["retain_maps"] = plots.retain_maps(
      expit(retain), expit(posterior), labels, outputs["log_probs"], title=first
    )
  write_figures(workdir, figures)
  return [f"{name}.png" for name in figures]

"""The figures of a finished run."""

from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import expit

from jaxreg import plots
from jaxreg.train.log import read_records


def save_figures(
  workdir: Path, title: str, terms: tuple[str, ...], outputs: dict[str, Any], labels: np.ndarray
) -> list[str]:
  """Draws what the records and the test outputs allow into `workdir/figures`; returns the file names."""
  records = read_records(workdir)
  figures = {"curves": plots.curves(records, title=title)}
  if len(terms) > 1:
    figures["terms"] = plots.terms(records, terms, title=title)
  if "retain_logits" in outputs:
    retain = outputs["retain_logits"]
    posterior = outputs.get("posterior_logits", retain + outputs["residual_logits"])
    figures["diagnostics"] = plots.diagnostics(records, title=title)
    figures["retain_maps"] = plots.retain_maps(
      expit(retain), expit(posterior), labels, outputs["log_probs"], title=title
    )
  folder = workdir / "figures"
  folder.mkdir(exist_ok=True)
  for name, figure in figures.items():
    figure.savefig(folder / f"{name}.png", dpi=120)
  return [f"{name}.png" for name in figures]

"""`job = flatness`: trains or restores networks, and analyses their minima and dropout's noise at them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from jaxreg import plots
from jaxreg.flatness._subset import selected
from jaxreg.train.build.dataset import load_data
from jaxreg.train.build.program import build
from jaxreg.train.config.checks import check
from jaxreg.train.config.choices import Config
from jaxreg.train.config.rows import checked_rows
from jaxreg.train.errors import RunError, one_line, unknown
from jaxreg.train.files import check_no_links, local_path, write_figures, write_json, write_text
from jaxreg.train.jobs.cells import check_replicas, folder_name, make_cell
from jaxreg.train.jobs.flatness.analyses import rises
from jaxreg.train.jobs.flatness.checks import check_parts, check_plain, check_samples, noisy_programs
from jaxreg.train.jobs.flatness.figures import make_figures, power_law_panels
from jaxreg.train.jobs.flatness.row import AnalysedRun
from jaxreg.train.jobs.train import train
from jaxreg.train.run.log import progress

ANALYSES = ("profile", "variance_flatness", "projected_variance", "alignment")


def flatness(config: Config, workdir: Path) -> dict[str, Any]:
  """Runs the analyses that `config.flatness` asks for; writes `flatness.json` and figures.

  Each row of `flatness.rows` is trained as by `train`, in a folder of its own below `workdir`, and then
  analysed. If `flatness.workdir` is given, that run is analysed instead. An interrupted job continues where
  it was.

  Raises:
    RunError: for a mistake in the rows or options; if possible, before anything is trained.
    Interrupted: on SIGTERM or Ctrl-C while training, after saving.
  """
  if jax.process_count() > 1:
    raise RunError(f"job: flatness runs in one process, here are {jax.process_count()}")
  check_no_links(workdir)
  rows = _rows(config)
  found: dict[str, dict[str, Any]] = {}
  for number, (label, cell) in enumerate(rows.items(), 1):
    part = f"row {number} of {len(rows)}: {label}"
    progress(f"flatness: {part}")
    if config.flatness.workdir:
      folder = local_path(config.flatness.workdir, "flatness.workdir")
    else:
      folder = workdir / "rows" / folder_name(label, cell)
      train(cell, folder, part=part)
    try:
      found[label] = AnalysedRun(cell, folder, kept_in=workdir / "kept").analyse()
    except (ValueError, TypeError) as error:
      raise RunError(f"flatness, row {label!r}: {one_line(error)}") from error
  results = {label: row["summary"] for label, row in found.items()}
  _compare_profiles(found, results)

  arrays = {label: row["arrays"] for label, row in found.items()}
  write_figures(workdir, make_figures(arrays))
  for name, (panels, *_) in power_law_panels(arrays).items():
    write_text(workdir / "figures" / f"{name}.md", plots.power_law_table(panels) + "\n")
  write_json(workdir / "flatness.json", results)
  return {"rows": results}


def _rows(config: Config) -> dict[str, Config]:
  """The configuration of each row, checked."""
  options = config.flatness
  if options.workdir:
    if options.rows:
      raise RunError("flatness.rows, flatness.workdir: give either rows to train or a run to look at")
    _check(config)
    return {Path(options.workdir).name: config}
  check_replicas(config)
  fields = checked_rows(config, "flatness.rows") if options.rows else {"run": {}}
  cells = {}
  for label, row in fields.items():
    try:
      cells[label] = make_cell(config, label, row, seeds=1)
      _check_row(cells[label])
    except (RunError, ValueError, TypeError) as error:
      raise RunError(f"flatness, row {label!r}: {error}") from error
  return cells


def _check_row(cell: Config) -> None:
  """Makes the checks of a trained row that are possible before training."""
  check(cell)
  _check(cell)
  options, dataset = cell.flatness, load_data(cell)
  check_plain(cell, options, dataset)
  program = build(cell, dataset.describe())
  selected(program.abstract.params, tuple(options.mask))
  if "alignment" in options.analyses:
    noisy_programs(cell, cell, program, dataset)
  check_parts(program, options, dataset)
  # The best checkpoint may be any checkpoint, so its step is taken as 0.
  check_samples(program, options, dataset, program.num_steps if options.checkpoint == "latest" else 0)


def _check(config: Config) -> None:
  options = config.flatness
  for name in options.analyses:
    if name not in ANALYSES:
      raise unknown("flatness.analyses", name, ANALYSES)
  if "alignment" in options.analyses and not options.alignment.noises:
    raise RunError("flatness.alignment.noises: give at least one, 'label: field=value ...', for the analysis")


def _compare_profiles(found: Mapping[str, Any], results: dict[str, Any]) -> None:
  """Compares every row with the first, direction by direction; all rows have the same directions."""
  compared = {
    label: rises(row["arrays"]["profile"]) for label, row in found.items() if "profile" in row["arrays"]
  }
  for label, row in compared.items():
    first = next(iter(compared))
    for distance, rise in row.items():
      sd = float(rise.std(ddof=1)) if len(rise) > 1 else 0.0
      entry = {"rises": rise.tolist(), "mean": float(rise.mean()), "sd": sd}
      if label != first and distance in compared[first]:
        lower = int((rise < compared[first][distance]).sum())
        entry["flatter_than"] = {"row": first, "directions": lower, "of": len(rise)}
      results[label]["profile"][distance] = entry

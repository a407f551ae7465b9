"""`job = compare`: rows of settings, searched on the validation split, then trained from the same seeds."""

import itertools
import json
from pathlib import Path

import numpy as np

from jaxreg import plots
from jaxreg._atomic_files import write_figures, write_json, write_text
from jaxreg._metrics import COMPARED, heading, metric
from jaxreg.calibration import Bins
from jaxreg.train.assemble.compatibility import check_devices
from jaxreg.train.assemble.from_config import build
from jaxreg.train.assemble.load_data import load_data
from jaxreg.train.config.checks import check
from jaxreg.train.config.choices import Config
from jaxreg.train.config.rows import Fields, Row, compared_rows
from jaxreg.train.data.dataset import DataSpec
from jaxreg.train.devices import processes
from jaxreg.train.errors import RunError
from jaxreg.train.jobs.row_config import check_replicas, row_config, row_folder
from jaxreg.train.jobs.together import Planned, train_together
from jaxreg.train.jobs.train import figure_title, train
from jaxreg.train.run import workdir as workdirs
from jaxreg.train.run.log import progress
from jaxreg.train.run.metrics_file import read_records
from jaxreg.train.sealed_tables import Table
from jaxreg.train.step.metrics import averaged, chosen_metric, few_runs, shown


def compare(config: Config, workdir: Path) -> Table:
  """Trains every row of `config.compare`; writes `compare.json`, `compare.md` and figures.

  Each run has a folder of its own below `workdir`. After an interruption, the same command continues where it
  was, and finished runs are not run again. A row with several settings is first trained with each setting
  from one seed. The setting with the lowest `checkpoint.best` on the validation split is trained from all
  seeds. A mistake in the rows or the grid raises a RunError before anything is trained; see also `train`.
  """
  processes.everywhere(lambda: workdirs.check_folder(workdir))
  rows = compared_rows(config)
  _check_all(config, rows)
  total, numbers = sum(len(_searched(row)) for row in rows) + len(rows), itertools.count(1)

  def trained(runs: list[Planned]) -> list[Table]:
    """The results of each run."""
    if config.compare.together == "auto":
      train_together(runs)
    results: list[Table] = []
    for run in runs:
      part = f"run {next(numbers)} of {total}: {run.label}"
      progress(f"compare: {part}")
      results.append(train(run.config, run.folder, part=part))
    return results

  searches = [_planned(config, workdir, row, setting) for row in rows for setting in _searched(row)]
  found = iter(trained(searches))
  chosen = [_chosen(config, row, [next(found) for _ in _searched(row)]) for row in rows]
  finals = [
    _planned(config, workdir, row, setting, seeds=config.compare.seeds)
    for row, (setting, _) in zip(rows, chosen, strict=True)
  ]
  table: Table = {}
  folders: dict[str, Path] = {}
  for row, (setting, search), final, results in zip(rows, chosen, finals, trained(finals), strict=True):
    metrics = [name for name in COMPARED if name in results]
    runs = results.get("replicas") or {name: [results[name]] for name in metrics}
    table[row.label] = {"setting": setting, "search": search, "runs": {name: runs[name] for name in metrics}}
    folders[row.label] = final.folder

  first = next(iter(table.values()))["runs"]
  for entry in table.values():
    values = {name: np.asarray(runs) for name, runs in entry["runs"].items()}
    entry["mean"] = averaged(values)
    # Every row has the same seeds, and so the same data orders: differences are taken seed by seed. Ensembles
    # have other seeds than single runs; there, any pairing is as good.
    entry["difference"] = averaged({name: runs - np.asarray(first[name]) for name, runs in values.items()})
  results = {"seeds": config.compare.seeds, "rows": table}

  def write() -> None:
    write_json(workdir / "compare.json", results)
    write_text(workdir / "compare.md", markdown(results))
    title, seeds = figure_title(config), f"{config.compare.seeds} seed{'s' * (config.compare.seeds > 1)}"
    runs = {label: entry["runs"] for label, entry in table.items()}
    records = {label: read_records(folder) for label, folder in folders.items()}
    figures = {
      "comparison": plots.comparison(runs, title=f"{title}, {seeds}"),
      "convergence": plots.convergence(records, title=f"{title}, {seeds}"),
    }
    if "test/ece" in first:
      bins = {label: Bins(**workdirs.read(folder, "reliability.json")) for label, folder in folders.items()}
      figures["reliability"] = plots.reliability(bins, title=f"{title}: test split, seed {config.seed}")
    write_figures(workdir / "figures", figures)

  processes.first(write)
  return results


def markdown(results: Table) -> str:
  """The comparison as a Markdown table, whose columns are aligned for people who read it as text."""
  rows = results["rows"]
  reference = next(iter(rows))
  seeds = f"{results['seeds']} seed{'s' if results['seeds'] > 1 else ''}"
  metrics = [name for name in COMPARED if name in rows[reference]["mean"]]
  percent = {name: ", %" if metric(name).percent else "" for name in metrics}
  titles = [heading(name) + percent[name] for name in metrics]
  less = f"{metric(metrics[0]).title} less {reference}'s{percent[metrics[0]]}"
  lines = [[seeds, *titles, less, "setting"]]
  for label, entry in rows.items():
    values = [_cell(entry["mean"], name) for name in metrics]
    difference = _cell(entry["difference"], metrics[0], difference=True) if label != reference else ""
    setting = ", ".join(f"{field.rpartition('.')[2]} {value}" for field, value in entry["setting"].items())
    lines.append([label, *values, difference, setting])
  widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
  lines.insert(1, ["-" * width for width in widths])
  table = ["| " + " | ".join(map(str.ljust, line, widths)) + " |\n" for line in lines]
  note = few_runs(results["seeds"])
  return "".join(table) + (f"\n{note}\n" if note else "")


def _cell(values: Table, name: str, *, difference: bool = False) -> str:
  digits = 2 if metric(name).percent else 3
  return shown(values, name, factor=metric(name).factor, digits=digits, difference=difference)


def _searched(row: Row) -> list[Fields]:
  """The settings of a row that the search trains: none if there is no choice."""
  return row.grid if len(row.grid) > 1 else []


def _planned(config: Config, workdir: Path, row: Row, setting: Fields, *, seeds: int = 0) -> Planned:
  """The run of a row with a setting, from `seeds` seeds; without them, the run that searches from one."""
  run = _run_config(config, row, setting, seeds=seeds or 1)
  label = f"{row.label}, {f'{seeds} seeds' if seeds else _show(setting)}"
  return Planned(label, run, workdir / ("rows" if seeds else "search") / row_folder(row.label, run))


def _chosen(config: Config, row: Row, results: list[Table]) -> tuple[Fields, list[Table]]:
  """The setting to train from all seeds, and the validation metrics of all settings."""
  if not results:
    return row.grid[0], []
  searched = [
    {"setting": setting, **{name: value for name, value in of_one.items() if name.startswith("val/")}}
    for setting, of_one in zip(row.grid, results, strict=True)
  ]
  metric = chosen_metric(config.checkpoint.best, searched[0])
  # Of equal settings, the one with the better likelihood wins.
  best = min(searched, key=lambda entry: (entry[metric], entry.get("val/nll", 0.0)))
  return best["setting"], searched


def _run_config(config: Config, row: Row, setting: Fields, *, seeds: int) -> Config:
  return row_config(config, row.label, {**row.fields, **setting}, seeds=seeds)


def _check_all(config: Config, rows: list[Row]) -> None:
  """Makes every check that needs no training, before hours of training begin."""
  check_replicas(config)
  described: dict[str, DataSpec] = {}
  settings = [(row, setting) for row in rows for setting in row.grid]
  for row, setting in settings:
    run = _run_config(config, row, setting, seeds=config.compare.seeds)
    try:
      check(run)
      check_devices(run)
      data = json.dumps(run.data.to_dict())
      if data not in described:
        described[data] = processes.everywhere(lambda run=run: load_data(run)).describe()
      # Settings that differ only in numbers of the optimizer are built once, for the first of them.
      if setting == row.grid[0] or not all(field.startswith("optimizer.") for field in setting):
        build(run, described[data])
    except RunError as error:
      chosen = f" with {_show(setting)}" if setting else ""
      raise RunError(f"compare, row {row.label!r}{chosen}: {error}") from error


def _show(setting: Fields) -> str:
  return ", ".join(f"{field}={value}" for field, value in setting.items())

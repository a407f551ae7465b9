"""`job = compare`: rows of settings, searched on the validation split, then trained from the same seeds."""

import itertools
import json
import os
import re
import warnings

import numpy as np
from etils.epath import Path

from jaxreg import plots
from jaxreg._atomic_files import write_figures, write_json, write_text
from jaxreg._metrics import COMPARED, heading, metric
from jaxreg.calibration import Bins
from jaxreg.train.assemble.compatibility import check_devices
from jaxreg.train.assemble.from_config import build
from jaxreg.train.assemble.load_data import load_data
from jaxreg.train.config.checks import check
from jaxreg.train.config.choices import Config, base_config, flatten, relevant
from jaxreg.train.config.fields import row_of
from jaxreg.train.config.rows import Fields, Row, compared_rows
from jaxreg.train.data.dataset import DataSpec
from jaxreg.train.devices import processes
from jaxreg.train.errors import RunError, one_line
from jaxreg.train.jobs.train import figure_title, train
from jaxreg.train.run import workdir as workdirs
from jaxreg.train.run.folder_name import short_hash
from jaxreg.train.run.log import progress
from jaxreg.train.run.manifest import check_path
from jaxreg.train.run.metrics_file import read_records
from jaxreg.train.sealed_tables import Table
from jaxreg.train.step.metrics import averaged, chosen_metric, few_runs, shown
from jaxreg.train.user_paths import user_path


def compare(config: Config, workdir: str | os.PathLike[str]) -> Table:
  """Trains every row of `config.compare`; writes `compare.json`, `compare.md`, `goodput.json` and figures.

  Each run has a folder of its own below `workdir`. After an interruption, the same command continues where it
  was, and finished runs are not run again. A row with several settings is first trained with each setting
  from one seed. The setting with the lowest `checkpoint.best` on the validation split is trained from all
  seeds. A mistake in the rows or the grid raises a RunError before anything is trained; see also `train`.
  """
  with warnings.catch_warnings():
    warnings.simplefilter("once", append=True)  # all runs have the same remarks on the same data
    return _compare(config, user_path(workdir, "--workdir"))


def _compare(config: Config, workdir: Path) -> Table:
  check_path(workdir)
  rows = compared_rows(config)
  _check_rows(config, rows)
  searched = {row.label: row.grid if len(row.grid) > 1 else [] for row in rows}
  total, numbers = len(rows) + sum(map(len, searched.values())), itertools.count(1)

  def train_part(run: Config, folder: Path, label: str, what: str) -> Table:
    """Says which run of the comparison this is, and trains it in a folder below `folder`."""
    part = f"run {next(numbers)} of {total}: {label}, {what}"
    progress(f"compare: {part}")
    return train(run, folder / _row_folder(label, run), part=part)

  table: Table = {}
  folders: dict[str, Path] = {}
  for row in rows:
    search: list[Table] = []
    for setting in searched[row.label]:
      run = row_config(config, row, setting, seeds=1)
      results = train_part(run, workdir / "search", row.label, _show(setting))
      val = {name: value for name, value in results.items() if name.startswith("val/")}
      search.append({"setting": setting, **val})
    setting = _best_setting(search, config.checkpoint.best) if search else row.grid[0]
    run = row_config(config, row, setting, seeds=config.compare.seeds)
    folders[row.label] = workdir / "rows" / _row_folder(row.label, run)
    results = train_part(run, workdir / "rows", row.label, f"{config.compare.seeds} seeds")
    metrics = [name for name in COMPARED if name in results]
    values = results.get("replicas") or {name: [results[name]] for name in metrics}
    runs = {name: values[name] for name in metrics}
    table[row.label] = {"setting": setting, "search": search, "runs": runs}
  _add_means(table)
  results = {"seeds": config.compare.seeds, "rows": table}
  processes.first(lambda: _write(config, workdir, results, folders))
  return results


def _add_means(table: Table) -> None:
  """Adds the means over the seeds to each row, and the paired differences to the first row."""
  first = next(iter(table.values()))["runs"]
  for entry in table.values():
    values = {name: np.asarray(runs) for name, runs in entry["runs"].items()}
    entry["mean"] = averaged(values)
    # Every row has the same seeds, and so the same data orders: differences are taken seed by seed. Ensembles
    # have other seeds than single runs; there, any pairing is as good.
    entry["difference"] = averaged({name: runs - np.asarray(first[name]) for name, runs in values.items()})


def _write(config: Config, workdir: Path, results: Table, folders: dict[str, Path]) -> None:
  """Writes the table and the figures of the comparison, whose rows were trained in `folders`."""
  write_json(workdir / "compare.json", results)
  write_text(workdir / "compare.md", markdown(results))
  runs = {label: entry["runs"] for label, entry in results["rows"].items()}
  records = {label: read_records(folder) for label, folder in folders.items()}
  seeds = f"{config.compare.seeds} seed{'s' * (config.compare.seeds > 1)}"
  title = f"{figure_title(config)}, {seeds}"
  figures = {
    "comparison": plots.comparison(runs, title=title),
    "convergence": plots.convergence(records, title=title),
  }
  if all("test/ece" in metrics for metrics in runs.values()):
    bins = {label: Bins(**workdirs.read(folder, "reliability.json")) for label, folder in folders.items()}
    title = f"{figure_title(config)}: test split, seed {config.seed}"
    figures["reliability"] = plots.reliability(bins, title=title)
  # Files of their own: the times of equal comparisons differ.
  goodput = {label: workdirs.read(folder, "results.json")["goodput"] for label, folder in folders.items()}
  write_json(workdir / "goodput.json", goodput)
  figures["goodput"] = plots.goodput(goodput, title=f"{figure_title(config)}: where the time went")
  write_figures(workdir / "figures", figures)


def markdown(results: Table) -> str:
  """Returns the comparison as a Markdown table, with aligned columns for people who read it as text."""
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
  """Formats a metric for the table."""
  digits = 2 if metric(name).percent else 3
  return shown(values, name, factor=metric(name).factor, digits=digits, difference=difference)


def _best_setting(searched: list[Table], choose: str) -> Fields:
  """Returns the setting with the lowest metric on the validation split; the NLL decides between equals."""
  name = chosen_metric(choose, searched[0])
  return min(searched, key=lambda entry: (entry[name], entry.get("val/nll", 0.0)))["setting"]


def _check_rows(config: Config, rows: list[Row]) -> None:
  """Makes every check that needs no training, before hours of training begin."""
  if config.replicas not in (1, config.ensemble):
    raise RunError(f"replicas: job=compare sets them itself; leave it out, got {config.replicas}")
  described: dict[str, DataSpec] = {}
  settings = [(row, setting) for row in rows for setting in row.grid]
  for row, setting in settings:
    run = row_config(config, row, setting, seeds=config.compare.seeds)
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


def row_config(config: Config, row: Row, setting: Fields, *, seeds: int) -> Config:
  """Returns the configuration of a row with a setting, and with a replica for each seed and member."""
  fields = {**row.fields, **setting}
  for field in ("job", "replicas"):
    if field in fields:
      raise RunError(f"{field}: is the same in all rows; leave it out of {row.label!r}")
  # A deep copy, so that the fields of one row do not reach the next.
  run: Config = config.copy_and_resolve_references()
  members = fields.get("ensemble", config.ensemble)
  for field, value in {**fields, "job": "train", "replicas": seeds * members}.items():
    try:
      run.update_from_flattened_dict({field: value})
    except (TypeError, ValueError) as error:
      raise RunError(f"{field}={value} in {row.label!r}: {one_line(error)}") from error
  return run.lock()


def _row_folder(label: str, config: Config) -> str:
  """Returns a name with the row's label and a hash of all fields that the result depends on."""
  # Fields with their default values are left out, so that fields of later versions do not change the name.
  defaults, fields = flatten(base_config()), relevant(flatten(config))
  fields = {name: value for name, value in fields.items() if value != defaults.get(name)}
  fields = {name: value for name, value in fields.items() if row_of(name).scope != "call"}
  return f"{re.sub(r'[^0-9A-Za-z_]+', '_', label).strip('_')}-{short_hash(fields)}"

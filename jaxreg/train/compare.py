"""`job = compare`: rows of settings, searched on the validation split, then trained from the same seeds."""

import ast
import dataclasses
import difflib
import hashlib
import itertools
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from jaxreg import plots
from jaxreg.train import processes
from jaxreg.train import workdir as workdirs
from jaxreg.train.checkpoint import write_json
from jaxreg.train.config import Config, base_config, check, flatten, relevant
from jaxreg.train.errors import RunError, one_line
from jaxreg.train.log import read_records
from jaxreg.train.loop import train
from jaxreg.train.methods import METHODS
from jaxreg.train.metrics import averaged
from jaxreg.train.setup import build, load_data

METRICS = ("test/error", "test/nll", "test/ece")


@dataclasses.dataclass(frozen=True)
class Row:
  """One row of the table: the fields that make it, and the settings among which the search chooses."""

  label: str
  fields: dict[str, Any]
  grid: list[dict[str, Any]]


def compare(config: Config, workdir: Path) -> dict[str, Any]:
  """Trains every row of `config.compare`; writes `compare.json`, `compare.md` and figures.

  Each run has a folder of its own below `workdir`: interrupted, the same command goes on where it was, and
  what is finished is not run again. A row with several settings is first trained with each of them from one
  seed; the one with the lowest `compare.choose` on the validation split is trained from all seeds.

  Raises:
    RunError: for a mistake in the rows, the grid or what they set, before anything is trained.
    Interrupted: on SIGTERM or Ctrl-C, after saving.
  """
  rows = parse_rows(config)
  cells = [(row, setting) for row in rows for setting in row.grid]
  _check_all(config, cells)
  searches = sum(len(row.grid) for row in rows if len(row.grid) > 1)
  progress = _progress(searches + len(rows))
  table: dict[str, Any] = {}
  records: dict[str, Any] = {}
  for row in rows:
    chosen, search = _search(config, workdir, row, progress)
    final = _cell(config, row, chosen, seeds=config.compare.seeds)
    next(progress)(f"{row.label}, {config.compare.seeds} seeds")
    folder = workdir / "rows" / _folder(row.label, final)
    results = train(final, folder)
    records[row.label] = read_records(folder)
    runs = results.get("replicas") or {name: [results[name]] for name in METRICS}
    table[row.label] = {"setting": chosen, "search": search, "runs": {name: runs[name] for name in METRICS}}

  first = next(iter(table.values()))["runs"]
  for entry in table.values():
    entry["mean"] = averaged({name: np.asarray(runs) for name, runs in entry["runs"].items()})
    # The seeds are the same in every row, and with them the data order: differences are taken seed by seed.
    entry["difference"] = averaged(
      {name: np.asarray(runs) - np.asarray(first[name]) for name, runs in entry["runs"].items()}
    )
  results = {"seeds": config.compare.seeds, "rows": table}

  def write() -> None:
    write_json(workdir / "compare.json", results)
    (workdir / "compare.md").write_text(markdown(results))
    (workdir / "figures").mkdir(exist_ok=True)
    figures = {
      "comparison": plots.comparison({label: entry["runs"] for label, entry in table.items()}),
      "convergence": plots.convergence(records),
    }
    for name, figure in figures.items():
      figure.savefig(workdir / "figures" / f"{name}.png", dpi=120)

  processes.first(write)
  return results


def parse_rows(config: Config) -> list[Row]:
  """The rows that `compare.rows` and `compare.grid` describe.

  A row is the name of a method, or `label: field=value field=value`. A line of the grid is
  `field=value,value,...`, for every row, or `label: field=value,value,...`, for one; a row is searched over
  the product of its lines.

  Raises:
    RunError: naming the entry.
  """
  known = flatten(config)
  rows: dict[str, dict[str, Any]] = {}
  for entry in config.compare.rows:
    label, colon, rest = entry.partition(":")
    label = label.strip()
    if not colon and label not in METHODS:
      raise RunError(
        f"compare.rows: got {entry!r}; a row is a method ({', '.join(METHODS)}) or 'label: field=value ...'"
      )
    if not re.fullmatch(r"[\w .=(),+-]+", label) or label in rows:
      raise RunError(f"compare.rows: the label {label!r} must be given once, of letters, digits and .=(),+-")
    rows[label] = {"method.name": label} if not colon else {}
    for part in rest.split():
      field, value = _assignment(part, known, "compare.rows")
      rows[label][field] = _value(value, known[field], part, "compare.rows")
  if not rows:
    raise RunError(f"compare.rows: give at least one, such as {', '.join(METHODS)}")
  lines: dict[str, dict[str, list[Any]]] = {label: {} for label in rows}
  for entry in config.compare.grid:
    label, colon, rest = entry.rpartition(":")
    label = label.strip()
    if colon and label not in rows:
      raise RunError(f"compare.grid: got {entry!r}; the rows are {', '.join(rows)}")
    field, values = _assignment(rest.strip(), known, "compare.grid")
    for row in [label] if colon else rows:
      lines[row][field] = [_value(value, known[field], rest, "compare.grid") for value in values.split(",")]
  return [
    Row(label, fields, [dict(zip(lines[label], point, strict=True)) for point in _product(lines[label])])
    for label, fields in rows.items()
  ]


def markdown(results: dict[str, Any]) -> str:
  """The table."""
  rows = results["rows"]
  reference = next(iter(rows))
  head = f"| {results['seeds']} seeds | test error, % | NLL | ECE, % | error less that of {reference}, % |"
  lines = [head + " setting |", "|---" * 6 + "|"]
  for label, entry in rows.items():
    cells = [
      _interval(entry["mean"], "test/error", 100, 2),
      _interval(entry["mean"], "test/nll", 1, 3),
      _interval(entry["mean"], "test/ece", 100, 2),
      "" if label == reference else _interval(entry["difference"], "test/error", 100, 2),
      ", ".join(f"{field.rpartition('.')[2]} {value}" for field, value in entry["setting"].items()),
    ]
    lines.append(f"| {label} | " + " | ".join(cells) + " |")
  return "\n".join(lines) + "\n"


def _search(
  config: Config, workdir: Path, row: Row, progress: Iterator[Any]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
  """The setting to train from all seeds, and what the search saw."""
  if len(row.grid) == 1:
    return row.grid[0], []
  seen = []
  for setting in row.grid:
    cell = _cell(config, row, setting, seeds=1)
    next(progress)(f"{row.label}, {_show(setting)}")
    results = train(cell, workdir / "search" / _folder(row.label, cell))
    values = {name: value for name, value in results.items() if name.startswith("val/")}
    seen.append({"setting": setting, **values})
  # Of equal ones, that with the better likelihood.
  best = min(seen, key=lambda entry: (entry[config.compare.choose], entry["val/nll"]))
  return best["setting"], seen


def _cell(config: Config, row: Row, setting: Mapping[str, Any], *, seeds: int) -> Config:
  """The configuration of one run."""
  cell: Config = ConfigDict(config)
  for field, value in {**row.fields, **setting, "job": "train", "replicas": seeds}.items():
    try:
      cell.update_from_flattened_dict({field: value})
    except (TypeError, ValueError) as error:
      raise RunError(f"compare: {field}={value} in {row.label!r}: {one_line(error)}") from error
  return cell.lock()


def _check_all(config: Config, cells: list[tuple[Row, dict[str, Any]]]) -> None:
  """Everything that can be told before hours of training."""
  described: dict[str, dict[str, Any]] = {}
  for row, setting in cells:
    cell = _cell(config, row, setting, seeds=config.compare.seeds)
    try:
      check(cell)
      data = json.dumps({k: v for k, v in flatten(cell).items() if k.startswith("data.")})
      if data not in described:
        described[data] = processes.everywhere(lambda cell=cell: load_data(cell)).describe()
      if setting == row.grid[0]:
        build(cell, described[data])
    except RunError as error:
      raise RunError(f"compare, row {row.label!r}{_with(setting)}: {error}") from error


def _folder(label: str, cell: Config) -> str:
  """A name that says the row, and differs with whatever the result depends on."""
  # Also with fields that later versions add: what has its default is left out.
  defaults, fields = flatten(base_config()), relevant(flatten(cell))
  fields = {name: value for name, value in fields.items() if value != defaults.get(name)}
  fields = {name: value for name, value in fields.items() if not workdirs.FREE.match(name)}
  digest = hashlib.sha256(json.dumps(fields, sort_keys=True, default=str).encode()).hexdigest()
  return f"{re.sub(r'[^0-9A-Za-z_]+', '_', label).strip('_')}-{digest[:8]}"


def _assignment(text: str, known: Mapping[str, Any], where: str) -> tuple[str, str]:
  field, equals, values = text.partition("=")
  field = field.strip()
  if not equals or not values:
    raise RunError(f"{where}: got {text!r}; give field=value")
  if field not in known:
    near = difflib.get_close_matches(field, known, n=2, cutoff=0.6)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    raise RunError(f"{where}: there is no field {field}{hint}")
  return field, values


def _value(text: str, now: Any, whole: str, where: str) -> Any:
  if isinstance(now, str):
    return text
  try:
    value = ast.literal_eval(text)
  except (ValueError, SyntaxError):
    value = text
  if isinstance(now, list) and isinstance(value, tuple):
    return value
  if isinstance(now, float) and isinstance(value, int) and not isinstance(value, bool):
    value = float(value)
  if now is not None and type(value) is not type(now):
    raise RunError(f"{where}: {whole!r} sets {text}, where a {type(now).__name__} is needed")
  return value


def _product(lines: Mapping[str, list[Any]]) -> list[tuple[Any, ...]]:
  return list(itertools.product(*lines.values()))


def _progress(total: int) -> Iterator[Any]:
  for number in range(1, total + 1):

    def say(what: str, number: int = number) -> None:
      if processes.is_first():
        print(f"compare: run {number} of {total}: {what}", file=sys.stderr, flush=True)

    yield say


def _show(setting: Mapping[str, Any]) -> str:
  return ", ".join(f"{field}={value}" for field, value in setting.items())


def _with(setting: Mapping[str, Any]) -> str:
  return f" with {_show(setting)}" if setting else ""


def _interval(values: Mapping[str, float], name: str, factor: float, digits: int) -> str:
  half = values.get(f"{name}_ci95")
  spread = "" if half is None else f" ± {factor * half:.{digits}f}"
  return f"{factor * values[name]:.{digits}f}{spread}"

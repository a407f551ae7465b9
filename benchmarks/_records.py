"""The records behind the numbers of the pages: how measurements write them, and how pages show them.

A record is a file `benchmarks/records/NAME.json`: the `compare.json` of `job=compare`, the rows of
`benchmarks/seeds.py`, or what a script of this folder found with `Found`. A page shows a table of it between
two comments, and a number as a link whose title says which:

    <!-- record NAME
    columns: test/error; test/nll; less test/error; setting
    rows: softmax; clipped = OTHER_RECORD/softmax
    paper: softmax 7.09 %
    -->
    <!-- end -->

    [4.54 ± 0.28 %](benchmarks/records/NAME.json "softmax: test/error")

Without `columns` and `rows` a table has all of a comparison; `heading` is that of its first column. Another
key is a column of fixed texts. A title is `ROW: QUANTITY`, with `mean` or `sd` before the quantity for that
alone, with ` less ROW` behind it for the paired difference, and with `, N digits`. `python -m benchmarks
--render` fills both in, and draws the figures of comparisons in `docs/figures` that `FIGURES` names, and
those of `others_networks`, `decay` and `update_sharpness`.
"""

import importlib.metadata
import json
import platform
import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxreg.train.step.metrics import averaged, shown

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "benchmarks" / "records"
BLOCK = re.compile(r"(<!-- record ([\w.-]+)\n?(.*?)-->\n).*?(<!-- end -->)", re.DOTALL)
NUMBER = re.compile(r'\[((?:[^][]|\[[^][]*\])*)\]\(([\w./-]*benchmarks/records/)([\w.-]+)\.json "([^"]+)"\)')
TITLE = re.compile(r"(.+?): (mean |sd )?(.+?)(?: less (.+?))?(?:, (\d) digits)?")
# Of the metrics of the trainer: heading, factor, digits.
METRICS = {
  "test/error": ("test error, %", 100, 2),
  "test/nll": ("NLL", 1, 3),
  "test/nll_unscaled": ("NLL, not scaled", 1, 3),
  "test/ece": ("ECE, %", 100, 2),
  "val/error": ("validation error, %", 100, 2),
  "test/rmse": ("test RMSE", 1, 2),
  "test/mae": ("MAE", 1, 2),
  "test/r2": ("R2", 1, 3),
}
METHODS = {
  "dropmax": "DropMax",
  "dropmax_qp": "DropMax, q = p",
  "random_dropmax": "random DropMax",
  "deterministic_dropmax": "deterministic DropMax",
}
COMPARED = "test/error; test/nll; test/ece; less test/error; setting"
# Comparisons whose figure is drawn from the record: the data and the network, for its title.
FIGURES = {
  "compare_dropmax_digits": "1078 digits, MLP",
  "compare_dropmax_mnist1k": "1000 images of MNIST, LeNet",
  "compare_toolbox_mnist1k": "1000 images of MNIST, MLP",
  "compare_toolbox_cifar10": "4000 images of CIFAR-10, MLP",
  "compare_wrong_labels_cifar10-small": "4000 images of CIFAR-10, 40 % of the labels wrong, MLP",
  "compare_wrong_labels_cifar10-aggre": "CIFAR-10, 9 % of the labels wrong, ResNet-8, 10 epochs",
  "compare_wrong_labels_cifar10-worse": "CIFAR-10, 40 % of the labels wrong, ResNet-8, 10 epochs",
  "compare_toolbox_mnist1k-flipped": "1000 images of MNIST, a fifth of the labels flipped, MLP",
}


class Row(NamedTuple):
  runs: dict[str, np.ndarray]  # one value a seed
  setting: dict[str, Any]
  digits: dict[str, int]


class Found:
  """What a script measured: values for each row and quantity, one a run; `write` makes them a record."""

  def __init__(self) -> None:
    self.rows: dict[str, dict[str, Any]] = {}
    self.digits: dict[str, int] = {}

  def add(self, row: str, quantity: str, values: Any, digits: int = 2) -> None:
    values = np.atleast_1d(np.asarray(values, np.float64))
    self.rows.setdefault(row, {"runs": {}})["runs"][quantity] = values.tolist()
    self.digits[quantity] = digits
    text = shown(averaged({quantity: values}), quantity, digits=digits)
    print(f"  {row}: {quantity} {text} ({len(values)} runs)", flush=True)

  def write(self, name: str, command: str) -> None:
    versions = {package: importlib.metadata.version(package) for package in ("jax", "flax", "optax", "numpy")}
    record = {
      "command": command,
      "versions": {"python": platform.python_version(), **versions},
      "digits": self.digits,
      "rows": self.rows,
    }
    partial = FOLDER / f"{name}.partial"
    partial.write_text(json.dumps(record, indent=1) + "\n")
    partial.replace(FOLDER / f"{name}.json")


@cache
def read(name: str) -> dict[str, Row]:
  """The rows of a record.

  Raises:
    FileNotFoundError: if there is no such record.
  """
  content = json.loads((FOLDER / f"{name}.json").read_text())
  content = content.get("compare", content)
  if isinstance(content["rows"], list):  # of seeds.py: a row for each run
    by_method: dict[str, list[dict[str, Any]]] = {}
    for run in sorted(content["rows"], key=lambda run: run["seed"]):
      by_method.setdefault(run["method"], []).append(run)
    return {
      method: Row({key: np.array([run[key] for run in runs]) for key in runs[0] if "/" in key}, {}, {})
      for method, runs in by_method.items()
    }
  return {
    label: Row(
      {key: np.array(values) for key, values in row["runs"].items()},
      row.get("setting", {}),
      content.get("digits", {}),
    )
    for label, row in content["rows"].items()
  }


def row_of(name: str, label: str) -> Row:
  rows = read(name)
  if label not in rows:
    raise ValueError(f"the record {name} has no row {label!r}, it has {', '.join(rows)}")
  return rows[label]


def text_of(row: Row, quantity: str, *, less: Row | None = None, only: str = "", digits: str = "") -> str:
  """A quantity as pages show it, `4.54 ± 0.28`: mean and 95 % interval, or the one that `only` names."""
  if quantity not in row.runs:
    raise ValueError(f"a record has no quantity {quantity!r}, it has {', '.join(row.runs)}")
  _, factor, usual = METRICS.get(quantity, ("", 1, row.digits.get(quantity, 2)))
  values = row.runs[quantity] - (less.runs[quantity] if less else 0)
  places = int(digits or usual)
  if only:
    value = values.mean() if only == "mean" else values.std(ddof=1)
    return f"{factor * value:.{places}f}"
  means = averaged({quantity: values})
  return shown(means, quantity, factor=factor, digits=places, difference=less is not None)


def draw(folder: Path) -> list[Path]:
  """Draws the figures of `FIGURES` into a folder; returns the files."""
  from jaxreg import plots

  files = []
  for name, about in FIGURES.items():
    rows = {
      label: {key: runs.tolist() for key, runs in row.runs.items()} for label, row in read(name).items()
    }
    seeds = max(len(values) for runs in rows.values() for values in runs.values())
    files.append(folder / f"{name.replace('-', '_')}.png")
    plots.comparison(rows, title=f"{about}, {seeds} seeds").savefig(files[-1], dpi=120)
  if (FOLDER / "others_networks.json").is_file():
    files.append(folder / "others_networks.png")
    _attacks(read("others_networks")).savefig(files[-1], dpi=120)
  if (FOLDER / "decay.json").is_file():
    files.append(folder / "decay.png")
    _norms(json.loads((FOLDER / "decay.json").read_text())["rows"]).savefig(files[-1], dpi=120)
  if (FOLDER / "update_sharpness.json").is_file():
    files.append(folder / "update_sharpness.png")
    _update_sharpness(read("update_sharpness")).savefig(files[-1], dpi=120)
  return files


def _norms(rows: dict[str, Any]) -> Any:
  """Draws the norm of a kernel over steps, for each kind of weight decay, and the closed forms dashed."""
  from jaxreg._figures import WIDTH, legend_below, new_figure, tidy

  figure = new_figure(WIDTH, 4.2, "")
  axis, lines = figure.subplots(), []
  for number, (kind, row) in enumerate(rows.items()):
    norms = row["norms"]
    steps, color = 20 * np.arange(len(norms)), f"C{number}"
    lines += axis.plot(steps, norms, color=color, label=kind)
    for name, start, end in (("peak", 0, 1000), ("a tenth", 1000, 20 * len(norms))):
      (level,) = row["runs"][f"closed form at {name}"]
      axis.hlines(level, start, end, color=color, linestyle="--", linewidth=0.8)
  axis.axvline(1000, color="0.8", linewidth=0.8, zorder=0)
  axis.set_yscale("log")
  tidy(axis, "norm of the kernel")
  axis.set_xlabel("step; the learning rate falls to a tenth at step 1000")
  legend_below(figure, lines)
  return figure


def _attacks(rows: dict[str, Row]) -> Any:
  """Draws the error of each network over the radius of an attack, CIFAR's and MNIST's apart."""
  from jaxreg._figures import WIDTH, legend_below, new_figure, tidy

  figure = new_figure(WIDTH, 3.6, "")
  left, right = figure.subplots(1, 2, sharey=True)
  lines = []
  for number, (label, row) in enumerate(rows.items()):
    radii = [int(found[1]) for name in row.runs if (found := re.fullmatch(r"attacked at (\d+)/255, %", name))]
    errors = [row.runs[f"attacked at {radius}/255, %"].mean() for radius in radii]
    style = "--" if "robust" in label else "-"
    axis = right if label.endswith("MNIST") else left
    lines += axis.plot(radii, errors, f"{style}o", color=f"C{number}", markersize=3, label=label)
  tidy(left, "CIFAR: error (%)")
  tidy(right, "MNIST: error (%)")
  for axis in (left, right):
    axis.set_xlabel("radius in the maximum norm, of 255")
  legend_below(figure, lines)
  return figure


def _update_sharpness(rows: dict[str, Row]) -> Any:
  """Draws the sharpness along the update, and the noise scale, over the steps; bands span the seeds."""
  from jaxreg._figures import GREY, WIDTH, legend_below, new_figure, tidy

  figure = new_figure(WIDTH, 3.8, "")
  left, right = figure.subplots(1, 2)
  lines = []
  for number, (label, row) in enumerate(rows.items()):

    def draw(
      axis: Any, quantity: str, line: str, row: Row = row, color: str = f"C{number}", **style: Any
    ) -> Any:
      named = {name: re.fullmatch(rf"{quantity} at (\d+)", name) for name in row.runs}
      points = {int(match[1]): row.runs[name] for name, match in named.items() if match}
      values = np.array([*points.values()])
      if "-" in line:
        low, high = values.min(axis=1), values.max(axis=1)
        axis.fill_between([*points], low, high, color=color, alpha=0.2, linewidth=0)
      return axis.plot([*points], values.mean(axis=1), line, color=color, **style)

    lines += draw(left, "critical sharpness", "-", label=label, linewidth=1.2)
    draw(left, "directional sharpness", ":", linewidth=0.8)
    draw(right, "noise scale", "-o", markersize=3, linewidth=1.2)
  left.axhline(2, color=GREY, linestyle="--", linewidth=0.8)
  tidy(left, "critical (line), directional (dots)")
  tidy(right, "gradient noise scale (examples)")
  left.set_ylim(bottom=3e-3)
  for axis in (left, right):
    axis.set_yscale("log")
    axis.set_xlabel("step")
  legend_below(figure, lines)
  return figure


def render(page: str, up: str = "") -> str:
  """The page with its tables and numbers from the records that exist; `up` leads to the root, as `../`."""
  page = BLOCK.sub(lambda found: _block(found, up), page)
  return NUMBER.sub(_number, page)


def missing(page: str) -> set[str]:
  """The names of the records that a page asks for and that do not exist."""
  names = {found[2] for found in BLOCK.finditer(page)} | {found[3] for found in NUMBER.finditer(page)}
  for found in BLOCK.finditer(page):
    names |= {name for name, _, _ in _rows(found[2], options(found[3])) if name}
  return {name for name in names if not (FOLDER / f"{name}.json").is_file()}


def unrecorded(page: str) -> list[str]:
  """The numbers with an interval that no record is behind."""
  page = re.sub(r"^```.*?^```$", "", page, flags=re.DOTALL | re.MULTILINE)
  page = re.sub(r"<!-- tables? \w+\s.*?-->.*?<!-- end -->", "", page, flags=re.DOTALL)
  return re.findall(r"[\d.]+ (?:± [\d.]+|\[-?[\d.]+, -?[\d.]+\])", NUMBER.sub("", BLOCK.sub("", page)))


def link(name: str, title: str, unit: str = "", up: str = "") -> str:
  """A number of a record, for pages that are written by a program."""
  file = f'[?{unit}]({up}benchmarks/records/{name}.json "{title}")'
  return NUMBER.sub(_number, file)


def _number(found: re.Match[str]) -> str:
  old, folder, name, title = found.groups()
  if missing(found[0]):
    return found[0]
  parts = TITLE.fullmatch(title)
  if not parts:
    raise ValueError(f"a title of a number is 'ROW: QUANTITY', got {title!r}")
  label, only, quantity, less, digits = parts.groups(default="")
  other = row_of(name, less) if less else None
  new = text_of(row_of(name, label), quantity, less=other, only=only.strip(), digits=digits)
  unit = " %" if old.endswith(" %") else ""
  return f'[{new}{unit}]({folder}{name}.json "{title}")'


def _block(found: re.Match[str], up: str) -> str:
  head, name, choices, end = found.groups()
  if missing(found[0]):
    return found[0]
  given = options(choices)
  rows = {shown_as: row_of(of, label) for of, label, shown_as in _rows(name, given)}
  columns = given.pop("columns", COMPARED).split("; ")
  given.pop("rows", None)
  first = next(iter(rows))
  if columns[-1] == "setting" and not any(row.setting for row in rows.values()):
    columns.pop()
  number = max(len(values) for row in rows.values() for values in row.runs.values())
  heading = given.pop("heading", f"{number} seed{'s' * (number > 1)}")
  heads = [heading, *(_heading(column, first) for column in columns), *given]
  lines = [heads, ["---"] * len(heads)]
  for label, row in rows.items():
    cells = [_cell(row, column, rows[first]) for column in columns]
    lines.append([label, *cells, *(_fixed(texts, label) for texts in given.values())])
  table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
  files = dict.fromkeys(of for of, _, _ in _rows(name, options(choices)))
  links = " and ".join(f"[{file}]({up}benchmarks/records/{file}.json)" for file in files)
  kind = "Mean and 95 % interval" if number > 1 else "Values"
  return f"{head}{table}\n\n{kind} of the runs in {links}.\n{end}"


def options(text: str) -> dict[str, str]:
  """Reads the lines `key: value` of the comment above a table."""
  return {key: value for key, _, value in (line.partition(": ") for line in text.strip().splitlines())}


def _rows(name: str, choices: dict[str, str]) -> list[tuple[str, str, str]]:
  """Returns for each row of a table its record, its label in the record and its label on the page."""
  if "rows" not in choices:
    known = read(name) if (FOLDER / f"{name}.json").is_file() else {}
    named = "heading" in choices  # then labels are names of their own
    return [(name, label, label if named else METHODS.get(label, label.replace("_", " "))) for label in known]
  rows = []
  for entry in choices["rows"].split("; "):
    shown_as, _, source = entry.rpartition(" = ")
    of, _, label = source.partition("/") if shown_as and "/" in source else (name, "", source)
    rows.append((of, label, shown_as or METHODS.get(label, label.replace("_", " "))))
  return rows


def _heading(column: str, first: str) -> str:
  if column == "setting":
    return "chosen"
  if column.startswith("less "):
    heading = METRICS.get(column.removeprefix("less "), (column.removeprefix("less "),))[0]
    what, comma, unit = heading.removeprefix("test ").partition(", ")
    return f"{what} less {first}'s{comma}{unit}"
  if column.startswith("sd "):
    return f"{_heading(column.removeprefix('sd '), first)}, standard deviation"
  return METRICS.get(column, (column,))[0]


def _cell(row: Row, column: str, first: Row) -> str:
  if column == "setting":
    return ", ".join(f"{field.rpartition('.')[2]} {value}" for field, value in row.setting.items())
  if column.startswith("less "):
    return "" if row is first else text_of(row, column.removeprefix("less "), less=first)
  only, quantity = ("sd", column.removeprefix("sd ")) if column.startswith("sd ") else ("", column)
  return text_of(row, quantity, only=only) if quantity in row.runs else ""


def _fixed(texts: str, label: str) -> str:
  """What a column of fixed texts, `softmax 7.09 %; DropMax 5.32 %`, has for a row."""
  head = f"{label} "
  return next((text.removeprefix(head) for text in texts.split("; ") if text.startswith(head)), "")

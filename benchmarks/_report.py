"""What every measurement shares: its flags, and a report of tables and of the numbers behind them."""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any


def flags(doc: str, *, rounds: int) -> argparse.ArgumentParser:
  """A parser with `--rounds`, `--quick` and `--json`; `doc` is the text of `--help`."""
  parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--rounds", type=int, default=rounds)
  parser.add_argument("--quick", action="store_true", help="little of everything: only to see that it runs")
  parser.add_argument("--json", type=Path, help="where to leave the tables and the numbers")
  return parser


def instructions() -> str:
  """The widest vector instructions of the processor that change how XLA convolves, or nothing."""
  path = Path("/proc/cpuinfo")
  known = set(path.read_text().split()) if path.exists() else set()
  return next((name for flag, name in (("avx512f", "AVX-512"), ("avx2", "AVX2")) if flag in known), "")


class Report:
  """Prints each row when it is measured, and keeps tables `{name: {columns, rows}}` and numbers.

  The file is written anew with each row, so that a measurement that is stopped leaves its rows. The names of
  all tables begin with `prefix`.
  """

  def __init__(self, path: Path | None, *, prefix: str = ""):
    self.path, self.prefix = path, prefix
    self.device = ""  # if it is not the processor
    self.tables: dict[str, dict[str, Any]] = {}
    self.numbers: dict[str, Any] = {}

  def table(self, name: str, *columns: str) -> None:
    self.tables[self.prefix + name] = {"columns": columns, "rows": []}
    print(f"\n{line(columns)}\n{line(['---'] * len(columns))}", flush=True)

  def row(self, *cells: object, numbers: Any = None) -> None:
    """A row of the last table; its `numbers` are kept under the table's name and the first cell."""
    name = next(reversed(self.tables))
    texts = [str(cell) for cell in cells]
    self.tables[name]["rows"].append(texts)
    print(line(texts), flush=True)
    if numbers is not None:
      self.numbers.setdefault(name, {})[", ".join(texts[:2])] = numbers
    self.close()

  def close(self) -> None:
    if self.path:
      new = self.path.with_suffix(".new")
      device = {"device": self.device} if self.device else {}
      new.write_text(json.dumps({**device, "tables": self.tables, "numbers": self.numbers}))
      new.replace(self.path)


def line(cells: Any) -> str:
  return f"| {' | '.join(cells)} |"


def spread(values: list[float], form: str = ".2f") -> str:
  """The median, and the quartiles in brackets; of fewer than 4 values the least and the greatest."""
  if len(values) < 4:
    low, median, high = min(values), statistics.median(values), max(values)
  else:
    low, median, high = statistics.quantiles(values, n=4)
  return f"{median:{form}} ({low:{form}} to {high:{form}})"


def ratios(ours: list[float], theirs: list[float]) -> list[float]:
  """Round by round, so that what slows the machine down slows both."""
  return [a / b for a, b in zip(ours, theirs, strict=True)]


def milliseconds(values: list[float]) -> list[float]:
  return [1000 * value for value in values]


def short(value: float, form: str) -> str:
  """In this form, or with three digits if it is small."""
  return f"{value:{form if value >= 10 else '.3g'}}"

"""The table of all regularizers on 1000 images of MNIST: what each gains, and what it adds to a step.

    python benchmarks/toolbox.py [--rounds 5] [--record benchmarks/records/compare_toolbox_mnist1k.json]

The errors are those of a finished comparison, `configs/compare_toolbox_mnist1k.py`: the record is its
`compare.json`. The times are measured here: the trainer's compiled step of each row, at the setting that the
comparison chose, in turn with the step of the first row. Steps of an ensemble train all its members.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from _report import Report, flags, ratios, spread
from _steps import Steps, alternate, made_up

from jaxreg.train.config.fields import flatten
from jaxreg.train.config.files import load_file
from jaxreg.train.config.rows import parse_rows
from jaxreg.train.jobs.cells import make_cell
from jaxreg.train.step.metrics import shown

CONFIGS = Path(__file__).resolve().parent.parent / "configs"
RECORD = Path(__file__).resolve().parent / "records" / "compare_toolbox_mnist1k.json"


def main() -> None:
  parser = flags(__doc__, rounds=5)
  parser.add_argument("--record", type=Path, default=RECORD, help="the `compare.json` of the comparison")
  options = parser.parse_args()
  rounds, seconds = (2, 0.1) if options.quick else (options.rounds, 0.5)
  found = json.loads(options.record.read_text())
  config, _ = load_file("compare_toolbox_mnist1k.py", CONFIGS)
  fields_of = {row.label: row.fields for row in parse_rows(config)}
  if unknown := sorted(found["rows"].keys() - fields_of.keys()):
    parser.error(f"{options.record} has rows that the configuration has not: {', '.join(unknown)}")
  rows = {label: fields_of[label] for label in found["rows"]}
  report = Report(options.json)
  report.table(
    "toolbox",
    f"{found['seeds']} seeds",
    "test error, %",
    "NLL",
    "ECE, %",
    "error less none's, %",
    "setting",
    "step over none's",
  )
  first, *_ = rows
  steps = {first: make_step(config, first, rows[first])}
  for label in list(rows)[:4] if options.quick else rows:
    entry = found["rows"][label]
    fields = rows[label] | entry["setting"]
    steps = {first: steps[first], label: make_step(config, label, fields)} if label != first else steps
    times = alternate(steps, rounds=rounds, seconds=seconds)
    over = spread(ratios(times[label], times[first]))
    report.row(label, *cells(entry, first=label == first), over, numbers=times)
  report.close()


def make_step(config: Any, label: str, fields: Mapping[str, Any]) -> Steps:
  """The compiled step of one run of a row."""
  cell = make_cell(config, label, fields, seeds=1)
  return Steps(made_up((28, 28, 1)), cell.batch_size, flatten(cell), replicas=cell.replicas)


def cells(entry: dict[str, Any], *, first: bool) -> list[str]:
  """Means with their intervals, and the setting, as the comparison writes them."""
  return [
    shown(entry["mean"], "test/error", factor=100, digits=2),
    shown(entry["mean"], "test/nll", digits=3),
    shown(entry["mean"], "test/ece", factor=100, digits=2),
    "" if first else shown(entry["difference"], "test/error", factor=100, digits=2),
    ", ".join(f"{field.rpartition('.')[2]} {value}" for field, value in entry["setting"].items()),
  ]


if __name__ == "__main__":
  main()

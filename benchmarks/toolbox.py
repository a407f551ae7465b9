"""The table of all regularizers on 1000 images of MNIST: what each gains, and what it adds to a step.

    python benchmarks/toolbox.py [--rounds 5] [--record benchmarks/records/compare_toolbox_mnist1k.json]

The errors come from a finished comparison, `configs/compare_toolbox_mnist1k.py`: the record is its
`compare.json`. The times are measured here: the trainer's compiled step of each row, at the middle one of its
strengths, in turn with the step of the first row. Steps of an ensemble train all its members.
"""

import json
from pathlib import Path
from typing import Any

from _report import Report, flags, ratios, spread
from _steps import Steps, alternate, made_up

from jaxreg.train.config.choices import flatten
from jaxreg.train.config.config_files import load_file
from jaxreg.train.config.rows import Row, compared_rows
from jaxreg.train.jobs.compare import row_config
from jaxreg.train.step.metrics import shown

CONFIGS = Path(__file__).resolve().parent.parent / "configs"
RECORD = Path(__file__).resolve().parent / "records" / "compare_toolbox_mnist1k.json"


def main() -> None:
  parser = flags(__doc__, rounds=5)
  parser.add_argument("--record", type=Path, default=RECORD, help="the `compare.json` of the comparison")
  options = parser.parse_args()
  rounds, seconds = (2, 0.1) if options.quick else (options.rounds, 0.5)
  if not options.record.is_file():
    parser.error(f"--record: there is no {options.record}; it is the compare.json of a finished comparison")
  config, _ = load_file("compare_toolbox_mnist1k.py", CONFIGS)
  rows = compared_rows(config)[:4] if options.quick else compared_rows(config)
  none = make_step(config, rows[0])
  times: dict[str, dict[str, list[float]]] = {rows[0].label: {}}
  for number, row in enumerate(rows[1:], start=2):
    steps = {"none": none, "row": make_step(config, row)}
    times[row.label] = alternate(steps, rounds=rounds, seconds=seconds)
    print(f"{number} of {len(rows)}: {row.label}", flush=True)
  tell(Report(options.json), json.loads(options.record.read_text()), times)


def tell(report: Report, found: dict[str, Any], times: dict[str, dict[str, list[float]]]) -> None:
  """Writes a row for each that has both an entry in the record and times."""
  columns = "test error, %", "NLL", "ECE, %", "error less none's, %", "setting", "step over none's"
  report.table("toolbox", f"{found['seeds']} seeds", *columns)
  for label, of in times.items():
    if entry := found["rows"].get(label):
      over = spread(ratios(of["row"], of["none"])) if of else ""
      report.row(label, *cells(entry, first=not of), over, numbers=of)
  report.close()


def make_step(config: Any, row: Row) -> Steps:
  """The compiled step of one run of a row."""
  cell = row_config(config, row, row.grid[len(row.grid) // 2], seeds=1)
  return Steps(made_up((28, 28, 1)), cell.batch_size, flatten(cell), replicas=cell.replicas)


def cells(entry: dict[str, Any], *, first: bool) -> list[str]:
  """Means with their intervals, and the setting, as the comparison writes them."""
  return [
    shown(entry["mean"], "test/error", factor=100, digits=2),
    shown(entry["mean"], "test/nll", digits=3),
    shown(entry["mean"], "test/ece", factor=100, digits=2),
    "" if first else shown(entry["difference"], "test/error", factor=100, digits=2, difference=True),
    ", ".join(f"{field.rpartition('.')[2]} {value}" for field, value in entry["setting"].items()),
  ]


if __name__ == "__main__":
  main()

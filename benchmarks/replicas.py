"""What training several seeds side by side gains: time per step and seed, one program against a loop.

python benchmarks/replicas.py [--rounds 7]
"""

import statistics
from collections.abc import Sequence
from typing import Any

from _report import Report, flags, milliseconds, ratios, spread
from _steps import alternate, make_steps

CASES = {
  "MLP 784-256-10, batch 64": ((28, 28, 1), 64, {"model.name": "MLP"}),
  "LeNet, batch 50": ((28, 28, 1), 50, {"model.name": "LeNet"}),
}
NUMBERS = (1, 5, 20)


def main() -> None:
  options = flags(__doc__, rounds=7).parse_args()
  rounds, seconds = (2, 0.2) if options.quick else (options.rounds, 1.0)
  report = Report(options.json)
  measure(report, CASES, NUMBERS[:2] if options.quick else NUMBERS, rounds=rounds, seconds=seconds)
  report.close()


def measure(
  report: Report,
  cases: dict[str, Any],
  numbers: Sequence[int],
  *,
  rounds: int,
  seconds: float,
  ahead: int = 0,
) -> None:
  """A row for each case and number of seeds; `ahead` as in `Steps`."""
  report.table(
    "replicas", "step of one seed, DropMax", "seeds", "loop, ms", "one program, ms", "program / loop"
  )
  for case, (image, batch_size, fields) in cases.items():
    fields = {**fields, "method.name": "dropmax"}
    for number in numbers:
      runs = {
        form: make_steps(image, batch_size, fields, replicas=number, form=form, ahead=ahead)
        for form in ("loop", "vmap")
      }
      times = alternate(runs, rounds=rounds, seconds=seconds)
      medians = [f"{statistics.median(milliseconds(values)) / number:.2f}" for values in times.values()]
      report.row(case, number, *medians, spread(ratios(times["vmap"], times["loop"])), numbers=times)


if __name__ == "__main__":
  main()

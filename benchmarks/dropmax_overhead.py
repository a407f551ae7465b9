"""What DropMax adds to a training step: its time over that of softmax, timed alternately in one process.

    python benchmarks/dropmax_overhead.py [--rounds 15]

The whole step of the trainer: augmentation, forward, backward, update, metrics and DropMax's diagnostics.
"""

import statistics
from typing import Any

from _report import Report, flags, milliseconds, ratios, short, spread
from _steps import alternate, make_steps

CASES = {
  "LeNet, batch 50": ((28, 28, 1), 50, {"model.name": "LeNet"}),
  "ResNet-20, batch 128": (
    (32, 32, 3),
    128,
    {
      "model.name": "CifarResNet",
      "model.CifarResNet.depth": 20,
      "optimizer.name": "sgd",
      "augment.names": ("pad_crop", "flip"),
    },
  ),
}


def main() -> None:
  options = flags(__doc__, rounds=15).parse_args()
  rounds, seconds = (2, 0.2) if options.quick else (options.rounds, 1.0)
  report = Report(options.json)
  measure(report, CASES, rounds=rounds, seconds=seconds)
  report.close()


def measure(report: Report, cases: dict[str, Any], *, rounds: int, seconds: float, ahead: int = 0) -> None:
  """A row for each case; `ahead` as in `Steps`."""
  report.table("dropmax_overhead", "training step", "softmax, ms", "DropMax, ms", "DropMax / softmax")
  for case, (image, batch_size, fields) in cases.items():
    runs = {
      method: make_steps(image, batch_size, {**fields, "method.name": method}, ahead=ahead)
      for method in ("softmax", "dropmax")
    }
    times = alternate(runs, rounds=rounds, seconds=seconds)
    medians = [short(statistics.median(milliseconds(values)), ".1f") for values in times.values()]
    ratio = spread(ratios(times["dropmax"], times["softmax"]))
    report.row(case, *medians, ratio, numbers=times)


if __name__ == "__main__":
  main()

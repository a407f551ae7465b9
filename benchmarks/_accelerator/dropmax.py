"""What DropMax adds to a training step."""

import dropmax_overhead
from _accelerator import AHEAD, TOYS
from _report import Report


def measure(report: Report, *, rounds: int, quick: bool) -> None:
  cases, rounds, seconds = (TOYS, 2, 0.05) if quick else (dropmax_overhead.CASES, 2 * rounds + 1, 0.4)
  dropmax_overhead.measure(report, cases, rounds=rounds, seconds=seconds, ahead=AHEAD)

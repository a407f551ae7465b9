"""Several seeds in one program against one after another."""

import replicas
from _accelerator import AHEAD, TOYS
from _report import Report


def measure(report: Report, *, rounds: int, quick: bool) -> None:
  cases, numbers = (TOYS, (2,)) if quick else (replicas.CASES, replicas.NUMBERS)
  rounds, seconds = (2, 0.05) if quick else (rounds, 0.4)
  replicas.measure(report, cases, numbers, rounds=rounds, seconds=seconds, ahead=AHEAD)

"""Group softmax in all its forms beside a softmax head."""

import group_softmax
from _report import Report


def measure(report: Report, *, rounds: int, quick: bool) -> None:
  if quick:
    group_softmax.measure(report, [2], sizes=(8, 16, 10), rounds=2, seconds=0.02)
  else:
    group_softmax.measure(report, [2, 8, 32, 64], rounds=rounds, seconds=0.1)

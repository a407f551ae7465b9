"""Which steps each dispatch makes, and at which steps a run evaluates, saves and logs."""

import dataclasses
import time
from collections.abc import Iterator

from jaxreg.train.devices.processes import first


@dataclasses.dataclass(frozen=True)
class Intervals:
  """How often a run evaluates, saves, logs and dispatches, in steps."""

  evaluate: int
  save: tuple[int, ...]  # it saves at the multiples of each of these
  save_minutes: float  # it also saves when this time has passed; 0: never
  log: int
  dispatch: int  # steps that one dispatch makes
  sharpness: int  # it measures the sharpness at the multiples of this; 0: never


def dispatches(start: int, total: int, size: int, marks: tuple[int, ...], alone: int = 0) -> Iterator[range]:
  """Yields the steps of each dispatch: `size`, or one if `size` steps would cross a mark or the end.

  A mark stands at each multiple of the numbers in `marks`. A dispatch with a multiple of `alone` has one
  step. The dispatches depend on the step alone, so that a resumed run makes the same ones.
  """
  step = start
  while step < total:
    end = step + size
    whole = step % size == 0 and end <= total and all(step // mark == (end - 1) // mark for mark in marks)
    whole = whole and not (alone and step // alone < end // alone)
    steps = range(step + 1, (end if whole else step + 1) + 1)
    yield steps
    step = steps[-1]


class SaveClock:
  """Says when a save is due by the clock of the first process.

  Reading the clock costs a message to all processes. So the first process also says when to read it again:
  after half of the steps that fit into the remaining time, at the speed since the last save.
  """

  def __init__(self, minutes: float, step: int):
    self.minutes = minutes  # between two saves; 0: no saves by the clock
    self.saved(step)

  def saved(self, step: int) -> None:
    """Restarts the clock after a save at this step."""
    self._step, self._next, self._since = step, step + 1, time.monotonic()

  def due(self, step: int) -> bool:
    """Tells whether to save after this step; every process must ask after each dispatch."""
    if not self.minutes or step < self._next:
      return False
    due, self._next = first(lambda: self._look(step))
    return due

  def _look(self, step: int) -> tuple[bool, int]:
    passed = time.monotonic() - self._since
    left = 60 * self.minutes - passed
    speed = (step - self._step) / max(passed, 1e-9)
    return left <= 0, step + max(1, int(left * speed / 2))

"""Whether a save is due by the clock, on which all processes have to agree."""

import time

from jaxreg.train.devices.processes import first


class Minutes:
  """Asks the clock of the first process, and seldom.

  Each look is a message to all processes. So the first one says when the next is worth it: after half of the
  steps that fit into what is left, by the speed since the last save.

  Attributes:
    minutes: between two saves; 0 for none by the clock.
  """

  def __init__(self, minutes: float, step: int):
    self.minutes = minutes
    self.saved(step)

  def saved(self, step: int) -> None:
    """A save was made at this step: the time begins anew."""
    self._step, self._next, self._since = step, step + 1, time.monotonic()

  def due(self, step: int) -> bool:
    """Whether to save after this step; to be asked after each dispatch, in every process."""
    if not self.minutes or step < self._next:
      return False
    due, self._next = first(lambda: self._look(step))
    return due

  def _look(self, step: int) -> tuple[bool, int]:
    passed = time.monotonic() - self._since
    left = 60 * self.minutes - passed
    speed = (step - self._step) / max(passed, 1e-9)
    return left <= 0, step + max(1, int(left * speed / 2))

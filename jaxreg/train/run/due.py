"""Whether a save is due by the clock; all processes have to agree on the answer."""

import time

from jaxreg.train.devices.processes import first


class Minutes:
  """Asks the clock of the first process, as seldom as possible.

  Each look costs a message to all processes. So the first process also says after which step to look again:
  after half of the steps that fit into the remaining time, at the speed since the last save.

  Attributes:
    minutes: the time between two saves; 0 for no saves by the clock.
  """

  def __init__(self, minutes: float, step: int):
    self.minutes = minutes
    self.saved(step)

  def saved(self, step: int) -> None:
    """Restarts the clock after a save at this step."""
    self._step, self._next, self._since = step, step + 1, time.monotonic()

  def due(self, step: int) -> bool:
    """Whether to save after this step; every process must ask after each dispatch."""
    if not self.minutes or step < self._next:
      return False
    due, self._next = first(lambda: self._look(step))
    return due

  def _look(self, step: int) -> tuple[bool, int]:
    passed = time.monotonic() - self._since
    left = 60 * self.minutes - passed
    speed = (step - self._step) / max(passed, 1e-9)
    return left <= 0, step + max(1, int(left * speed / 2))

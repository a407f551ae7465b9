"""SIGTERM and Ctrl-C as a flag that the loop looks at, so that a run can save before it goes."""

import signal
import threading
from types import FrameType


class Interrupt:
  """A context manager; `received` is the first signal's number, or None. A second Ctrl-C acts at once."""

  def __init__(self) -> None:
    self.received: int | None = None
    self._previous: dict[int, object] = {}

  def __enter__(self) -> "Interrupt":
    # Handlers can be set in the main thread only; elsewhere the program that embeds us has its own.
    if threading.current_thread() is threading.main_thread():
      for number in (signal.SIGTERM, signal.SIGINT):
        self._previous[number] = signal.signal(number, self._handle)
    return self

  def __exit__(self, *exception: object) -> None:
    for number, handler in self._previous.items():
      signal.signal(number, handler)  # type: ignore[arg-type]

  def _handle(self, number: int, frame: FrameType | None) -> None:
    del frame
    if self.received is not None and number == signal.SIGINT:
      raise KeyboardInterrupt
    self.received = number

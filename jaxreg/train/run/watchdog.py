"""Writes the stacks of all threads to a file when a step hangs."""

import faulthandler
import time
from pathlib import Path
from typing import Any


class Watchdog:
  """A context manager; the program must call `alive` now and then.

  After `minutes` without a call, the interpreter writes the stacks of its threads to `file`. It does so in a
  thread of its own that needs no Python, because a step that hangs may hold Python's lock.
  """

  def __init__(self, file: Path, *, minutes: float):
    self._file, self._seconds = file, 60 * minutes
    self._stream: Any = None
    self._since = 0.0

  def __enter__(self) -> "Watchdog":
    if self._seconds:
      self._file.unlink(missing_ok=True)  # a link there would be followed, and a pipe would wait
      self._stream = open(self._file, "w")
      self.alive()
    return self

  def __exit__(self, *exception: object) -> None:
    if self._stream is not None:
      faulthandler.cancel_dump_traceback_later()
      self._stream.close()
      if self._file.is_file() and not self._file.stat().st_size:
        self._file.unlink()

  def alive(self) -> None:
    """Restarts the count of minutes."""
    now = time.monotonic()
    if self._stream is not None and now - self._since > min(1, self._seconds / 10):  # each call is a thread
      self._since = now
      faulthandler.dump_traceback_later(self._seconds, file=self._stream)

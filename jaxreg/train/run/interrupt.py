"""Signals as a flag that the loop reads, so that a run can save before it ends."""

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

import jax
from jax.experimental import multihost_utils

from jaxreg.train.run.signals import SIGNALS, Handler, set_handler


class Interrupted(Exception):
  """Raised after a signal stopped the run and its state was saved; `status` is 128 + the signal."""

  def __init__(self, signal_number: int | None, step: int):
    super().__init__(f"stopped at step {step} and saved; the same command continues from there")
    self.signal = signal.Signals(signal_number or signal.SIGTERM)
    self.status = 128 + self.signal


class Interrupt:
  """A context manager; `received` is the first signal's number, or None.

  Several processes have to stop at the same step, whichever of them gets the signal. There, JAX's preemption
  service takes SIGTERM and agrees on the step; other signals are passed on to it as SIGTERM. (Orbax's policy
  for preemption asks the same service, and would only add a save at another place.)
  """

  # The handler of a second Ctrl-C. A program may replace it, because an exception that is raised inside a
  # destructor is lost.
  again: Callable[[int, FrameType | None], object] = staticmethod(signal.default_int_handler)
  # The handler of all signals but Ctrl-C after a signal has stopped the run; None: the handler before it.
  after: Handler = None
  # The last number that this process asked the service for, over all runs of the process.
  _asked: int | None = None

  def __init__(self) -> None:
    self.received: int | None = None
    self._previous: dict[int, Handler] = {}

  def __enter__(self) -> "Interrupt":
    # Handlers can be set in the main thread only; a program that runs us in another thread has its own.
    if threading.current_thread() is threading.main_thread():
      for number in SIGNALS:
        if number != signal.SIGTERM or jax.process_count() == 1:
          self._previous[number] = set_handler(number, self._handle)
    return self

  def __exit__(self, kind: object, error: object, traceback: object) -> None:
    stopped = isinstance(error, Interrupted) and self.after is not None
    for number, handler in self._previous.items():
      signal.signal(number, self.after if stopped and number != signal.SIGINT else handler)

  def stops(self, steps: range) -> bool:
    """Tells whether to stop after these steps; every process must ask once after each dispatch."""
    if jax.process_count() == 1:
      return self.received is not None
    reached = False
    for step in steps:
      # The service fixes one number, the largest requested number plus one, and agrees to that one only.
      # So each number is asked for, also within a dispatch of several steps and across runs.
      Interrupt._asked = step if Interrupt._asked is None else Interrupt._asked + 1
      reached |= multihost_utils.reached_preemption_sync_point(Interrupt._asked)
    if reached:
      self.received = self.received or signal.SIGTERM
    return reached

  def requested(self) -> bool:
    """Tells whether to stop between two steps; False for several processes, which agree in `stops`."""
    return jax.process_count() == 1 and self.received is not None

  def _handle(self, number: int, frame: FrameType | None) -> None:
    if self.received is not None and number == signal.SIGINT:
      self.again(number, frame)
    self.received = self.received or number
    if jax.process_count() > 1:
      os.kill(os.getpid(), signal.SIGTERM)

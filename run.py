"""Trains, evaluates and compares from the command line: flags to one call."""

import logging
import os
import signal
import sys
import types
import warnings
from pathlib import Path

if __name__ == "__main__":
  # What follows takes seconds, and would tell in many lines that it was ended.
  for each in (signal.SIGINT, signal.SIGTERM):
    signal.signal(each, lambda number, _: os._exit(128 + number))

import jax

from jaxreg import train
from jaxreg.train import cli, processes
from jaxreg.train.errors import printable
from jaxreg.train.interrupt import Interrupt
from jaxreg.train.user_cache import keep_compiled_programs

JOBS = {
  "train": train.train,
  "evaluate": train.evaluate,
  "compare": train.compare,
  "dropmax_figures": train.dropmax_figures,
  "flatness": train.flatness,
  "translate": train.translate,
}

INTERRUPTED = "run.py: interrupted; the same command continues from the last checkpoint"


def main(argv: list[str]) -> int:
  """Runs what the arguments ask for; returns the exit status."""
  # Orbax logs the whole traceback of a save that failed; the one line below tells it.
  logging.getLogger("absl").setLevel(logging.CRITICAL)
  try:
    call = cli.parse(argv, Path(__file__).resolve().parent / "configs")
    if call.config is None:
      print(call.text, end="")
      return 0
    processes.start(
      call.coordinator,
      call.num_processes,
      call.process_id,
      detect=call.distributed,
      peer_timeout=call.peer_timeout,
    )
    if call.config.compilation_cache:
      keep_compiled_programs()
    results = JOBS[call.config.job](call.config, call.workdir)
    if processes.is_first():
      report = train.report(results, call.config, call.workdir)
      print("\n".join(map(printable, report.split("\n"))))
    return 0
  except train.RunError as error:
    print(f"run.py: error: {printable(str(error))}", file=sys.stderr)
    return 1
  except train.Interrupted as stop:
    _ignore_signals()
    print(f"run.py: {stop}", file=sys.stderr)
    return stop.status
  except (OSError, MemoryError, jax.errors.JaxRuntimeError) as error:
    message = str(error).splitlines()[0] if str(error) else type(error).__name__
    print(f"run.py: error: {printable(message)}", file=sys.stderr, flush=True)
    if jax.process_count() > 1:
      os._exit(1)  # without waiting for the others, of which one may be gone
    return 1
  except KeyboardInterrupt:
    _ignore_signals()
    print(INTERRUPTED, file=sys.stderr, flush=True)
    if __name__ == "__main__":
      os._exit(130)  # without waiting for threads that save
    return 130


def _ignore_signals() -> None:
  """All is said, and what is left takes a moment."""
  if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGINT):
      signal.signal(number, signal.SIG_IGN)


def _end(number: int, frame: object) -> None:
  """SIGTERM while nothing is trained, so that nothing is to be saved, and a second Ctrl-C while something is.

  An exception would be lost where one happens to be in a destructor.
  """
  del frame
  try:
    os.write(2, f"{INTERRUPTED}\n".encode())
  finally:  # also where nobody reads that
    os._exit(128 + number)


def _uncaught(kind: type[BaseException], error: BaseException, traceback: types.TracebackType | None) -> None:
  """As Python does; but after a save that failed, writers report to a loop that Orbax has closed."""
  if kind is not RuntimeError or str(error) != "Event loop is closed":
    sys.__excepthook__(kind, error, traceback)


if __name__ == "__main__":
  sys.excepthook = _uncaught
  signal.signal(signal.SIGINT, signal.default_int_handler)
  signal.signal(signal.SIGTERM, _end)
  Interrupt.again = staticmethod(_end)
  warnings.formatwarning = lambda message, *_, **__: f"run.py: warning: {printable(str(message))}\n"
  status = main(sys.argv[1:])
  _ignore_signals()
  try:
    sys.stdout.flush()
  except OSError as error:  # of a full disk, or a pipe that nobody reads
    print(f"run.py: error: {error}", file=sys.stderr, flush=True)
    os._exit(status or 1)
  if status and not jax.distributed.is_initialized():
    os._exit(status)  # without waiting for threads of a save that failed, or was given up
  sys.exit(status)

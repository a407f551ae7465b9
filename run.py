"""Trains, evaluates and compares from the command line: flags to one call."""

# Built in: to import `signal` takes a moment, in which Ctrl-C would be a traceback.
import _signal  # pyright: ignore[reportMissingImports]

if __name__ == "__main__":
  _signal.signal(_signal.SIGINT, _signal.SIG_DFL)

import logging
import os
import signal
import sys
import time
import types
import warnings
from pathlib import Path

if __name__ == "__main__":
  # What follows takes seconds, and would tell in many lines that it was ended.
  for each in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
    if each != signal.SIGHUP or signal.getsignal(each) != signal.SIG_IGN:  # as by nohup
      signal.signal(each, lambda number, _: os._exit(128 + number))

import jax

from jaxreg import train
from jaxreg.train import cli
from jaxreg.train.devices import processes
from jaxreg.train.errors import printable
from jaxreg.train.run import slurm
from jaxreg.train.run.interrupt import SIGNALS, Interrupt, set_handler
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
      start_timeout=call.start_timeout,
    )
    if call.config.compilation_cache:
      keep_compiled_programs()
    results = JOBS[call.config.job](call.config, call.workdir)
    if processes.is_first():
      report = train.report(results, call.config, call.workdir)
      print("\n".join(map(printable, report.split("\n"))))
    return 0
  except train.RunError as error:
    return _fail(str(error))
  except train.Interrupted as stop:
    _ignore_signals()
    processes.leave()
    print(f"run.py: {stop}", file=sys.stderr, flush=True)
    if processes.is_first() and (remark := slurm.requeue(stop.signal)):
      print(f"run.py: {remark}", file=sys.stderr)
    return stop.status
  except (OSError, MemoryError, jax.errors.JaxRuntimeError) as error:
    if jax.process_count() > 1:
      time.sleep(1)  # in which a process that is gone is told, in better words than those of its broken line
    status = _fail(str(error).splitlines()[0] if str(error) else type(error).__name__)
    if jax.process_count() > 1:
      os._exit(status)  # without waiting for the others, of which one may be gone
    return status
  except Exception as error:  # a fault of the program, told by its traceback
    processes.leave(f"{type(error).__name__}: {error}")
    raise
  except KeyboardInterrupt:
    _ignore_signals()
    print(INTERRUPTED, file=sys.stderr, flush=True)
    if __name__ == "__main__":
      os._exit(130)  # without waiting for threads that save
    return 130


def _fail(message: str) -> int:
  """Says the one line, here and to the other processes; returns the exit status."""
  processes.leave(message)
  print(f"run.py: error: {printable(message)}", file=sys.stderr, flush=True)
  if processes.wait_for_others():
    os._exit(1)  # JAX's service would wait for those that are gone
  return 1


def _ignore_signals() -> None:
  """All is said, and what is left takes a moment."""
  if __name__ == "__main__":
    for number in SIGNALS:
      signal.signal(number, signal.SIG_IGN)


def _end(number: int, frame: object) -> None:
  """A signal while nothing is trained, so that nothing is to be saved; or a second Ctrl-C.

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
  for each in SIGNALS:
    set_handler(each, signal.default_int_handler if each == signal.SIGINT else _end)
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

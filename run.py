"""Trains, evaluates and compares from the command line: turns flags into one call."""

# `_signal` is built in. The import of `signal` takes a moment, in which Ctrl-C would print a traceback.
import _signal  # pyright: ignore[reportMissingImports]

if __name__ == "__main__":
  _signal.signal(_signal.SIGINT, _signal.SIG_DFL)

import io
import os
import sys

if __name__ == "__main__":
  for number, name in enumerate(("stdin", "stdout", "stderr")):
    if getattr(sys, name) is None:  # it was closed, and the next file that is opened would take its number
      os.dup2(os.open(os.devnull, os.O_RDWR), number)
      setattr(sys, name, os.fdopen(number, "w" if number else "r"))
  for stream in (sys.stdout, sys.stderr):
    if isinstance(stream, io.TextIOWrapper):  # names may have characters that a terminal cannot show
      stream.reconfigure(errors="backslashreplace")

import logging
import signal
import types
import warnings
from pathlib import Path

if __name__ == "__main__":
  # The imports below take seconds, and an interruption would print many lines.
  for each in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
    if each != signal.SIGHUP or signal.getsignal(each) != signal.SIG_IGN:  # nohup ignores it
      signal.signal(each, lambda number, _: os._exit(128 + number))

from jaxreg._host_memory import keep_freed_memory

if __name__ == "__main__":
  keep_freed_memory()

from jaxreg._extras import needs
from jaxreg.train.errors import RunError, first_line, printable, program

try:
  import jax

  from jaxreg import train
  from jaxreg.train import cli
  from jaxreg.train.config.fields import JOBS as NAMES
  from jaxreg.train.devices import processes
  from jaxreg.train.devices.mesh import check_platform
  from jaxreg.train.run.interrupt import SIGNALS, Interrupt, Interrupted, requeue, set_handler
  from jaxreg.train.user_cache import keep_compiled_programs
except ModuleNotFoundError as error:
  if __name__ != "__main__" or (error.name or "").startswith("jaxreg"):
    raise
  sys.exit(f"{program()}: error: {needs('the trainer', error)}")

# Each job is the function of its name in `train`, whose import takes seconds.
JOBS = {name: lambda config, workdir, name=name: getattr(train, name)(config, workdir) for name in NAMES}

INTERRUPTED = f"{program()}: interrupted; the same command continues from the last checkpoint"


def main(argv: list[str]) -> int:
  """Runs the job that the arguments ask for; returns the exit status."""
  # Orbax logs the whole traceback of a failed save; our own line below reports it.
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
    check_platform()
    if processes.is_first():  # the imports that follow take seconds
      print(printable(f"starting: {call.config.job}, in {call.workdir}"), file=sys.stderr, flush=True)
    if call.config.compilation_cache:
      keep_compiled_programs()
    results = JOBS[call.config.job](call.config, call.workdir)
    if processes.is_first():
      report = train.report(results, call.config, call.workdir)
      print("\n".join(map(printable, report.split("\n"))))
    return 0
  except RunError as error:
    processes.heed()
    return _fail(str(error))
  except Interrupted as stop:
    _ignore_signals()
    processes.leave()
    print(f"{program()}: {stop}", file=sys.stderr, flush=True)
    if processes.is_first() and (remark := requeue(stop.signal)):
      print(f"{program()}: {remark}", file=sys.stderr)
    return stop.status
  except (OSError, MemoryError, jax.errors.JaxRuntimeError) as error:
    processes.heed()
    status = _fail(first_line(error))
    if jax.process_count() > 1:
      os._exit(status)  # without waiting for the other processes, because one may be gone
    return status
  except ModuleNotFoundError as error:
    if (error.name or "").startswith("jaxreg"):
      raise
    return _fail(str(error))
  except Exception as error:  # a fault of the program, which its traceback reports
    processes.leave(f"{type(error).__name__}: {error}")
    raise
  except KeyboardInterrupt:
    _ignore_signals()
    print(INTERRUPTED, file=sys.stderr, flush=True)
    if __name__ == "__main__":
      os._exit(130)  # without waiting for threads that save
    return 130


def _fail(message: str) -> int:
  """Reports the message in one line, here and to the other processes; returns the exit status."""
  processes.leave(message)
  print(f"{program()}: error: {printable(message)}", file=sys.stderr, flush=True)
  if processes.wait_for_others():
    os._exit(1)  # JAX's service would wait for processes that are gone
  return 1


def _ignore_signals() -> None:
  """Ignores signals: the result has been reported, and the rest takes a moment."""
  if __name__ == "__main__":
    for number in SIGNALS:
      signal.signal(number, signal.SIG_IGN)


def _end(number: int, frame: object) -> None:
  """Ends the program on a signal while nothing is trained or to be saved, or on a second Ctrl-C.

  It raises no exception, because an exception inside a destructor is lost.
  """
  del frame
  try:
    os.write(2, f"{INTERRUPTED}\n".encode())
  finally:  # even if nobody reads the line
    os._exit(128 + number)


def _uncaught(kind: type[BaseException], error: BaseException, traceback: types.TracebackType | None) -> None:
  """Python's own hook, but silent about one error: after a failed save, writers use a loop that is closed."""
  if kind is not RuntimeError or str(error) != "Event loop is closed":
    sys.__excepthook__(kind, error, traceback)


if __name__ == "__main__":
  sys.excepthook = _uncaught
  for each in SIGNALS:
    set_handler(each, signal.default_int_handler if each == signal.SIGINT else _end)
  Interrupt.again = staticmethod(_end)
  warnings.formatwarning = lambda message, *_, **__: f"{program()}: warning: {printable(str(message))}\n"
  status = main(sys.argv[1:])
  _ignore_signals()
  try:
    sys.stdout.flush()
  except OSError as error:  # a full disk, or a pipe that nobody reads
    print(f"{program()}: error: {error}", file=sys.stderr, flush=True)
    os._exit(status or 1)
  if status and not jax.distributed.is_initialized():
    os._exit(status)  # without waiting for the threads of a failed or abandoned save
  sys.exit(status)

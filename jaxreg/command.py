"""The command `jaxreg`, which is `python run.py`: sets up streams, memory and signals, then runs one job."""

import io
import os
import signal
import sys
import types
import warnings

from jaxreg._extras import needs
from jaxreg._host_memory import keep_freed_memory
from jaxreg.train.errors import printable, program


def main() -> None:
  """Runs the job that the arguments of the process ask for, and ends the process with its status."""
  signal.signal(signal.SIGINT, signal.SIG_DFL)  # the imports take seconds, and Ctrl-C would print many lines
  _mend_streams()
  keep_freed_memory()  # before the first import of JAX
  try:
    import jax

    from jaxreg.train import main as trainer
    from jaxreg.train.run.interrupt import SIGNALS, Interrupt, set_handler
  except ModuleNotFoundError as error:
    if (error.name or "").startswith("jaxreg"):
      raise
    sys.exit(f"{program()}: error: {needs('the trainer', error)}")
  for each in SIGNALS:
    set_handler(each, _end)
  Interrupt.again = staticmethod(_end)
  sys.excepthook = _report_uncaught
  warnings.formatwarning = lambda message, *_, **__: f"{program()}: warning: {printable(str(message))}\n"
  sys.path.insert(0, str(trainer.CONFIGS.parent))  # configs import each other from here
  status = trainer.main(sys.argv[1:])
  for each in SIGNALS:  # the result has been reported, and the rest takes a moment
    signal.signal(each, signal.SIG_IGN)
  try:
    sys.stdout.flush()
  except OSError as error:  # a full disk, or a pipe that nobody reads
    print(f"{program()}: error: {error}", file=sys.stderr, flush=True)
    os._exit(status or 1)
  if status and not jax.distributed.is_initialized():
    os._exit(status)  # without waiting for the threads of a failed or abandoned save
  sys.exit(status)


def _mend_streams() -> None:
  """Opens closed streams, and lets names have characters that a terminal cannot show."""
  for number, name in enumerate(("stdin", "stdout", "stderr")):
    stream = getattr(sys, name)
    if stream is None:  # it was closed, and the next file that is opened would take its number
      os.dup2(os.open(os.devnull, os.O_RDWR), number)
      setattr(sys, name, os.fdopen(number, "w" if number else "r"))
    elif number and isinstance(stream, io.TextIOWrapper):
      stream.reconfigure(errors="backslashreplace")


def _end(number: int, frame: object) -> None:
  """Ends the program on a signal while nothing is trained or to be saved, or on a second Ctrl-C."""
  del frame  # an exception in its place would be lost inside a destructor
  try:
    os.write(2, f"{program()}: interrupted; the same command continues from the last checkpoint\n".encode())
  finally:  # even if nobody reads the line
    os._exit(128 + number)


def _report_uncaught(
  kind: type[BaseException], error: BaseException, traceback: types.TracebackType | None
) -> None:
  """Python's own hook, but silent about one error: after a failed save, writers use a loop that is closed."""
  if kind is not RuntimeError or str(error) != "Event loop is closed":
    sys.__excepthook__(kind, error, traceback)

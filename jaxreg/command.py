"""The command `jaxreg`, which is `python run.py`: from arguments to one job; errors are reported in one line.

JAX and the trainer are imported inside the functions: their import takes seconds, and the memory and the
handlers of signals must be set up before.
"""

import importlib
import io
import logging
import os
import pkgutil
import signal
import sys
import traceback
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jaxreg._cpu.memory import keep_freed_memory
from jaxreg._cpu.onednn import request_onednn
from jaxreg._extras import needs
from jaxreg.train.errors import RunError, first_line, printable, program
from jaxreg.train.run.signals import SIGNALS, requeue, set_handler

# The function of each job, `(config, workdir) -> results`; it is imported when its job runs.
JOBS = {
  "train": "jaxreg.train.jobs.train:train",
  "evaluate": "jaxreg.train.jobs.evaluate:evaluate",
  "predict": "jaxreg.train.jobs.predict:predict",
  "compare": "jaxreg.train.jobs.compare:compare",
  "report": "jaxreg.train.jobs.report:report",
  "check_data": "jaxreg.train.jobs.check_data:check_data",
  "export": "jaxreg.train.jobs.export:export",
  "compile": "jaxreg.train.jobs.compile:compile",
  "merge": "jaxreg.train.jobs.merge:merge",
}
PACKAGE = Path(__file__).resolve().parent
INSTALLED = PACKAGE / "_configs"  # where the wheel has them; see pyproject.toml
CONFIGS = (INSTALLED if INSTALLED.is_dir() else PACKAGE.parent) / "configs"


def main() -> None:
  """Runs the job that the arguments of the process ask for, and ends the process with its status."""
  for each in SIGNALS:
    set_handler(each, _end)
  _mend_streams()
  keep_freed_memory()  # before the first import of JAX
  try:
    import jax
  except ValueError as error:  # of an environment variable, such as JAX_NUM_CPU_DEVICES
    sys.exit(f"{program()}: error: {first_line(error)}")
  except ModuleNotFoundError as error:
    sys.exit(f"{program()}: error: {needs('the trainer', error)}")
  try:
    from jaxreg.train.run.interrupt import Interrupt

    importlib.import_module("jaxreg.train.cli")  # also what `run` will need
  except ModuleNotFoundError as error:
    if (error.name or "").startswith("jaxreg"):
      raise
    sys.exit(f"{program()}: error: {needs('the trainer', error)}")
  Interrupt.again = staticmethod(_end)
  Interrupt.after = signal.SIG_IGN  # the first signal counts, while SLURM is asked to requeue
  sys.excepthook = _report_uncaught
  sys.unraisablehook = _report_unraisable
  warnings.formatwarning = lambda message, *_, **__: f"{program()}: warning: {printable(str(message))}\n"
  # Under JAX_TRANSFER_GUARD=disallow nothing could start; the loop guards its own steps.
  jax.config.update("jax_transfer_guard", "allow")
  sys.path.insert(0, str(CONFIGS.parent))  # configs import each other from here
  status = run(sys.argv[1:])
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


def run(argv: list[str]) -> int:
  """Runs the job that the arguments ask for; returns the exit status."""
  import jax

  from jaxreg.train import cli
  from jaxreg.train.devices import processes
  from jaxreg.train.devices.topology import parse_topology
  from jaxreg.train.run.interrupt import Interrupted
  from jaxreg.train.user_cache import keep_compiled_programs

  # Orbax logs the whole traceback of a failed save; our own line below reports it.
  logging.getLogger("absl").setLevel(logging.CRITICAL)
  try:
    call = cli.parse(argv, CONFIGS)
    if call.config is None:
      print(call.text, end="")
      return 0
    if call.config.onednn:
      request_onednn()  # before the first use of a device
    if call.config.job == "compile":
      parse_topology(
        call.config.compile.topology, call.config.mesh.slices
      ).prepare()  # before the first use of a device
    processes.start(**call.processes)
    processes.check_platform()
    if processes.is_first():  # the imports that follow take seconds
      where = "" if call.config.job == "compile" else f", in {call.workdir}"  # compile writes nothing
      print(printable(f"starting: {call.config.job}{where}"), file=sys.stderr, flush=True)
    keep_compiled_programs()
    results = find_job(call.config.job)(call.config, call.workdir)
    if processes.is_first():
      from jaxreg.train.summary import summary

      lines = summary(results, call.config, call.workdir)
      print("\n".join(map(printable, lines.split("\n"))))
    return 0
  except Interrupted as stop:
    _say(str(stop))
    if processes.is_first() and (remark := requeue(stop.signal)):
      _say(remark)
    return stop.status
  except Exception as error:
    message = processes.lost(error) or _message(error)
    if message is None and not jax.distributed.is_initialized():
      raise
    if message is None:
      traceback.print_exc()
    else:
      _say(f"error: {message}")
    processes.end(1)
    return 1


def find_job(name: str) -> Callable[..., dict[str, Any]]:
  """Imports the function of a job."""
  return pkgutil.resolve_name(JOBS[name])


def _message(error: Exception) -> str | None:
  """What to say of an error; None for a fault of the program, which its traceback reports."""
  from jax.errors import JaxRuntimeError

  match error:
    case RunError():
      return str(error)
    case ModuleNotFoundError() if not (error.name or "").startswith("jaxreg"):
      return str(error)
    case OSError() | MemoryError() | JaxRuntimeError():
      return first_line(error)
    case _:
      return None


def _say(line: str) -> None:
  print(f"{program()}: {printable(line)}", file=sys.stderr, flush=True)


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
  for each in SIGNALS:  # SLURM sends SIGTERM soon after SIGUSR1, while we ask it to requeue
    signal.signal(each, signal.SIG_IGN)
  try:
    # JAX may not know yet which process is the first one; SLURM does.
    remark = os.environ.get("SLURM_PROCID", "0") == "0" and requeue(number)
    said = "interrupted; the same command continues from the last checkpoint"
    os.write(2, "".join(f"{program()}: {printable(line)}\n" for line in (said, remark) if line).encode())
  finally:  # even if nobody reads the line
    os._exit(128 + number)


def _report_uncaught(
  kind: type[BaseException], error: BaseException, traceback: types.TracebackType | None
) -> None:
  """Python's own hook, but silent about one error: after a failed save, writers use a loop that is closed."""
  if kind is not RuntimeError or str(error) != "Event loop is closed":
    sys.__excepthook__(kind, error, traceback)


def _report_unraisable(fault: "sys.UnraisableHookArgs") -> None:
  """Python's own hook, but silent about buffers of gcsfs that a failed upload leaves in use."""
  if fault.exc_type is not BufferError:
    sys.__unraisablehook__(fault)

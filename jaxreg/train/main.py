"""The program: from arguments to one job; an error is reported in one line."""

import importlib
import logging
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import jax

import jaxreg
from jaxreg.train import cli
from jaxreg.train.config.fields import Config
from jaxreg.train.devices import processes
from jaxreg.train.errors import RunError, first_line, printable, program
from jaxreg.train.files import Table
from jaxreg.train.run.interrupt import Interrupted, requeue
from jaxreg.train.user_cache import keep_compiled_programs

PACKAGE = Path(jaxreg.__file__).resolve().parent
INSTALLED = PACKAGE / "_configs"  # where the wheel has them; see pyproject.toml
CONFIGS = (INSTALLED if INSTALLED.is_dir() else PACKAGE.parent) / "configs"


def main(argv: list[str]) -> int:
  """Runs the job that the arguments ask for; returns the exit status."""
  # Orbax logs the whole traceback of a failed save; our own line below reports it.
  logging.getLogger("absl").setLevel(logging.CRITICAL)
  try:
    call = cli.parse(argv, CONFIGS)
    if call.config is None:
      print(call.text, end="")
      return 0
    processes.start(**call.processes)
    processes.check_platform()
    if processes.is_first():  # the imports that follow take seconds
      print(printable(f"starting: {call.config.job}, in {call.workdir}"), file=sys.stderr, flush=True)
    if call.config.compilation_cache:
      keep_compiled_programs()
    results = find_job(call.config.job)(call.config, call.workdir)
    if processes.is_first():
      from jaxreg.train.jobs.summary import summary

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
    if message is None and jax.process_count() == 1:
      raise
    if message is None:
      traceback.print_exc()
    else:
      _say(f"error: {message}")
    processes.end(1)
    return 1


def find_job(name: str) -> Callable[[Config, Path], Table]:
  """The function of a job."""
  place = "flatness.job" if name == "flatness" else name
  return getattr(importlib.import_module(f"jaxreg.train.jobs.{place}"), name)


def _message(error: Exception) -> str | None:
  """What to say of an error; None for a fault of the program, which its traceback reports."""
  match error:
    case RunError():
      return str(error)
    case ModuleNotFoundError() if not (error.name or "").startswith("jaxreg"):
      return str(error)
    case OSError() | MemoryError() | jax.errors.JaxRuntimeError():
      return first_line(error)
    case _:
      return None


def _say(line: str) -> None:
  print(f"{program()}: {printable(line)}", file=sys.stderr, flush=True)

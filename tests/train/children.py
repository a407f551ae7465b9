"""`run.py` in processes that are forked from one that has imported everything: cheap enough to kill many.

The process forked from has not used JAX yet, so that each child is as if it had been started anew.
"""

import atexit
import contextlib
import datetime
import multiprocessing
import os
import random
import resource
import runpy
import signal
import sys
import time
import types
from pathlib import Path

import runs
from orbax.checkpoint import checkpoint_manager

PRELOADED = ["children", "jaxreg.train", "orbax.checkpoint", "sklearn.datasets", "sklearn.model_selection"]


def forkserver(folder: Path):
  """What makes children; programs are compiled once, into `folder`."""
  os.environ |= {
    "JAX_PLATFORMS": "cpu",
    "JAX_NUM_CPU_DEVICES": "1",
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    "JAX_COMPILATION_CACHE_DIR": str(folder),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
  }
  context = multiprocessing.get_context("forkserver")
  context.set_forkserver_preload(PRELOADED)
  return context


class Child:
  """`run.py` at work with these arguments; what it says is in a file. With a seed its clock jumps."""

  def __init__(self, context, arguments, said: Path, clock: int | None = None):
    self.said = said
    said.touch()
    self.process = context.Process(target=_main, args=([str(a) for a in arguments], str(said), clock))
    self.process.start()

  def alive(self) -> bool:
    return self.process.is_alive()

  def signal(self, number: int) -> None:
    while self.process.is_alive() and not _begun(self.said).exists():  # it is no program yet
      time.sleep(0.005)
    if self.process.is_alive():
      os.kill(self.process.pid, number)

  def finish(self, timeout: float = 120) -> tuple[int, str]:
    """The exit status and what was said on stderr."""
    self.process.join(timeout)
    if self.process.is_alive():
      self.process.kill()
      self.process.join()
      raise AssertionError(f"it hangs: {self.said.read_text()}")
    return self.process.exitcode, self.said.read_text()


def _begun(said) -> Path:
  return Path(f"{said}-begun")


def _main(arguments, said, clock):
  with open(said, "w") as stream, open(os.devnull, "w") as nowhere:
    os.dup2(nowhere.fileno(), 1)
    os.dup2(stream.fileno(), 2)
  signal.signal(signal.SIGINT, signal.SIG_DFL)  # until the program says otherwise
  _begun(said).touch()
  from jaxreg.train.data import order
  from jaxreg.train.run import results

  results.save_figures = lambda *_: []  # they take longer than these runs
  # A step takes no time at all, and then most signals would come in a save, or before or after all steps.
  indices = order.batch_indices
  order.batch_indices = lambda *args, **options: time.sleep(0.06) or indices(*args, **options)
  if clock is not None:
    _let_the_clock_jump(clock)
  sys.argv = ["run.py", *arguments]
  try:
    runpy.run_path(str(runs.ROOT / "run.py"), run_name="__main__")
  finally:
    atexit._run_exitfuncs()  # which processes of this kind leave out
    if os.environ.get("FAULTS_CPU"):
      print("cpu", time.process_time(), file=sys.stderr)


@contextlib.contextmanager
def limited_files(size):
  """No file of this process can grow beyond so many bytes."""
  before = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
  try:
    yield
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def _let_the_clock_jump(seed):
  """`time.time`, and what Orbax has of `datetime`, by up to a day to and fro at every fifth look."""
  numbers, real, now = random.Random(seed), time.time, datetime.datetime.now
  off = 0.0

  def jumping():
    nonlocal off
    if numbers.random() < 0.2:
      off = numbers.uniform(-86400, 86400)
    return real() + off

  class Jumping(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
      return now(tz) + datetime.timedelta(seconds=jumping() - real())

  module = types.SimpleNamespace(datetime=Jumping, timezone=datetime.timezone, timedelta=datetime.timedelta)
  time.time, checkpoint_manager.datetime = jumping, module

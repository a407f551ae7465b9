"""`run.py` in processes that are forked from one that has imported everything: cheap enough to kill many.

The process forked from has not used JAX yet, so that each child is as if it had been started anew.
"""

import atexit
import contextlib
import datetime
import multiprocessing
import multiprocessing.forkserver
import os
import random
import resource
import runpy
import signal
import sys
import time
import types
from pathlib import Path
from unittest import mock

import jax
import runs
from orbax.checkpoint import checkpoint_manager

PRELOADED = ["children", "orbax.checkpoint", "sklearn.datasets", "sklearn.model_selection"]
PRELOADED += [f"jaxreg.train.jobs.{name}" for name in ("train", "evaluate", "compare", "report")]


def forkserver(folder: Path):
  """What makes children; programs are compiled once, into `folder`; no kill spoils a cache of others."""
  environment = {
    "JAX_PLATFORMS": "cpu",
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    "JAX_COMPILATION_CACHE_DIR": str(folder),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "PYTHONPATH": os.pathsep.join([str(runs.ROOT), str(Path(__file__).parent)]),
  }
  context = multiprocessing.get_context("forkserver")
  context.set_forkserver_preload(PRELOADED)
  with mock.patch.dict(os.environ, environment):
    multiprocessing.forkserver.ensure_running()
  return context


class Child:
  """`run.py` at work with these arguments.

  Args:
    context: of `forkserver`.
    arguments: those of `run.py`.
    said: a file, for what it says on stderr; its name with `-out` has what it says on stdout.
    clock: a seed, with which its clock jumps.
    devices: how many it has.
    pause: seconds that a step takes at least. If a step takes no time at all, most signals come in a save, or
      before or after all steps.
    cwd: the folder in which it works.
    environment: variables for it.
    stopped_clock: whether the clock that makes saves due stands still.
    lease: seconds after which its lease in a bucket ends.

  Attributes:
    took: seconds from the first line of its program to its end, once it is finished.
  """

  took = 0.0

  def __init__(self, context, arguments, said: Path, clock: int | None = None, **options):
    self.said = said
    said.touch()
    arguments = [str(argument) for argument in arguments]
    self.process = context.Process(target=_main, args=(arguments, str(said), clock), kwargs=options)
    self.process.start()

  @property
  def out(self) -> str:
    """What it has said on stdout."""
    return Path(f"{self.said}-out").read_text()

  def alive(self) -> bool:
    return self.process.is_alive()

  def signal(self, number: int) -> None:
    while self.process.is_alive() and not _begun(self.said).exists():  # it is no program yet
      time.sleep(0.005)
    if self.process.is_alive():
      with contextlib.suppress(ProcessLookupError):  # it has ended since
        os.kill(self.process.pid, number)

  def finish(self, timeout: float = 120) -> tuple[int, str]:
    """The exit status and what was said on stderr."""
    self.process.join(timeout)
    if self.process.is_alive():
      self.process.kill()
      self.process.join()
      raise AssertionError(f"it hangs: {self.said.read_text()}")
    if _begun(self.said).exists():
      self.took = time.time() - _begun(self.said).stat().st_mtime
    return self.process.exitcode, self.said.read_text()


def _begun(said) -> Path:
  return Path(f"{said}-begun")


def _main(
  arguments, said, clock, devices=1, pause=0.06, cwd=None, environment=None, stopped_clock=False, lease=None
):
  with open(said, "w") as err, open(f"{said}-out", "w") as out:
    os.dup2(out.fileno(), 1)
    os.dup2(err.fileno(), 2)
  os.environ |= environment or {}
  if cwd is not None:
    os.chdir(cwd)
  jax.config.update("jax_num_cpu_devices", devices)
  signal.signal(signal.SIGINT, signal.SIG_DFL)  # until the program says otherwise
  _begun(said).touch()
  from jaxreg.train.data import batches
  from jaxreg.train.run import dispatch, lock, metrics_file, results

  results.save_figures = lambda *_: []  # they take longer than these runs
  indices = batches.batch_indices
  metrics_file.ON_DISK = 0.0  # the tests count a run's steps by its records
  batches.batch_indices = lambda *args, **options: time.sleep(pause) or indices(*args, **options)
  if lease is not None:
    lock.LEASE, lock.RENEWAL = lease, lease / 10
  if stopped_clock:
    dispatch.time = types.SimpleNamespace(monotonic=lambda: 0.0)
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

"""A profile of some steps, which leaves a trace for xprof in the work directory."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Self

import jax
from etils.epath import Path

from jaxreg._atomic_files import files_below, write_bytes
from jaxreg.train.errors import one_line
from jaxreg.train.run.goodput import Times

FOLDER = "profile"


class Window(NamedTuple):
  """The steps to profile."""

  start: int  # the first one
  steps: int  # their number; 0: none

  @property
  def last(self) -> int:
    return self.start + self.steps - 1


class Profile:
  """Traces the dispatches that have a step of the window; a context manager.

  Each process writes `profile/plugins/profile/steps-FIRST-LAST/process-NUMBER.xplane.pb`.
  """

  def __init__(self, window: Window, workdir: Path, times: Times, say: Callable[[str], Any]):
    self._window, self._workdir, self._times, self._say = window, workdir, times, say
    self._held, self._steps = contextlib.ExitStack(), range(0)  # the steps traced

  def __enter__(self) -> Self:
    return self

  def __exit__(self, *exception: Any) -> None:
    self._held.__exit__(*exception)

  @contextlib.contextmanager
  def step(self, steps: range) -> Iterator[None]:
    """Names a dispatch in the trace, which begins before the first dispatch of the window."""
    window = self._window
    if window.steps and steps[-1] >= window.start and steps[0] <= window.last:
      if not self._steps:
        self._held.enter_context(self._traced())
        self._steps = steps
      self._steps = range(self._steps[0], steps[-1] + 1)
    with jax.profiler.StepTraceAnnotation("train", step_num=steps[-1]):
      yield

  def ends(self, step: int) -> bool:
    """Tells whether this step is the last one of a trace."""
    return bool(self._steps) and step >= self._window.last

  def stop(self) -> None:
    """Ends the trace; the devices must have done its steps."""
    self._window = Window(0, 0)
    self._held.close()
    self._steps = range(0)

  @contextlib.contextmanager
  def _traced(self) -> Iterator[None]:
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # Python's calls would fill the trace and slow the host
    with tempfile.TemporaryDirectory() as folder:
      with self._times.phase("profile"):
        jax.profiler.start_trace(folder, profiler_options=options)
      try:
        yield
      finally:
        with self._times.phase("profile"):
          jax.profiler.stop_trace()
          self._write(Path(folder))

  def _write(self, folder: Path) -> None:
    """Copies the trace into the work directory; a full disk costs the profile alone."""
    target = self._workdir / FOLDER
    inner = f"plugins/profile/steps-{self._steps[0]}-{self._steps[-1]}"
    try:
      traces = [file for file in files_below(folder).values() if file.name.endswith(".xplane.pb")]
      for file in traces:
        write_bytes(target / inner / f"process-{jax.process_index()}.xplane.pb", file.read_bytes())
      self._say(f"profile of steps {self._steps[0]} to {self._steps[-1]}: xprof --logdir {target}")
    except OSError as error:
      self._say(f"warning: {target} cannot be written ({one_line(error)}); the run goes on without a profile")

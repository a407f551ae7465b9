"""Where the wall time of a run goes, over all its starts: steps that count, and each kind of lost time."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Self

import jax
from etils.epath import Path

from jaxreg._atomic_files import read_bytes, write_json
from jaxreg.train.sealed_tables import Table, parse_table, sealed

FILE = "times.json"
# The kinds of lost time. `start` is what comes before the first step, such as reading the data. `repeated`
# steps were done again after a kill, and `stopped` is the time between two starts.
LOST: tuple[str, ...] = (
  "start",
  "compile",
  "restore",
  "input",
  "evaluate",
  "save",
  "profile",
  "repeated",
  "stopped",
)
COMPILING = "/jax/core/compile/"  # the events of JAX that trace, lower and compile a function
SHARE = 0.01  # of the time, which writing the file may take
MOST_PIECES = 100  # a run goes back to one of its latest checkpoints


def _never() -> bool:
  return False


class Times:
  """Adds up the wall time of a run by its kind; a context manager that also hears when JAX compiles.

  At each moment, time belongs to the innermost `phase`. Outside of any phase, time is `start`. While JAX
  compiles in this thread, time is `compile` in every phase.

  The times since the run's first start lie in a file. Each save writes it. Between saves,
  writing it costs at most 1 % of the time. So a kill loses little. The steps after the checkpoint at which
  the run continues are then `repeated`.
  """

  def __init__(self, wall: Callable[[], float] = time.time, clock: Callable[[], float] = time.monotonic):
    self._wall, self._clock = wall, clock
    self._began, self._since = wall(), clock()
    self._phases = ["start"]
    self._seconds: dict[str, float] = dict.fromkeys(
      ("steps", *LOST), 0.0
    )  # of steps: those after the last piece
    self._pieces: list[list[float]] = []  # last step and seconds of each piece of the run
    self._step, self._starts, self._finished = 0, 1, False
    self._compiled: list[tuple[float, float]] = []  # disjoint times of compilations in this phase
    self._thread = threading.get_ident()
    self._file: Path | None = None
    self._next = 0.0  # when the file may be written again

  def __enter__(self) -> Self:
    jax.monitoring.register_event_duration_secs_listener(self.heard)
    return self

  def __exit__(self, *exception: object) -> None:
    jax.monitoring.unregister_event_duration_listener(self.heard)

  def heard(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
    """Counts the last `duration_secs` as compilation if the event says so; compilations may be nested."""
    if event.startswith(COMPILING) and threading.get_ident() == self._thread:
      end = self._clock()
      start = max(end - duration_secs, self._since)
      earlier = ((begin, min(stop, start)) for begin, stop in self._compiled if begin < start)
      self._compiled = [*earlier, (start, end)]

  @contextlib.contextmanager
  def phase(self, name: str, *, hidden: Callable[[], bool] = _never) -> Iterator[None]:
    """Counts the time inside as `name`, unless `hidden()` is true at its end; a profile shows the name."""
    self._settle()
    self._phases.append(name)
    try:
      with jax.profiler.TraceAnnotation(name):
        yield
    finally:
      if hidden():
        self._phases[-1] = self._phases[-2]
      self._settle()
      self._phases.pop()

  @contextlib.contextmanager
  def kept(
    self, workdir: Path, run: str, config: str, step: int, check_there: Callable[[], None]
  ) -> Iterator[None]:
    """Continues the times that lie in `workdir` for a run that goes on at `step`, and writes them at the end.

    `run` is the token of the run, and `config` a digest of its fields. `check_there` raises if the folder
    no longer belongs to the run.
    """
    self._file, self._check_there, self._run, self._config = workdir / FILE, check_there, run, config
    self._step = step
    if before := self._read():
      self._continue(before, step)
    self.write()
    try:
      yield
    finally:
      self.write()

  def step(self, step: int) -> None:
    """Says that this step was dispatched."""
    self._step = step
    if self._clock() >= self._next:
      self.write()

  def saved(self) -> None:
    """Says that a checkpoint of the last step is on its way: a later start may continue from there."""
    self._settle()
    self._pieces.append([self._step, self._seconds["steps"]])
    self._seconds["steps"] = 0.0
    if len(self._pieces) > MOST_PIECES:
      (_, first), (step, second), *rest = self._pieces
      self._pieces = [[step, first + second], *rest]
    self.write()

  def finish(self) -> Table:
    """Ends the times of a run whose results are known, and returns their table; a longer run adds to them."""
    table = self.table()
    self._finished = True
    self.write()
    return table

  def table(self) -> Table:
    """Returns the goodput (`share`), the number of starts, the wall time, and the seconds of each kind."""
    self._settle()
    seconds = self._seconds | {"steps": sum(part for _, part in self._pieces) + self._seconds["steps"]}
    wall = sum(seconds.values())
    share = seconds["steps"] / wall if wall else 0.0
    return {"share": share, "starts": self._starts, "wall_seconds": wall, "seconds": seconds}

  def write(self) -> None:
    """Writes the file, if the run has one."""
    if self._file is None:
      return
    began = self._clock()
    self._settle()
    table = {
      "run": self._run,
      "config": self._config,
      "written": self._wall(),
      "finished": self._finished,
      "starts": self._starts,
      "lost": {name: self._seconds[name] for name in LOST},
      "steps": [*self._pieces, [self._step, self._seconds["steps"]]],
    }
    # No fault of this file may end a run; the run itself reports a full disk or a folder that is gone.
    with contextlib.suppress(Exception):
      self._check_there()
      write_json(self._file, sealed(table))
    now = self._clock()
    self._next = now + (now - began) / SHARE

  def _settle(self) -> None:
    """Adds the time since the last change to the innermost phase and to `compile`."""
    now = self._clock()
    if self._finished:
      return
    compiled = sum(end - start for start, end in self._compiled)
    self._seconds["compile"] += compiled
    self._seconds[self._phases[-1]] += now - self._since - compiled
    self._since, self._compiled = now, []

  def _read(self) -> Table | None:
    """Reads the times of earlier starts; None if there are none, or if they belong to another run."""
    assert self._file is not None
    try:
      table = parse_table(read_bytes(self._file), required=True)
      # A run that was killed before its first checkpoint begins with a new token.
      same = table.get("run") == self._run or (not self._step and table.get("config") == self._config)
      return table if same else None
    except (OSError, ValueError):
      return None

  def _continue(self, before: Table, step: int) -> None:
    """Adds the times of earlier starts; steps after `step` will be repeated."""
    self._starts = before["starts"] + 1
    for name in LOST:
      self._seconds[name] += before["lost"][name]
    if not before["finished"]:
      self._seconds["stopped"] += max(0.0, self._began - before["written"])
    first = 0
    for last, seconds in before["steps"]:
      # A checkpoint that was damaged later may lie inside of a piece.
      kept = 1.0 if last <= step else max(0.0, (step - first) / max(last - first, 1))
      if kept:
        self._pieces.append([min(last, step), kept * seconds])
      self._seconds["repeated"] += (1 - kept) * seconds
      first = last

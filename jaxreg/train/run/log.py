"""The log of a run for people, a bar on a terminal and lines elsewhere, and its records in files."""

import contextlib
import sys
import time
from collections.abc import Callable

from etils.epath import Path
from tqdm import tqdm

from jaxreg._metrics import metric
from jaxreg.train.devices.processes import is_first
from jaxreg.train.errors import printable, shortened
from jaxreg.train.run.metrics_file import MetricsFile
from jaxreg.train.step.metrics import Values, averaged
from jaxreg.train.step.program import Program

BAR = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{remaining} left{postfix}]"  # fits into 80 columns
PART_WIDTH = 24  # characters of a part's name before its bar
LINES = 20  # of a run whose log is not a terminal
LONGEST, SHORTEST_OF_PART = 600.0, 60.0  # seconds between two of these lines
# The metrics that people read, in this order.
SHOWN = (
  *(
    "train/loss",
    "train/accuracy",
    "train/examples_per_second",
    "train/mfu",
    "val/error",
    "val/nll",
    "test/error",
  ),
  *("train/mae", "val/rmse", "test/rmse"),
)


class Log:
  """Writes the records of a run; a context manager.

  On a terminal, a run takes less than a screen: a bar, and a line for the first evaluation in each tenth of
  the run. A run that is `part` of a longer job has only a bar of this name, which disappears at the end.
  Elsewhere a run has about 20 lines, at equal times, and a part of a longer job at most one in a minute. A
  step has one line, also if it is evaluated.
  """

  def __init__(
    self,
    workdir: Path,
    *,
    start: int,
    total: int,
    steps_per_epoch: int,
    every: int = 1,
    eval_every: int = 0,
    part: str = "",
    run: str = "",
    check_there: Callable[[], None] = lambda: None,
    track: Callable[[int, dict[str, float]], None] = lambda step, values: None,
  ):
    """Opens the log of a run of `total` steps, with a training record at each multiple of `every`.

    `track` takes the records, too. `run` is the token of the run. `check_there` raises if the folder no
    longer belongs to this run.
    """
    self._track = track
    self._bar, self._part, self._tenth = None, part, start * 10 // total
    length = {"start": start, "total": total, "every": every}
    self._file = MetricsFile(workdir, **length, run=run, check_there=check_there)
    self._total, self._steps_per_epoch = total, steps_per_epoch
    self._start, self._began = start, time.monotonic()
    self._said: float | None = None  # when the last line was written
    self._eval_every = eval_every or total
    self._latest: dict[str, float] = {}  # the latest values, for the terminal
    self._held: tuple[int, dict[str, float]] | None = None  # what the line of the next evaluation shows, too
    if sys.stderr.isatty():
      options = {"desc": shortened(printable(part), PART_WIDTH) or None, "leave": not part, "unit": "step"}
      self._bar = tqdm(
        total=total, initial=start, dynamic_ncols=True, bar_format=BAR, file=sys.stderr, **options
      )
    if self._file.damaged:
      self.say(f"{workdir / 'metrics.jsonl'}: {self._file.damaged} damaged lines are left out")

  def __enter__(self) -> "Log":
    return self

  def __exit__(self, *exception: object) -> None:
    if self._bar is not None:
      self._bar.close()
    self._say_held()
    # After a failed write, a second one fails again; that error must not replace the one with the reason.
    with contextlib.suppress(Exception) if exception[0] else contextlib.nullcontext():
      self._file.flush()

  def flush(self) -> None:
    """Stores all records, as before a checkpoint that a run continues from."""
    self._file.flush()

  def step(self) -> None:
    """Moves the progress bar by one step."""
    if self._bar is not None:
      self._bar.update()

  def write(self, step: int, of_replicas: Values) -> None:
    """Writes and shows one record: the means of values `[replicas]`, with confidence intervals of several."""
    values = self.record(step, of_replicas)
    self._latest |= values
    if self._bar is None:
      self._say_line(step, values)
      return
    shown = ("train/loss",) if self._part else ("train/loss", "val/error", "val/rmse")
    self._bar.set_postfix_str(_summary(self._latest, *shown))
    tenth = step * 10 // self._total
    if not self._part and tenth > self._tenth and any(name.startswith("val/") for name in values):
      self._tenth = tenth
      self._say_values(step, _summary(self._latest, "train/loss", "val/error", "val/nll", "val/rmse"))

  def record(self, step: int, of_replicas: Values) -> dict[str, float]:
    """Writes one record and shows nothing; returns the means."""
    values = averaged(of_replicas)
    self._file.write(step, step / self._steps_per_epoch, values)
    self._track(step, values)
    return values

  def show(self, step: int, of_replicas: Values) -> None:
    """Shows values of this step next to its evaluation, without a record."""
    values = averaged(of_replicas)
    self._latest |= values
    if self._bar is None:
      self._held = (step, self._held_at(step) | values)

  def say(self, line: str, *, routine: bool = False) -> None:
    """Shows a line to people, above the bar if there is one; a part's bar stands for a routine line."""
    line = printable(line)
    if self._bar is None:
      # Written in one piece, so that no signal comes between a line and its end.
      print(f"{line}\n", end="", file=sys.stderr, flush=True)
    elif not (routine and self._part):
      tqdm.write(line, file=sys.stderr)

  def _say_line(self, step: int, values: dict[str, float]) -> None:
    """Writes the line of a record; a training record waits for the evaluation of its step."""
    if any(name.startswith("test/") for name in values):  # the line of this step stands there already
      self._say_held()
      self.say(_summary(values))
      return
    values = self._held_at(step) | values
    self._say_held(before=step)
    self._held = (step, values)
    if not (step % self._eval_every == 0 or step == self._total) or any("val/" in name for name in values):
      self._say_held()

  def _held_at(self, step: int) -> dict[str, float]:
    return self._held[1] if self._held is not None and self._held[0] == step else {}

  def _say_held(self, before: int | None = None) -> None:
    """Writes the line that waits, if it is due, and if its step lies before another one."""
    if self._held is None or self._held[0] == before:
      return
    (step, values), self._held = self._held, None
    now = time.monotonic()
    if self._is_due(step, now):
      self._said = now
      self._say_values(step, f"{_summary(values)}{self._time_left(step)}")

  def _is_due(self, step: int, now: float) -> bool:
    """Tells whether the last line is old enough; the first one and that of the last step always are."""
    if self._said is None or step >= self._total:
      return True
    whole = (now - self._began) * (self._total - self._start) / max(step - self._start, 1)
    return now - self._said >= max(min(whole / LINES, LONGEST), SHORTEST_OF_PART if self._part else 0.0)

  def _say_values(self, step: int, values: str) -> None:
    self.say(f"step {step}/{self._total}  epoch {step / self._steps_per_epoch:.1f}  {values}")

  def _time_left(self, step: int) -> str:
    done = step - self._start
    if done <= 0 or step >= self._total:
      return ""
    seconds = (time.monotonic() - self._began) / done * (self._total - step)
    return f"  {int(seconds // 60)}:{int(seconds % 60):02d} left"


class Silent:
  """Shows and writes nothing: the log of every process but the first."""

  def __enter__(self) -> "Silent":
    return self

  def _nothing(self, *_: object, **__: object) -> None:
    pass

  __exit__ = step = write = record = flush = show = say = _nothing


def open_log(workdir: Path, *, start: int, program: Program, **options) -> "Log | Silent":
  """Opens the log of a run in the first process, and a silent one in the others."""
  if not is_first():
    return Silent()
  length = {"total": program.num_steps, "steps_per_epoch": program.steps_per_epoch}
  return Log(workdir, start=start, **length, **options)


def say(line: str) -> None:
  """Shows a line to people, above the bar if there is one."""
  tqdm.write(printable(line), file=sys.stderr)


def progress(line: str) -> None:
  """Writes a line about a part of a longer job, unless a terminal shows the bar of this part instead."""
  if is_first() and not sys.stderr.isatty():
    print(f"{printable(line)}\n", end="", file=sys.stderr, flush=True)


def _summary(values: dict[str, float], *names: str) -> str:
  """Returns the values of these metrics, by default of all that people read, in one line."""
  parts: list[str] = []
  for name in SHOWN:
    if name in values and name in (names or SHOWN):
      split, title = name.partition("/")[0], metric(name).title
      label = title if split == "train" else f"{split} {title}"
      parts.append(f"{label} {values[name]:{metric(name).form}}")
  return "  ".join(parts)

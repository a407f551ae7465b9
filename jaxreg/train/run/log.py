"""The log of a run: a progress bar on a terminal, lines elsewhere, `metrics.jsonl`, TensorBoard."""

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tqdm import tqdm

from jaxreg.train.devices.processes import is_first
from jaxreg.train.errors import RunError, printable, shortened
from jaxreg.train.files import no_link_or_pipe, parse_table, sealed, write_text
from jaxreg.train.run.tensorboard import Board

PART_WIDTH = 30  # characters of a part's name beside its bar
BAR_WIDTH = 8  # columns that a bar has at least
# The forms of the bar, the richest first; the first one that the terminal has room for is used.
FORMS = (
  "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_fmt}{postfix}]",
  "{l_bar}{bar}| {n_fmt}/{total_fmt} [{remaining} left{postfix}]",
  "{l_bar}{bar}| {n_fmt}/{total_fmt}{postfix}",
  "{desc}: {percentage:3.0f}%{postfix}",
)


class Log:
  """Writes the records of a run; a context manager.

  If the log is opened again at an earlier step, it drops the records after that step, so that no record is
  there twice. The first training record after a resume is the mean over the steps since the resume.

  On a terminal, a run takes less than a screen: a bar, and a line for the first evaluation in each tenth of
  the run. A run that is `part` of a longer job has only a bar of this name, which disappears at the end.
  Elsewhere each step of a record has one line, also if it is evaluated.
  """

  def __init__(
    self,
    workdir: Path,
    *,
    start: int,
    total: int,
    steps_per_epoch: int,
    eval_every: int = 0,
    part: str = "",
    check_there: Callable[[], None] = lambda: None,
  ):
    """A log of `total` steps.

    Args:
      eval_every: steps between evaluations; the last step is evaluated, too.
      check_there: raises if the work directory no longer belongs to this run.
    """
    self._file, self._check_there = workdir / "metrics.jsonl", check_there
    # A run that continues will write its own test record, so the old one is dropped.
    lines = _read_lines(workdir)
    kept = [r for r in lines if r is not None and r["step"] <= start and "test/error" not in r]
    try:
      write_text(self._file, "".join(_line(record) for record in kept))
    except OSError as error:
      raise RunError(
        f"{self._file}: cannot be written ({error.strerror}); the checkpoints are kept"
      ) from error
    self._stream = open(self._file, "a", buffering=1)  # noqa: SIM115 (closed in __exit__)
    self._board = Board(workdir / "tensorboard", start=start)
    self._total, self._steps_per_epoch, self._last = total, steps_per_epoch, start
    self._start, self._began = start, time.monotonic()
    self._eval_every = eval_every or total
    self._said: dict[str, float] = {}  # the latest values, for the terminal
    self._held: tuple[int, dict[str, float]] | None = None  # what the line of the next evaluation shows, too
    self._bar, self._part, self._tenth = None, part, start * 10 // total
    if sys.stderr.isatty():
      options = {"desc": shortened(printable(part), PART_WIDTH) or None, "leave": not part}
      self._bar = tqdm(
        total=total, initial=start, unit="step", dynamic_ncols=True, file=sys.stderr, **options
      )
    if None in lines[:-1]:  # a kill may have cut the last line
      self.say(f"{self._file}: {lines[:-1].count(None)} damaged lines are left out")

  def __enter__(self) -> "Log":
    return self

  def __exit__(self, *exception: object) -> None:
    if self._bar is not None:
      self._bar.close()
    self._say_held()
    for file in (self._stream, self._board):
      # After a failed write, `close` fails again; that error must not replace the one with the reason.
      with contextlib.suppress(OSError) if exception[0] else contextlib.nullcontext():
        file.close()

  def step(self) -> None:
    """Moves the progress bar by one step."""
    if self._bar is not None:
      self._bar.update()

  def write(self, step: int, values: dict[str, float]) -> None:
    """Writes one record, and shows it."""
    record = {"step": step, "epoch": step / self._steps_per_epoch, **values}
    try:
      self._begin_again()
      self._stream.write(_line(record))
      self._board.write(step, values)
    except OSError as error:
      raise RunError(f"{self._file}: cannot be written ({error}); the last checkpoint is kept") from error
    self._last = step
    self._said |= values
    if self._bar is None:
      self._say_line(step, values)
      return
    # The bar shows the speed itself and has little room.
    self._bar.set_postfix_str(_summary(self._said, "train/loss", "val/error"), refresh=False)
    self._bar.bar_format = _fitting(self._bar)
    self._bar.refresh()
    tenth = step * 10 // self._total
    if not self._part and tenth > self._tenth and any(name.startswith("val/") for name in values):
      self._tenth = tenth
      head = f"step {step}/{self._total}  epoch {record['epoch']:.1f}"
      self.say(f"{head}  {_summary(self._said, 'train/loss', 'val/error', 'val/nll')}")

  def show(self, step: int, values: dict[str, float]) -> None:
    """Shows values of this step beside those of its evaluation, without a record."""
    self._said |= values
    if self._bar is None:
      self._held = (step, values)

  def _say_line(self, step: int, values: dict[str, float]) -> None:
    """Writes the line of a record; a training record waits for the evaluation of its step."""
    if "test/error" in values:  # the line of this step stands there already
      self._say_held()
      self.say(_summary(values))
      return
    if self._held is not None and self._held[0] == step:
      values = self._held[1] | values
    else:
      self._say_held()
    self._held = (step, values)
    if not (step % self._eval_every == 0 or step == self._total) or any("val/" in name for name in values):
      self._say_held()

  def _say_held(self) -> None:
    if self._held is not None:
      (step, values), self._held = self._held, None
      head = f"step {step}/{self._total}  epoch {step / self._steps_per_epoch:.1f}"
      self.say(f"{head}  {_summary(values)}{self._time_left(step)}")

  def _begin_again(self) -> None:
    """Opens new files in the place of files that were removed under the run, and says so."""
    if not _is_still(self._stream, self._file):
      self._check_there()
      self._say_lost(self._file)
      self._stream.close()
      self._stream = open(self._file, "a", buffering=1, opener=no_link_or_pipe)  # noqa: SIM115
    if not self._board.path.is_file():
      self._check_there()
      self._say_lost(self._board.path.parent)
      self._board.close()
      self._board = Board(self._board.path.parent, start=self._last)

  def _say_lost(self, path: Path) -> None:
    lost = f"records up to step {self._last} are lost"
    self.say(f"warning: {path} was removed or replaced under this run: {lost}, and the next are written anew")

  def say(self, line: str, *, routine: bool = False) -> None:
    """Shows a line to people, above the bar if there is one; a part's bar stands for a routine line."""
    line = printable(line)
    if self._bar is not None and routine and self._part:
      return
    if self._bar is not None:
      tqdm.write(line, file=sys.stderr)
    else:
      # Written in one piece, so that no signal comes between a line and its end.
      print(f"{line}\n", end="", file=sys.stderr, flush=True)

  def _time_left(self, step: int) -> str:
    done = step - self._start
    if done <= 0 or step >= self._total:
      return ""
    seconds = (time.monotonic() - self._began) / done * (self._total - step)
    return f"  {int(seconds // 60)}:{int(seconds % 60):02d} left"


def open_log(workdir: Path, *, start: int, program: Any, **options: Any) -> "Log | Silent":
  """The log of a run in the first process, a silent one in the others; `options` as for a `Log`."""
  if not is_first():
    return Silent()
  length = {"total": program.num_steps, "steps_per_epoch": program.steps_per_epoch}
  return Log(workdir, start=start, **length, **options)


def progress(line: str) -> None:
  """Writes a line about a part of a longer job, unless a terminal shows the bar of this part instead."""
  if is_first() and not sys.stderr.isatty():
    print(f"{printable(line)}\n", end="", file=sys.stderr, flush=True)


class Silent:
  """Shows and writes nothing: the log of every process but the first."""

  def __enter__(self) -> "Silent":
    return self

  def __exit__(self, *exception: object) -> None:
    pass

  def step(self) -> None:
    pass

  def write(self, step: int, values: dict[str, float]) -> None:
    pass

  def show(self, step: int, values: dict[str, float]) -> None:
    pass

  def say(self, line: str, *, routine: bool = False) -> None:
    pass


def _fitting(bar: Any) -> str:
  """The richest form of the bar that the terminal has room for."""
  given = bar.format_dict
  for form in FORMS[:-1]:
    text = bar.format_meter(**{**given, "bar_format": form.replace("{bar}", ""), "ncols": None})
    if len(text) + BAR_WIDTH <= (given["ncols"] or 80):
      return form
  return FORMS[-1]


def _summary(values: dict[str, float], *names: str) -> str:
  """The values of these names, or of all names that people read, in one line."""
  shown = {
    "train/loss": ("loss", "{:.4f}"),
    "train/accuracy": ("accuracy", "{:.2%}"),
    "train/examples_per_second": ("examples/s", "{:.0f}"),
    "val/error": ("val error", "{:.2%}"),
    "val/nll": ("val NLL", "{:.4f}"),
    "test/error": ("test error", "{:.2%}"),
  }
  return "  ".join(
    f"{label} {form.format(values[name])}"
    for name, (label, form) in shown.items()
    if name in values and name in (names or shown)
  )


def read_records(workdir: Path) -> list[dict[str, Any]]:
  """The records of `metrics.jsonl`; damaged lines, such as a last line that a kill cut, are left out."""
  return [record for record in _read_lines(workdir) if record is not None]


def _read_lines(workdir: Path) -> list[dict[str, Any] | None]:
  """The record of each line; None for a damaged line."""
  file = workdir / "metrics.jsonl"
  lines = file.read_bytes().splitlines() if file.is_file() else []
  return [_parse(line) for line in lines]


def _is_still(stream: Any, file: Path) -> bool:
  """Whether `file` is the file that was opened as `stream`."""
  try:
    return os.path.samestat(os.fstat(stream.fileno()), file.lstat())
  except FileNotFoundError:
    return False


def _line(record: dict[str, Any]) -> str:
  return json.dumps(sealed(record)) + "\n"


def _parse(line: bytes) -> dict[str, Any] | None:
  try:
    record = parse_table(line)
  except ValueError:
    return None
  numbers = all(isinstance(value, float) or _is_small(value) for value in record.values())
  return record if numbers and _is_small(record.get("step")) and "epoch" in record else None


def _is_small(value: Any) -> bool:
  """Whether the value is an integer that NumPy can hold."""
  return type(value) is int and abs(value) < 2**63

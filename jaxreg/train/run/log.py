"""The log of a run: a progress bar on a terminal, lines elsewhere, `metrics.jsonl`, TensorBoard."""

import contextlib
import json
import sys
import time
from pathlib import Path
from typing import Any

from tqdm import tqdm

from jaxreg.train.devices.processes import is_first
from jaxreg.train.errors import RunError, printable, shortened
from jaxreg.train.files import parse_table, sealed, sync
from jaxreg.train.run.tensorboard import Board

PART_WIDTH = 30  # characters of a part's name beside its bar


class Log:
  """Writes the records of a run; a context manager.

  If the log is opened again at an earlier step, it drops the records after that step, so that no record is
  there twice. The first training record after a resume is the mean over the steps since the resume.

  On a terminal, a run takes less than a screen: a bar, and a line for the first evaluation in each tenth of
  the run. A run that is `part` of a longer job has only a bar of this name, which disappears at the end.
  """

  def __init__(self, workdir: Path, *, start: int, total: int, steps_per_epoch: int, part: str = ""):
    self._file = workdir / "metrics.jsonl"
    # A run that continues will write its own test record, so the old one is dropped.
    lines = _read_lines(workdir)
    kept = [r for r in lines if r is not None and r["step"] <= start and "test/error" not in r]
    partial = self._file.with_name("metrics.jsonl.partial")
    try:
      partial.unlink(missing_ok=True)  # a link there would be followed, and a pipe would wait
      partial.write_text("".join(_line(record) for record in kept))
      sync(partial)
      partial.replace(self._file)
      sync(workdir)
    except OSError as error:
      with contextlib.suppress(OSError):
        partial.unlink()
      raise RunError(
        f"{self._file}: cannot be written ({error.strerror}); the checkpoints are kept"
      ) from error
    self._stream = open(self._file, "a", buffering=1)  # noqa: SIM115 (closed in __exit__)
    self._board = Board(workdir / "tensorboard", start=start)
    self._total, self._steps_per_epoch = total, steps_per_epoch
    self._start, self._began = start, time.monotonic()
    self._said: dict[str, float] = {}
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
    for file in (self._stream, self._board):
      # After a failed write, `close` fails again; that error must not replace the one with the reason.
      with contextlib.suppress(OSError) if exception[0] else contextlib.nullcontext():
        file.close()

  def step(self) -> None:
    """Moves the progress bar by one step."""
    if self._bar is not None:
      self._bar.update()

  def write(self, step: int, values: dict[str, float]) -> None:
    """Writes one record, and shows it.

    Raises:
      RunError: if the record cannot be written.
    """
    record = {"step": step, "epoch": step / self._steps_per_epoch, **values}
    try:
      self._stream.write(_line(record))
      self._board.write(step, values)
    except OSError as error:
      raise RunError(f"{self._file}: cannot be written ({error}); the last checkpoint is kept") from error
    self._said |= values
    head = f"step {step}/{self._total}  epoch {record['epoch']:.1f}"
    if self._bar is None:
      self.say(f"{head}  {_summary(values)}{self._time_left(step)}")
      return
    # The bar shows the speed itself and has little room.
    self._bar.set_postfix_str(_summary(self._said, "train/loss", "val/error"))
    tenth = step * 10 // self._total
    if not self._part and tenth > self._tenth and any(name.startswith("val/") for name in values):
      self._tenth = tenth
      self.say(f"{head}  {_summary(self._said, 'train/loss', 'val/error', 'val/nll')}")

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


def open_log(workdir: Path, *, start: int, program: Any, part: str = "") -> "Log | Silent":
  """The log of a run in the first process, a silent one in the others."""
  if not is_first():
    return Silent()
  steps_per_epoch = program.steps_per_epoch
  return Log(workdir, start=start, total=program.num_steps, steps_per_epoch=steps_per_epoch, part=part)


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

  def say(self, line: str, *, routine: bool = False) -> None:
    pass


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

"""The records of a run in files: `metrics.jsonl`, and TensorBoard's events.

tensorboardX's own `SummaryWriter` writes from a second thread. On a full disk that thread dies with a
traceback, and the next events wait for it for ever. So events are written at once, in the calling thread.
"""

import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from tensorboardX.proto import event_pb2
from tensorboardX.record_writer import RecordWriter
from tensorboardX.summary import scalar

from jaxreg.train.errors import RunError
from jaxreg.train.files import Table, no_link_or_pipe, parse_table, sealed, write_text

proto: Any = event_pb2  # The import creates its classes, which a type checker cannot know.
FLUSH_SECONDS = 30


class MetricsFiles:
  """Appends records to `metrics.jsonl` and to TensorBoard's events in `workdir`.

  If the files are opened again at an earlier step, the records after that step are dropped, so that no record
  is there twice.

  Args:
    workdir: the folder of the run.
    start: the step at which the run begins or continues.
    say: shows a line to people.
    check_there: raises if the work directory no longer belongs to this run.
  """

  def __init__(
    self, workdir: Path, *, start: int, say: Callable[[str], None], check_there: Callable[[], None]
  ):
    self._file, self._say, self._check_there, self._last = workdir / "metrics.jsonl", say, check_there, start
    # A run that continues will write its own test record, so the old one is dropped.
    lines = _read_lines(workdir)
    tests = lambda record: any(name.startswith("test/") for name in record)
    kept = [r for r in lines if r is not None and r["step"] <= start and not tests(r)]
    try:
      write_text(self._file, "".join(_line(record) for record in kept))
    except OSError as error:
      raise RunError(
        f"{self._file}: cannot be written ({error.strerror}); the checkpoints are kept"
      ) from error
    self._stream: TextIO = open(self._file, "a", buffering=1)  # noqa: SIM115 (closed in `close`)
    self._events = EventFile(workdir / "tensorboard", start=start)
    self.damaged = lines[:-1].count(None)  # a kill may have cut the last line

  def close(self) -> None:
    try:
      self._stream.close()
    finally:
      self._events.close()

  def write(self, step: int, epoch: float, values: dict[str, float]) -> None:
    """Writes one record."""
    try:
      self._open_removed()
      self._stream.write(_line({"step": step, "epoch": epoch, **values}))
      self._events.write(step, values)
    except OSError as error:
      raise RunError(f"{self._file}: cannot be written ({error}); the last checkpoint is kept") from error
    self._last = step

  def _open_removed(self) -> None:
    """Opens new files in the place of files that were removed under the run, and says so."""
    if not _is_still(self._stream, self._file):
      self._warn_of_lost(self._file)
      self._stream.close()
      self._stream = open(self._file, "a", buffering=1, opener=no_link_or_pipe)  # noqa: SIM115
    if not self._events.path.is_file():
      folder = self._events.path.parent
      self._warn_of_lost(folder)
      self._events.close()
      self._events = EventFile(folder, start=self._last)

  def _warn_of_lost(self, path: Path) -> None:
    self._check_there()
    lost = f"records up to step {self._last} are lost"
    self._say(
      f"warning: {path} was removed or replaced under this run: {lost}, and the next are written anew"
    )


class EventFile:
  """An event file in `folder`; TensorBoard hides the events of earlier files after the step `start`.

  Attributes:
    path: the file.
  """

  def __init__(self, folder: Path, *, start: int):
    folder.mkdir(parents=True, exist_ok=True)
    self.path = folder / f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}"
    self._file = RecordWriter(str(self.path))
    self._flushed = time.monotonic()
    self._add(proto.Event(file_version="brain.Event:2"))
    self._add(proto.Event(step=start + 1, session_log=proto.SessionLog(status=proto.SessionLog.START)))

  def write(self, step: int, values: dict[str, float]) -> None:
    for name, value in values.items():
      self._add(proto.Event(step=step, summary=scalar(name, value)))
    if time.monotonic() > self._flushed + FLUSH_SECONDS:
      self._file.flush()
      self._flushed = time.monotonic()

  def close(self) -> None:
    self._file.close()

  def _add(self, event: Any) -> None:
    event.wall_time = time.time()
    self._file.write(event.SerializeToString())


def read_records(workdir: Path) -> list[Table]:
  """The records of `metrics.jsonl`; damaged lines, such as a last line that a kill cut, are left out."""
  return [record for record in _read_lines(workdir) if record is not None]


def _read_lines(workdir: Path) -> list[Table | None]:
  """The record of each line; None for a damaged line."""
  file = workdir / "metrics.jsonl"
  lines = file.read_bytes().splitlines() if file.is_file() else []
  return [_parse(line) for line in lines]


def _is_still(stream: TextIO, file: Path) -> bool:
  """Whether `file` is the file that was opened as `stream`."""
  try:
    return os.path.samestat(os.fstat(stream.fileno()), file.lstat())
  except FileNotFoundError:
    return False


def _line(record: Table) -> str:
  return json.dumps(sealed(record)) + "\n"


def _parse(line: bytes) -> Table | None:
  try:
    record = parse_table(line)
  except ValueError:
    return None
  numbers = all(isinstance(value, float) or _is_small(value) for value in record.values())
  return record if numbers and _is_small(record.get("step")) and "epoch" in record else None


def _is_small(value: Any) -> bool:
  """Whether the value is an integer that NumPy can hold."""
  return type(value) is int and abs(value) < 2**63

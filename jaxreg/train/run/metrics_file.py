"""The records of a run in its file `metrics.jsonl`."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from jaxreg._atomic_files import no_link_or_pipe, write_text
from jaxreg.train.errors import RunError
from jaxreg.train.sealed_tables import Table, parse_table, run_token, sealed


class MetricsFile:
  """Appends records to `workdir/metrics.jsonl`.

  Records after the step `start`, at which the run begins or continues, are dropped, so that none is there
  twice. So are the last records of a shorter run: its test record, and a training record between two
  multiples of `every` steps. `run` is the token of the run; `check_there` raises if the work directory no
  longer belongs to this run.
  """

  def __init__(
    self,
    workdir: Path,
    *,
    start: int,
    total: int,
    every: int,
    run: str,
    say: Callable[[str], None],
    check_there: Callable[[], None],
  ):
    self._file, self._say, self._check_there, self._last = workdir / "metrics.jsonl", say, check_there, start
    self._run = run

    def is_kept(record: Table) -> bool:
      splits = {name.partition("/")[0] for name in record}
      shorter = "train" in splits and record["step"] % every != 0 and start < total
      return record["step"] <= start and "test" not in splits and not shorter

    lines = _read_lines(workdir, run) if start else []
    try:
      write_text(self._file, "".join(_line(r, run) for r in lines if r is not None and is_kept(r)))
    except OSError as error:
      raise RunError(
        f"{self._file}: cannot be written ({error.strerror}); the checkpoints are kept"
      ) from error
    self._stream: TextIO = open(self._file, "a", buffering=1)  # noqa: SIM115 (closed in `close`)
    self.damaged = lines[:-1].count(None)  # a kill may have cut the last line

  def close(self) -> None:
    self._stream.close()

  def write(self, step: int, epoch: float, values: dict[str, float]) -> None:
    """Writes one record."""
    try:
      self._open_removed()
      self._stream.write(_line({"step": step, "epoch": epoch, **values}, self._run))
    except OSError as error:
      raise RunError(f"{self._file}: cannot be written ({error}); the last checkpoint is kept") from error
    self._last = step

  def _open_removed(self) -> None:
    """Opens a new file in the place of one that was removed under the run, and says so."""
    if _is_still(self._stream, self._file):
      return
    self._check_there()
    self._say(
      f"warning: {self._file} was removed or replaced under this run: records up to step {self._last} are "
      "lost, and a new file has the next ones"
    )
    self._stream.close()
    self._stream = open(self._file, "a", buffering=1, opener=no_link_or_pipe)  # noqa: SIM115


def read_records(workdir: Path) -> list[Table]:
  """Reads the records of `metrics.jsonl`, without damaged lines, such as a last one that a kill cut."""
  return [record for record in _read_lines(workdir, run_token(workdir)) if record is not None]


def _read_lines(workdir: Path, run: str) -> list[Table | None]:
  """Reads the record of each line; None for a damaged line, or one of another run."""
  file = workdir / "metrics.jsonl"
  lines = file.read_bytes().splitlines() if file.is_file() else []
  return [_parse(line, run) for line in lines]


def _is_still(stream: TextIO, file: Path) -> bool:
  """Tells whether `file` is the file that was opened as `stream`."""
  try:
    return os.path.samestat(os.fstat(stream.fileno()), file.lstat())
  except FileNotFoundError:
    return False


def _line(record: Table, run: str) -> str:
  return json.dumps(sealed(record, run)) + "\n"


def _parse(line: bytes, run: str) -> Table | None:
  try:
    record = parse_table(line, run=run)
  except ValueError:
    return None
  is_step = lambda value: type(value) is int and abs(value) < 2**63  # NumPy holds no larger one
  numbers = all(isinstance(value, float) or is_step(value) for value in record.values())
  return record if numbers and is_step(record.get("step")) and "epoch" in record else None

"""The records of a run in its files `metrics.jsonl`, `metrics-1.jsonl` and so on, which readers join."""

import json
import re
import time
from collections.abc import Callable

from etils.epath import Path

from jaxreg._atomic_files import in_bucket, read_bytes, write_text
from jaxreg.train.errors import RunError, one_line
from jaxreg.train.sealed_tables import Table, parse_table, run_token, sealed

PART = 2**20  # characters after which the next file begins
# Seconds between two writes of the last file, on a disk and in a bucket, which takes one write a second.
ON_DISK, IN_BUCKET = 1.0, 10.0


class MetricsFile:
  """Writes records to `workdir/metrics.jsonl`, and further ones to `metrics-1.jsonl` and so on.

  Nothing is appended, which a bucket cannot do: the last file is written again, whole, with its new records.

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
    check_there: Callable[[], None],
  ):
    self._workdir, self._run, self._check_there = workdir, run, check_there
    self._pause, self._written = (IN_BUCKET if in_bucket(workdir) else ON_DISK), -float("inf")
    self.damaged = 0  # lines that are left out; a kill may have cut the last one

    def is_kept(record: Table) -> bool:
      splits = {name.partition("/")[0] for name in record}
      shorter = "train" in splits and record["step"] % every != 0 and start < total
      return record["step"] <= start and "test" not in splits and not shorter

    texts: list[str] = []
    try:
      parts = _parts(workdir)
      for file in parts:
        lines = _read_lines(file, run) if start else []
        self.damaged += (lines[:-1] if file == parts[-1] else lines).count(None)
        texts.append("".join(_line(each, run) for each in lines if each is not None and is_kept(each)))
      while len(texts) > 1 and not texts[-1]:
        texts.pop()
      texts = texts or [""]
      for number, text in enumerate(texts):
        write_text(_part(workdir, number), text)
      for file in {*parts} - {_part(workdir, number) for number in range(len(texts))}:
        file.unlink(missing_ok=True)
    except OSError as error:
      raise self._cannot_write(error, "the checkpoints are kept") from error
    self._number, self._text, self._is_stored = len(texts) - 1, texts[-1], True

  def write(self, step: int, epoch: float, values: dict[str, float]) -> None:
    """Adds one record, which is stored at once if the last write was long ago."""
    self._text += _line({"step": step, "epoch": epoch, **values}, self._run)
    self._is_stored = False
    if time.monotonic() > self._written + self._pause:
      self.flush()

  def flush(self) -> None:
    """Stores the records that are not stored yet."""
    if self._is_stored:
      return
    self._check_there()
    try:
      write_text(_part(self._workdir, self._number), self._text)
    except OSError as error:
      self._check_there()  # the folder may have gone meanwhile, which is the better reason
      raise self._cannot_write(error, "the last checkpoint is kept") from error
    self._is_stored, self._written = True, time.monotonic()
    if len(self._text) > PART:
      self._number, self._text = self._number + 1, ""

  def _cannot_write(self, error: OSError, kept: str) -> RunError:
    return RunError(f"{self._workdir / 'metrics.jsonl'}: cannot be written ({one_line(error)}); {kept}")


def read_records(workdir: Path) -> list[Table]:
  """Reads the records of a run, without damaged lines."""
  run = run_token(workdir)
  lines = [line for file in _parts(workdir) for line in _read_lines(file, run)]
  return [record for record in lines if record is not None]


def _part(workdir: Path, number: int) -> Path:
  return workdir / (f"metrics-{number}.jsonl" if number else "metrics.jsonl")


def _parts(workdir: Path) -> list[Path]:
  """Returns the files of the records, in order."""
  names = (
    re.fullmatch(r"metrics(?:-([1-9]\d*))?\.jsonl", file.name) for file in workdir.glob("metrics*.jsonl")
  )
  return [_part(workdir, number) for number in sorted(int(name[1] or 0) for name in names if name)]


def _read_lines(file: Path, run: str) -> list[Table | None]:
  """Reads the record of each line; None for a damaged line, or one of another run."""
  return [_parse(line, run) for line in read_bytes(file).splitlines()]


def _line(record: Table, run: str) -> str:
  return json.dumps(sealed(record, run)) + "\n"


def _parse(line: bytes, run: str) -> Table | None:
  try:
    record = parse_table(line, run=run)
  except ValueError:
    return None
  numbers = all(isinstance(value, float) or _is_step(value) for value in record.values())
  return record if numbers and _is_step(record.get("step")) and "epoch" in record else None


def _is_step(value: object) -> bool:
  return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63  # as NumPy's int64

"""JSON tables with a checksum of themselves, by which damage is found when they are read."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Json = str | float | None | list["Json"] | dict[str, "Json"]
Table = dict[str, Any]  # the content of a JSON file, or results for one
SEAL = "seal"  # the name of the checksum in a table
DIGITS = 16  # kept of the 64 digits of a SHA-256: enough against accidents
DEPTH = 32  # the deepest nesting of tables and lists; Python fails at some hundreds


def digest(value: object) -> str:
  """Returns the SHA-256 of a value as JSON; the layout and the order of fields do not matter."""
  return hashlib.sha256(json.dumps(json.loads(json.dumps(value)), sort_keys=True).encode()).hexdigest()


def _checksum(table: Mapping[str, object], run: str) -> str:
  return digest([table, run] if run else table)[:DIGITS]


def sealed(table: Mapping[str, object], run: str = "") -> Table:
  """Returns the table with a checksum as its last field; the result stays plain JSON.

  The checksum of a table that belongs to a `run` covers the token of this run, too.
  """
  return {**table, SEAL: _checksum(table, run)}


def run_token(workdir: Path) -> str:
  """Returns the token of the run in a work directory, or "", which the seals of the run's files cover."""
  file = workdir / "config.json"
  try:
    return str(parse_table(file.read_bytes()).get("run", "")) if file.is_file() else ""
  except (OSError, ValueError):
    return ""


def parse_table(text: str | bytes, *, run: str = "", required: bool = False) -> Table:
  """Reads a table and removes its checksum, which may be missing unless it is `required`.

  Raises:
    ValueError: for text that is not a table, or whose checksum does not fit the table and its `run`.
  """
  try:
    table = json.loads(text)
  except RecursionError:
    raise ValueError("it is nested too deeply") from None
  _check_depth(table, DEPTH)
  if not isinstance(table, dict):
    raise ValueError("it is not a table")
  seal = table.pop(SEAL, None)
  if (required or seal is not None) and seal != _checksum(table, run):
    raise ValueError(f"it does not match its own checksum{' and this run' if run else ''}")
  return table


def _check_depth(value: Json, left: int) -> None:
  if isinstance(value, dict | list):
    if not left:
      raise ValueError("it is nested too deeply")
    for inner in value.values() if isinstance(value, dict) else value:
      _check_depth(inner, left - 1)

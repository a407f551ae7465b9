"""JSON tables with a checksum of themselves, by which damage is found when they are read."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from etils.epath import Path

from jaxreg._atomic_files import read_bytes

Json = str | float | None | list["Json"] | dict[str, "Json"]
Table = dict[str, Any]  # the content of a JSON file, or results for one
SEAL = "seal"  # the name of the checksum in a table
DIGITS = 16  # kept of the 64 digits of a SHA-256: enough against accidents


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
  try:
    return str(parse_table(read_bytes(workdir / "config.json")).get("run", ""))
  except (OSError, ValueError):
    return ""


def parse_table(text: str | bytes, *, run: str = "", required: bool = False) -> Table:
  """Reads a table and removes its checksum, which may be missing unless it is `required`.

  Raises:
    ValueError: for text that is not a table, or whose checksum does not fit the table and its `run`.
  """
  table = json.loads(text)
  if not isinstance(table, dict):
    raise ValueError("it is not a table")
  seal = table.pop(SEAL, None)
  if (required or seal is not None) and seal != _checksum(table, run):
    of_two = ", or it and config.json belong to two runs" if run else ""
    raise ValueError(f"it does not match its own checksum{of_two}")
  return table

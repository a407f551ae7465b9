"""The folder of a card: `report.json`, `report.npz`, figures and the page; a kill leaves each file whole.

`report.json` ends with a checksum of itself, and has checksums of the arrays in `report.npz`. So damage, and
arrays of another card, are noticed when the files are read again.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxreg._atomic_files import UNPACKING, write_bytes, write_json
from jaxreg._checks import one_line
from jaxreg.reports._model import Section
from jaxreg.reports._numbers import Number

Table = dict[str, Any]
Arrays = Mapping[str, np.ndarray]
VERSION = 3  # of the files; a version that other code cannot read gets the next number
DIGITS = 16  # of a fingerprint
TABLE, ARRAYS, PAGE, FIGURES = "report.json", "report.npz", "report.html", "figures"
SEAL = "seal"  # the name of the table's checksum
MODEL = "model"  # the prefix of the predictions and labels among the arrays
# What NumPy raises for a damaged archive.
DAMAGE = (OSError, ValueError, KeyError, EOFError, RuntimeError, MemoryError, *UNPACKING)


def plain(value: Any) -> Any:
  """Returns a value for JSON, where numbers that are not finite become texts."""
  if isinstance(value, Mapping):
    return {name: plain(each) for name, each in value.items()}
  if isinstance(value, list | tuple):
    return [plain(each) for each in value]
  return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def number_of(entry: Table) -> Number:
  """Returns a number of `report.json`."""
  value, low, high = (
    None if entry[name] is None else float(entry[name]) for name in ("value", "low", "high")
  )
  return Number(entry["title"], value or 0.0, low, high, entry["percent"])


def fingerprint(*values: Any) -> str:
  """Computes a checksum of pytrees of arrays and of values with a text."""
  checksum = hashlib.sha256(str(jax.tree.structure(values)).encode())
  for leaf in jax.tree.leaves(values):
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
      leaf = jax.random.key_data(leaf)
    if isinstance(leaf, np.ndarray | jax.Array):
      leaf = np.ascontiguousarray(leaf)
      checksum.update(f"{leaf.dtype}{leaf.shape}".encode() + leaf.tobytes())
    else:
      checksum.update(repr(leaf).encode())
  return checksum.hexdigest()[:DIGITS]


class Store:
  """The part of a card that a folder has; sections of another fingerprint, or damaged ones, are dropped."""

  def __init__(self, folder: Path, head: Table, model: Arrays):
    self.folder, self.arrays = folder, {f"{MODEL}/{name}": x for name, x in model.items()}
    self.table: Table = {**head, MODEL: fingerprint(self.arrays), "sections": {}}
    if not self._continue(head["fingerprint"]):
      self._write_arrays()
    self._write_table()  # also if all sections are there: the title and the list of the sections may be new

  def _continue(self, fingerprint: str) -> bool:
    """Takes the sections that the folder has; returns whether it has all arrays, too."""
    if not (self.folder / TABLE).exists():
      return False
    try:
      old, stored = _read_table(self.folder), _read_arrays(self.folder)
    except ValueError as error:
      _say(f"{error}; the card is made again")
      return False
    if old["fingerprint"] != fingerprint:
      return False
    damaged = _damaged(old, stored)
    if damaged:
      _say(f"{_lacks(self.folder, damaged)}; they are computed again")
    for name, entry in old["sections"].items():
      if entry["status"] == "done" and name not in damaged:
        self.table["sections"][name] = entry
        self.arrays |= _section_arrays(name, stored)
    return not damaged

  def keep(self, name: str, section: Section, seconds: float) -> None:
    """Stores a section. The arrays come first, so that a kill between the files loses only the section."""
    arrays = {f"{name}/{key}": np.asarray(x) for key, x in section.arrays.items()}
    arrays |= {f"each/{name}/{key}": np.asarray(x) for key, x in section.each.items()}
    self.arrays |= arrays
    self._write_arrays()
    numbers = {key: number._asdict() for key, number in section.numbers.items()}
    words = {key: getattr(section, key) for key in ("sentence", "cost", "function")}
    entry = {"status": "done", "numbers": numbers, **words, "seconds": round(seconds, 2)}
    self.set(name, {**entry, "arrays": fingerprint(arrays)})

  def set(self, name: str, entry: Table) -> None:
    self.table["sections"][name] = entry
    self._write_table()

  def _write_arrays(self) -> None:
    stream, arrays = io.BytesIO(), self.arrays
    np.savez_compressed(stream, allow_pickle=False, **arrays)
    write_bytes(self.folder / ARRAYS, stream.getvalue())

  def _write_table(self) -> None:
    write_table(self.folder, self.table)


def write_table(folder: Path, table: Table) -> None:
  """Writes `report.json` with its checksum."""
  table = plain({"version": VERSION, **table})
  write_json(folder / TABLE, {**table, SEAL: fingerprint(json.loads(json.dumps(table)))})


def load(folder: Path) -> tuple[Table, dict[str, np.ndarray]]:
  """Reads the table and the arrays of a card; raises ValueError if there is none, or a damaged one."""
  table, arrays = _read_table(folder), _read_arrays(folder)
  if damaged := _damaged(table, arrays):
    raise ValueError(f"{_lacks(folder, damaged)}; make the card again")
  return table, arrays


def _say(line: str) -> None:
  print(f"report: {line}", file=sys.stderr, flush=True)


def _lacks(folder: Path, damaged: list[str]) -> str:
  return f"{folder / ARRAYS} lacks arrays of {', '.join(damaged)}, or has others"


def _read_table(folder: Path) -> Table:
  try:
    table = json.loads((folder / TABLE).read_bytes()) if (folder / TABLE).is_file() else None
  except (OSError, ValueError) as error:
    raise ValueError(f"no card can be read in {folder}: {one_line(error)}") from error
  if table is None:
    raise ValueError(f"no card can be read in {folder}: there is no file {TABLE}")
  if not isinstance(table, dict) or table.get("version") != VERSION:
    raise ValueError(f"no card can be read in {folder}: {TABLE} is of another version")
  if table.pop(SEAL, None) != fingerprint(table):
    raise ValueError(f"no card can be read in {folder}: {TABLE} does not match its own checksum")
  if "fingerprint" not in table:
    raise ValueError(f"no card can be read in {folder}: {TABLE} is that of a comparison")
  return table


def _read_arrays(folder: Path) -> dict[str, np.ndarray]:
  if not (folder / ARRAYS).is_file():
    return {}
  try:
    with np.load(io.BytesIO((folder / ARRAYS).read_bytes())) as stored:
      return {name: stored[name] for name in stored.files}
  except DAMAGE as error:
    raise ValueError(f"no card can be read in {folder}: {ARRAYS} is damaged, {one_line(error)}") from error


def _damaged(table: Table, arrays: Arrays) -> list[str]:
  """Lists the sections whose arrays differ from the table; `model` has the predictions and labels."""
  expected = {name: each["arrays"] for name, each in table["sections"].items() if each["status"] == "done"}
  damaged = [
    name for name, checksum in expected.items() if fingerprint(_section_arrays(name, arrays)) != checksum
  ]
  model = {name: x for name, x in arrays.items() if name.startswith(f"{MODEL}/")}
  return damaged + [MODEL] * (fingerprint(model) != table[MODEL])


def _section_arrays(name: str, arrays: Arrays) -> dict[str, np.ndarray]:
  """Returns the arrays of a section."""
  return {key: x for key, x in arrays.items() if key.startswith((f"{name}/", f"each/{name}/"))}


def below(arrays: Arrays, prefix: str) -> dict[str, np.ndarray]:
  """Returns the arrays whose names begin with a prefix, without it."""
  return {name.removeprefix(prefix): x for name, x in arrays.items() if name.startswith(prefix)}

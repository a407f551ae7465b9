"""The folder of a card: `report.json`, `report.npz`, figures and the page; a kill leaves each file whole."""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxreg._atomic_files import write_bytes, write_json
from jaxreg.reports._model import Section
from jaxreg.reports._numbers import Number

Table = dict[str, Any]
DIGITS = 16  # of a fingerprint
TABLE, ARRAYS, PAGE = "report.json", "report.npz", "report.html"


def plain(value: Any) -> Any:
  """Returns a value for JSON, where numbers that are not finite become texts."""
  if isinstance(value, Mapping):
    return {name: plain(each) for name, each in value.items()}
  if isinstance(value, list | tuple):
    return [plain(each) for each in value]
  return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def number_of(entry: Table) -> Number:
  """A number of `report.json`."""
  as_float = lambda value: None if value is None else float(value)
  value, low, high = (as_float(entry[name]) for name in ("value", "low", "high"))
  return Number(entry["title"], value or 0.0, low, high, entry["percent"])


def fingerprint(*values: Any) -> str:
  """A checksum of pytrees of arrays and of values with a text."""
  found = hashlib.sha256(str(jax.tree.structure(values)).encode())
  for leaf in jax.tree.leaves(values):
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
      leaf = jax.random.key_data(leaf)
    if isinstance(leaf, np.ndarray | jax.Array):
      leaf = np.ascontiguousarray(leaf)
      found.update(f"{leaf.dtype}{leaf.shape}".encode() + leaf.tobytes())
    else:
      found.update(repr(leaf).encode())
  return found.hexdigest()[:DIGITS]


class Store:
  """What a folder has of a card; the sections of another fingerprint are dropped."""

  def __init__(self, folder: Path, head: Table):
    self.folder, self.table, self.arrays = folder, {**head, "sections": {}}, {}
    if (folder / TABLE).is_file():
      old, arrays = load(folder)
      if old["fingerprint"] == head["fingerprint"]:
        done = {name: each for name, each in old["sections"].items() if each["status"] == "done"}
        self.table["sections"], self.arrays = done, arrays

  def keep(self, name: str, found: Section, seconds: float) -> None:
    """Stores a section. The arrays come first, so that a kill between the files loses only the section."""
    self.arrays |= {f"{name}/{key}": np.asarray(x) for key, x in found.arrays.items()}
    self.arrays |= {f"each/{name}/{key}": np.asarray(x) for key, x in found.each.items()}
    stream, arrays = io.BytesIO(), self.arrays
    np.savez_compressed(stream, allow_pickle=False, **arrays)
    write_bytes(self.folder / ARRAYS, stream.getvalue())
    numbers = {key: number._asdict() for key, number in found.numbers.items()}
    words = {key: getattr(found, key) for key in ("sentence", "cost", "function")}
    self.set(name, {"status": "done", "numbers": numbers, **words, "seconds": round(seconds, 2)})

  def set(self, name: str, entry: Table) -> None:
    self.table["sections"][name] = entry
    write_json(self.folder / TABLE, plain(self.table))


def load(folder: Path) -> tuple[Table, dict[str, np.ndarray]]:
  """The table and the arrays of a card."""
  try:
    table, arrays = json.loads((folder / TABLE).read_text()), {}
    if (folder / ARRAYS).is_file():
      with np.load(folder / ARRAYS) as stored:
        arrays = {name: stored[name] for name in stored.files}
    return table, arrays
  except (OSError, ValueError) as error:
    raise ValueError(f"no card can be read in {folder}: {error}") from error


def below(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
  """The arrays whose names begin with a prefix, without it."""
  return {name.removeprefix(prefix): x for name, x in arrays.items() if name.startswith(prefix)}

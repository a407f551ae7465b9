"""Decoded splits, kept as arrays beside the prepared data."""

import contextlib
import hashlib
import json
import os
import re
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from jaxreg.train.data import Split

FORMAT = 1


def cached(folder: Path, what: tuple[str, ...], num_examples: int, decode: Callable[[], Split]) -> Split:
  """What `decode()` returns, called only if no cache file has it, or a damaged one, or of other data.

  Args:
    folder: that of the prepared data.
    what: the split's expression, the names of the features and, unless it is the stored one, the order.
    num_examples: how many there are.
    decode: reads and decodes them.
  """
  key = json.dumps([FORMAT, *what])
  name = f"{re.sub(r'[^0-9A-Za-z]+', '_', what[0]).strip('_')}-{zlib.crc32(key.encode()):08x}.npz"
  fingerprint = f"{key} {_fingerprint(folder)}"
  files = [place / name for place in _places(folder)]
  for file in files:
    if examples := _read(file, fingerprint, num_examples):
      return examples
  examples = decode()
  for file in files:
    # A read-only or full disk costs the next start some time, not this run.
    with contextlib.suppress(OSError):
      _write(file, fingerprint, examples)
      break
  return examples


def _fingerprint(folder: Path) -> str:
  """Of what the arrays were made from: the descriptions' contents, the record files' names and sizes."""
  digest = hashlib.sha256()
  for file in sorted(path for path in folder.iterdir() if path.is_file()):
    digest.update(f"{file.name}\0{file.stat().st_size}\0".encode())
    if file.suffix == ".json":
      digest.update(file.read_bytes())
  return digest.hexdigest()


def _places(folder: Path) -> list[Path]:
  """Where the arrays may lie, the first choice first: beside the data, or at home."""
  where = zlib.crc32(str(folder.resolve()).encode())
  home = Path.home() / ".cache" / "jaxreg" / "tfds" / f"{folder.parent.name}-{folder.name}-{where:08x}"
  beside = folder / "jaxreg_cache"
  # What nobody may write is left alone even by root, whom the system would let.
  read_only = not folder.stat().st_mode & 0o222 and not beside.exists()
  return [home] if read_only else [beside, home]


def _read(file: Path, fingerprint: str, num_examples: int) -> Split | None:
  """The arrays of a cache file, or None if there is none, or it is damaged or made from other files."""
  try:
    with zipfile.ZipFile(file) as archive:
      if archive.testzip() is not None:  # NumPy alone may stop before the checksum's end
        return None
    with np.load(file, allow_pickle=False) as arrays:
      if str(arrays["fingerprint"]) != fingerprint:
        return None
      examples = Split(arrays["images"], arrays["labels"])
  except Exception:  # whatever is wrong with it, it can be made again
    return None
  whole = examples.inputs.ndim == 4 and len(examples.inputs) == len(examples.labels) == num_examples
  return examples if whole and examples.inputs.dtype == np.uint8 else None


def _write(file: Path, fingerprint: str, examples: Split) -> None:
  file.parent.mkdir(parents=True, exist_ok=True)
  descriptor, temporary = tempfile.mkstemp(dir=file.parent, prefix=f".{file.stem}-")
  try:
    with os.fdopen(descriptor, "wb") as stream:
      np.savez(stream, images=examples.inputs, labels=examples.labels, fingerprint=np.array(fingerprint))
      stream.flush()
      os.fsync(stream.fileno())
    os.chmod(temporary, 0o644)
    os.replace(temporary, file)
  except BaseException:
    os.unlink(temporary)
    raise

"""Caches decoded splits as arrays in the user's cache: the folder of the data may be other people's."""

import contextlib
import hashlib
import json
import os
import re
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from jaxreg.train.data.dataset import Split
from jaxreg.train.data.unpack import read_npz
from jaxreg.train.user_cache import user_cache

FORMAT = 3  # raise it when decoding changes the arrays


def cached(folder: Path, what: tuple[str, ...], num_examples: int, decode: Callable[[], Split]) -> Split:
  """The result of `decode()`, which is called only if no valid cache file of these data holds it.

  Args:
    folder: the folder of the prepared data.
    what: the split's expression, the names of the features and, unless it is `stored`, the order.
    num_examples: the number of examples.
    decode: reads and decodes the examples.
  """

  def arrays() -> dict[str, np.ndarray]:
    examples = decode()
    return {"images": examples.inputs, "labels": examples.labels}

  found = _cached(folder, what, num_examples, ("images", "labels"), arrays)
  return Split(found["images"], found["labels"])


def cached_labels(
  folder: Path, what: tuple[str, ...], num_examples: int, read: Callable[[], np.ndarray]
) -> np.ndarray:
  """As `cached`, but for labels alone; `what` is the split's expression and the name of the feature."""
  return _cached(folder, what, num_examples, ("labels",), lambda: {"labels": read()})["labels"]


def _cached(
  folder: Path,
  what: tuple[str, ...],
  num_examples: int,
  names: tuple[str, ...],
  make: Callable[[], dict[str, np.ndarray]],
) -> dict[str, np.ndarray]:
  key = json.dumps([FORMAT, *what])
  name = f"{re.sub(r'[^0-9A-Za-z]+', '_', what[0]).strip('_')}-{zlib.crc32(key.encode()):08x}.npz"
  made_from = f"{key} {fingerprint(folder)}"
  where = zlib.crc32(str(folder.resolve()).encode())
  file = user_cache() / "tfds" / f"{folder.parent.name}-{folder.name}-{where:08x}" / name
  if arrays := _read(file, made_from, num_examples, names):
    return arrays
  arrays = make()
  # A read-only or full disk only costs the next start some time; this run goes on.
  with contextlib.suppress(OSError):
    _write(file, {**arrays, "fingerprint": np.array(made_from)})
  return arrays


def fingerprint(folder: Path) -> str:
  """A digest of the arrays' origin: the contents of the descriptions, the names and sizes of the files."""
  digest = hashlib.sha256()
  for file in sorted(path for path in folder.iterdir() if path.is_file()):
    digest.update(f"{file.name}\0{file.stat().st_size}\0".encode())
    if file.suffix == ".json":
      digest.update(file.read_bytes())
  return digest.hexdigest()


def _read(
  file: Path, made_from: str, num_examples: int, names: tuple[str, ...]
) -> dict[str, np.ndarray] | None:
  """The arrays of a cache file, or None if there is none, or it is damaged or made from other files."""
  try:
    arrays = read_npz(file)
    if str(arrays["fingerprint"]) != made_from:
      return None
    arrays = {name: arrays[name] for name in names}
  except Exception:  # whatever is wrong with the file, it can be made again
    return None
  images = arrays.get("images")
  decoded = images is None or (images.ndim == 4 and images.dtype == np.uint8)
  return arrays if decoded and all(len(array) == num_examples for array in arrays.values()) else None


def _write(file: Path, arrays: dict[str, np.ndarray]) -> None:
  file.parent.mkdir(parents=True, exist_ok=True)
  # Not by `tempfile`: it ignores the umask, which says who may read the file.
  temporary = file.with_name(f".{file.stem}-{os.getpid()}-{os.urandom(4).hex()}")
  try:
    with open(temporary, "xb") as stream:
      np.savez(stream, **arrays)  # type: ignore[arg-type]
      stream.flush()
      os.fsync(stream.fileno())
    os.replace(temporary, file)
  except BaseException:
    temporary.unlink(missing_ok=True)
    raise

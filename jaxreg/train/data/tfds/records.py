"""The examples of a prepared TFDS set: decoded into arrays, or encoded until a batch is made.

The user's cache keeps arrays and labels that were read once: the folder of the data may be other people's.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
import logging
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike

from jaxreg._atomic_files import replaced
from jaxreg._extras import install
from jaxreg.train.data.bounded_files import read_npz
from jaxreg.train.data.dataset import Split
from jaxreg.train.data.images import Images, decode, decode_all, in_chunks
from jaxreg.train.errors import ArgumentError, RunError, one_line
from jaxreg.train.sealed_tables import Table
from jaxreg.train.staged import origin
from jaxreg.train.user_cache import user_cache

if TYPE_CHECKING:
  from PIL import Image

Reader = Any  # TFDS's reader of a prepared set, whose own types have no features by name
FORMAT = 3  # raise it when decoding changes the arrays


@contextlib.contextmanager
def reading(builder: Reader, folder: Path, split: str) -> Iterator[None]:
  """Turns the errors of reading a split into one line, and silences TFDS's advice on decoders."""
  logger = logging.getLogger("absl")
  level = logger.level
  logger.setLevel(logging.ERROR)
  try:
    yield
  except RunError:
    raise
  except ImportError as error:
    raise ArgumentError("", f"cannot decode images ({error}); {install('data')}") from error
  except NotImplementedError as error:
    raise ArgumentError(
      "data_dir",
      f"{origin(folder)} is prepared as {builder.info.file_format.value}, which cannot be read without "
      "TensorFlow; remove that folder or give another data_dir, and it is prepared again as array_record",
    ) from error
  except Exception as error:  # the record reader, Protocol Buffers and Pillow have no common error
    raise damaged(folder, error, f"split {split}: ") from error
  finally:
    logger.setLevel(level)


def damaged(folder: Path, error: Exception, what: str = "") -> RunError:
  """Builds the error of a set that cannot be read."""
  remedy = "remove that folder and prepare it again"
  return ArgumentError("", f"{what}{origin(folder)} is damaged or incomplete ({one_line(error)}); {remedy}")


def arrays(builder: Reader, folder: Path, split: str, image: str, label: str, order: str) -> Split:
  """Reads a split, a TFDS expression, and decodes its images at once; `order` as in `tfds`."""
  what = (split, image, label) if order == "stored" else (split, image, label, order)
  stored = cached(folder, what, lambda: _decoded(builder, split, image, label, order))
  return Split(stored["images"], stored["labels"])


def streamed(folder: Path, split: str, image: str, label: str) -> Split:
  """Reads a split whose images are decoded when a batch is made; takes the arguments of `arrays`."""
  labels = cached(folder, (split, label), lambda: _values(folder, split, label, np.int64, "labels"))["labels"]
  records = Records(str(folder), split, image, fingerprint(folder))
  return Split(Images(records, np.arange(len(labels))), labels)


def numbers(builder: Reader, folder: Path, split: str, order: str) -> np.ndarray:
  """The numbers at the end of the ids of a split, such as 7 for `train_00007`, in the order of `arrays`."""
  with reading(builder, folder, split):
    ids = cached(folder, (split, "id"), lambda: _values(folder, split, "id", bytes, "ids"))["ids"]
  ids = np.sort(ids, kind="stable") if order == "id" else ids
  ends = [re.search(rb"\d+$", each) for each in ids.tolist()]
  if not all(ends):
    raise ArgumentError("labels_file", f"needs ids that end in a number, got {ids[ends.index(None)]!r}")
  return np.array([int(end[0]) for end in ends if end], np.int64)


@dataclasses.dataclass(frozen=True)
class Records:
  """The encoded images of a prepared split."""

  folder: str  # of the prepared set
  split: str  # the split's expression
  image: str  # the name of the image feature
  identity: str  # a digest of the folder's contents

  def read(self, number: int) -> bytes:
    return _opened(self.folder, self.split)[number][self.image]

  def name(self, number: int) -> str:
    return f"image {number} of split {self.split} in {self.folder}"

  def fingerprint(self, numbers: np.ndarray) -> tuple[np.ndarray, ...]:
    return np.frombuffer(f"{self.split} {self.identity}".encode(), np.uint8), numbers

  def stamp(self, numbers: np.ndarray) -> tuple[np.ndarray, ...]:
    folder = Path(self.folder)
    times = [file.stat().st_mtime_ns for file in sorted(folder.iterdir()) if file.is_file()]
    where = np.frombuffer(str(folder.resolve()).encode(), np.uint8)
    return where, np.array(times, np.int64), *self.fingerprint(numbers)


def _undecoded(builder: Reader, split: str) -> Sequence[Table]:
  """Opens TFDS's source of a split, with images as they are stored."""
  import tensorflow_datasets

  features = builder.info.features
  images = [name for name in features if isinstance(features[name], tensorflow_datasets.features.Image)]
  decoders = {name: tensorflow_datasets.decode.SkipDecoding() for name in images}
  return builder.as_data_source(split, decoders=decoders)


@functools.lru_cache(maxsize=8)
def _opened(folder: str, split: str) -> Sequence[Table]:
  """Opens the `_undecoded` source of a folder's split; each process opens it once."""
  import tensorflow_datasets

  return _undecoded(tensorflow_datasets.builder_from_directory(folder), split)


def _values(folder: Path, split: str, feature: str, dtype: DTypeLike, what: str) -> dict[str, np.ndarray]:
  """Reads a feature of all examples, as the array `what`."""
  source: Any = _opened(str(folder), split)
  values = np.empty(len(source), object)  # texts may have any length

  def read(positions: range) -> None:
    values[positions] = [example[feature] for example in source.__getitems__(positions)]

  in_chunks(read, len(source), f"reading the {what} of {split}")
  return {what: values.astype(dtype)}


def _decoded(builder: Reader, split: str, image: str, label: str, order: str) -> dict[str, np.ndarray]:
  source: Any = _undecoded(builder, split)
  channels = builder.info.features[image].shape[-1]
  labels = np.empty(len(source), np.int64)
  ids = np.full(len(source), b"", object)

  def read(positions: range) -> list["Image.Image"]:
    examples = source.__getitems__(positions)
    labels[positions] = [example[label] for example in examples]
    if order == "id":
      ids[positions] = [example["id"] for example in examples]
    # Not decoded by TFDS, which takes the lower 8 of 16 bits, and palette indices for colours.
    return [decode(example[image], channels) for example in examples]

  images = decode_all(read, len(source), read(range(1))[0], f"decoding {builder.name} {split}")
  by_id = slice(None) if order == "stored" else np.argsort(ids, kind="stable")
  return {"images": images[by_id], "labels": labels[by_id]}


def cached(
  folder: Path, what: tuple[str, ...], make: Callable[[], dict[str, np.ndarray]]
) -> dict[str, np.ndarray]:
  """Returns the arrays of `make()`, which is called only if no valid file of these data holds them.

  They depend on the folder of the prepared set and on `what`, whose first entry is the split's expression.
  """
  key = json.dumps([FORMAT, *what])
  origin = f"{key} {fingerprint(folder)}"
  where = zlib.crc32(str(folder.resolve()).encode())
  name = f"{re.sub(r'[^0-9A-Za-z]+', '_', what[0]).strip('_')}-{zlib.crc32(key.encode()):08x}.npz"
  file = user_cache() / "tfds" / f"{folder.parent.name}-{folder.name}-{where:08x}" / name
  with contextlib.suppress(Exception):  # whatever is wrong with the file, it can be made again
    arrays = read_npz(file)
    if str(arrays.pop("fingerprint")) == origin:
      return arrays
  made = make()
  # A read-only or full disk only costs the next start some time; this run goes on.
  with contextlib.suppress(OSError), replaced(file) as stream:
    np.savez(stream, **made, fingerprint=np.array(origin))  # type: ignore[arg-type]
  return made


def fingerprint(folder: Path) -> str:
  """Digests the arrays' origin: the contents of the descriptions, the names and sizes of the files."""
  digest = hashlib.sha256()
  for file in sorted(path for path in folder.iterdir() if path.is_file()):
    digest.update(f"{file.name}\0{file.stat().st_size}\0".encode())
    if file.suffix == ".json":
      digest.update(file.read_bytes())
  return digest.hexdigest()

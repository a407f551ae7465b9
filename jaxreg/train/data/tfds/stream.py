"""Images of a TFDS set that are decoded when a batch is made; the labels are read once."""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from jaxreg.train.data.chunks import CHUNK, in_chunks
from jaxreg.train.data.dataset import Split
from jaxreg.train.data.images import Images
from jaxreg.train.data.tfds.cache import cached_labels, fingerprint


@dataclasses.dataclass(frozen=True)
class Records:
  """The encoded images of a prepared split.

  Attributes:
    folder: the folder of the prepared set.
    split: the split's expression.
    image: the name of the image feature.
    identity: a digest of the folder's contents.
  """

  folder: str
  split: str
  image: str
  identity: str

  def read(self, number: int) -> bytes:
    return _opened(self.folder, self.split)[number][self.image]

  def name(self, number: int) -> str:
    return f"data.tfds: image {number} of split {self.split} in {self.folder}"

  def fingerprint(self, numbers: np.ndarray) -> tuple[np.ndarray, ...]:
    return np.frombuffer(f"{self.split} {self.identity}".encode(), np.uint8), numbers

  def stamp(self, numbers: np.ndarray) -> tuple[np.ndarray, ...]:
    folder = Path(self.folder)
    times = [file.stat().st_mtime_ns for file in sorted(folder.iterdir()) if file.is_file()]
    where = np.frombuffer(str(folder.resolve()).encode(), np.uint8)
    return where, np.array(times, np.int64), *self.fingerprint(numbers)


def streamed(
  folder: Path,
  split: str,
  image: str,
  label: str,
  num_examples: int,
  told: Callable[[Callable[[], Any]], Any],
) -> Split:
  """A split whose images are decoded when a batch is made.

  Args:
    folder: the folder of the prepared set.
    split: the split's expression.
    image, label: the names of the features.
    num_examples: the number of examples.
    told: calls a function that reads examples, and turns errors of TFDS into one line.
  """
  read = lambda: _labels(str(folder), split, label)
  labels = cached_labels(folder, (split, label), num_examples, lambda: told(read))
  records = Records(str(folder), split, image, fingerprint(folder))
  return Split(Images(records, np.arange(num_examples)), labels)


def undecoded(builder: Any, split: str) -> Any:
  """TFDS's source of a split, with images as they are stored."""
  import tensorflow_datasets

  features = builder.info.features
  images = [name for name in features if isinstance(features[name], tensorflow_datasets.features.Image)]
  decoders: Any = {name: tensorflow_datasets.decode.SkipDecoding() for name in images}
  return builder.as_data_source(split, decoders=decoders)


@functools.lru_cache(maxsize=8)
def _opened(folder: str, split: str) -> Any:
  """The `undecoded` source of a folder's split; each process opens it once."""
  import tensorflow_datasets

  return undecoded(tensorflow_datasets.builder_from_directory(folder), split)


def _labels(folder: str, split: str, label: str) -> np.ndarray:
  source = _opened(folder, split)
  labels = np.empty(len(source), np.int64)

  def fill(start: int) -> int:
    chunk = source.__getitems__(range(start, min(start + CHUNK, len(source))))
    labels[start : start + len(chunk)] = [example[label] for example in chunk]
    return len(chunk)

  in_chunks(fill, len(source), f"reading the labels of {split}")
  return labels

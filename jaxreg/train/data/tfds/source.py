"""Image classification sets of TensorFlow Datasets, read without TensorFlow and cached as arrays of bytes."""

import contextlib
import functools
import itertools
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from jaxreg._extras import install
from jaxreg.train.data.chunks import CHUNK, in_chunks
from jaxreg.train.data.dataset import Dataset, Split
from jaxreg.train.data.images import decode
from jaxreg.train.data.subsets import hold_out
from jaxreg.train.data.tfds.cache import cached
from jaxreg.train.data.tfds.folder import default_data_dir, open_set, unreadable
from jaxreg.train.data.tfds.stream import streamed, undecoded
from jaxreg.train.errors import RunError, one_line, unknown
from jaxreg.train.files import local_path

ORDERS = ("stored", "id")
FRACTION = "data.tfds.validation_fraction"


def tfds(
  name: str = "cifar10",
  *,
  data_dir: str = "",
  manual_dir: str = "",
  train: str = "train",
  val: str = "",
  test: str = "test",
  validation_fraction: float = 0.1,
  image: str = "image",
  label: str = "label",
  order: str = "stored",
  num_train: int = 0,
  stream: bool = False,
) -> Dataset:
  """A set of https://www.tensorflow.org/datasets with one label per image and images of one size.

  With `stream`, the images may have any size. A prepared set (format array_record) is read as it is. A
  missing set is prepared first: mnist, cifar10 and cifar100 without TensorFlow, any other set if TensorFlow
  is installed (`pip install 'jaxreg[prepare]'`).

  Args:
    name: `name`, `name/configuration` or either with `:version`; without version the newest prepared one.
    data_dir: TFDS's data directory; empty for its default, `$TFDS_DATA_DIR` or `~/tensorflow_datasets`.
    manual_dir: for preparing, a folder with the official files; empty to download them.
    train, val, test: split expressions of TFDS, such as `train[:90%]` or `validation`.
    validation_fraction: without `val`, the fraction of `train` for validation, stratified, always the same.
    image, label: the names of the features.
    order: order of the examples of every split: `stored`, which is shuffled, or by the feature `id`, the
      original order of cifar10 and cifar100. Split expressions refer to the stored order.
    num_train: the number of training examples, the first of `train` in that order; without `val`,
      `validation_fraction` of the others is for validation; 0 for all.
    stream: decode images when a batch is made, cut as `data.stream` says, instead of all at the start; only
      the labels are read once, and cached. In stored order only.
  """
  root = local_path(data_dir or default_data_dir(), "data.tfds.data_dir")
  if manual_dir:
    manual_dir = str(local_path(manual_dir, "data.tfds.manual_dir"))
  builder, folder = open_set(name, root, manual_dir)
  num_classes, class_names = _classes(builder, image, label)
  _check_order(builder, order, stream)
  read = {}
  for field, split in (("train", train), ("val", val), ("test", test)):
    if split or field != "val":
      number = _num_examples(builder, field, split)
      if field != "train" and _overlap(builder, train, split):
        raise RunError(f"data.tfds.{field}: must have no example of train={train!r}, got {split!r}")
      told = functools.partial(_told, builder, folder, split)
      if stream:
        read[field] = streamed(folder, split, image, label, number, told)
        continue
      decode = functools.partial(_read, builder, split, image, label, order)
      what = (split, image, label) if order == "stored" else (split, image, label, order)
      read[field] = cached(folder, what, number, functools.partial(told, decode))
  if num_train:
    read |= _first(read["train"], num_train, read.get("val"), validation_fraction, class_names)
  elif not val:
    read["train"], read["val"] = hold_out(read["train"], validation_fraction, FRACTION, class_names)
  return Dataset(**read, num_classes=num_classes, scale=255.0, class_names=class_names)


def _classes(builder: Any, image: str, label: str) -> tuple[int, tuple[str, ...]]:
  """Checks that the features can be trained on; returns the number of classes and their names."""
  import tensorflow_datasets

  features = builder.info.features
  for field, feature, kind in (
    ("image", image, tensorflow_datasets.features.Image),
    ("label", label, tensorflow_datasets.features.ClassLabel),
  ):
    if feature not in features or not isinstance(features[feature], kind):
      allowed = [key for key in features if isinstance(features[key], kind)]
      raise RunError(
        f"data.tfds.{field}: {builder.name} has no {kind.__name__} feature {feature!r}; "
        f"it has {', '.join(allowed) or 'none of that kind'}"
      )
  if features[image].np_dtype != np.uint8:
    raise RunError(f"data.tfds.image: {image} of {builder.name} is {features[image].np_dtype}, not uint8")
  number, names = features[label].num_classes, tuple(features[label].names)
  return number, names if names != tuple(map(str, range(number))) else ()


def _check_order(builder: Any, order: str, stream: bool) -> None:
  if order == "id" and stream:
    raise RunError("data.tfds.order: must be stored with data.tfds.stream=True, got 'id'")
  if order not in ORDERS:
    raise unknown("data.tfds.order", order, ORDERS)
  if order == "id" and "id" not in builder.info.features:
    raise RunError(
      f"data.tfds.order: {builder.name} has no feature 'id' to be ordered by; it has "
      f"{', '.join(sorted(builder.info.features))}, and order=stored"
    )


def _first(
  examples: Split, number: int, val: Split | None, fraction: float, class_names: tuple[str, ...]
) -> dict[str, Split]:
  """The first `number` examples for training; `val`, or a fraction of the others, for validation."""
  most = len(examples) - (val is None)
  if not 0 < number <= most:
    raise RunError(f"data.tfds.num_train: must be 0 or at most {most}, got {number}")
  if val is None:
    _, val = hold_out(examples.take(slice(number, None)), fraction, FRACTION, class_names)
  return {"train": examples.take(slice(number)), "val": val}


def _num_examples(builder: Any, field: str, split: str) -> int:
  splits = builder.info.splits
  try:
    number = splits[split].num_examples
  except (ValueError, KeyError) as error:
    raise RunError(
      f"data.tfds.{field}: got {split!r}; {builder.name} has {', '.join(splits)}, and parts of them such as "
      f"{next(iter(splits), 'train')}[:90%] ({one_line(error)})"
    ) from error
  if number < 1:
    raise RunError(f"data.tfds.{field}: {split!r} of {builder.name} has no examples")
  return number


def _overlap(builder: Any, one: str, other: str) -> bool:
  """Whether two splits, or parts of splits, have an example in common."""
  parts = [builder.info.splits[split].file_instructions for split in (one, other)]
  return any(
    a.filename == b.filename and a.skip < b.skip + b.take and b.skip < a.skip + a.take
    for a, b in itertools.product(*parts)
  )


def _told(builder: Any, folder: Path, split: str, decode: Callable[[], Any]) -> Any:
  """Calls `decode`, and turns its errors into one line about the split."""
  try:
    with _no_advice():
      return decode()
  except RunError:
    raise
  except ImportError as error:
    raise RunError(f"data.tfds: cannot decode images ({error}); {install('train')}") from error
  except NotImplementedError as error:
    raise RunError(
      f"data.tfds.data_dir: {folder} is prepared as {builder.info.file_format.value}, which cannot be read "
      "without TensorFlow; remove that folder or give another (--config.data.tfds.data_dir=DIR), and it is "
      "prepared anew as array_record"
    ) from error
  except Exception as error:  # the record reader, Protocol Buffers and Pillow have no common error
    raise RunError(f"data.tfds: split {split}: {unreadable(folder, error)}") from error


def _read(builder: Any, split: str, image: str, label: str, order: str) -> Split:
  channels = builder.info.features[image].shape[-1]
  return _decode(undecoded(builder, split), f"{builder.name} {split}", channels, image, label, order)


def _decode(source: Any, what: str, channels: int, image: str, label: str, order: str) -> Split:
  # Not decoded by TFDS, which takes the lower 8 of 16 bits, and palette indices for colours.
  pixels = lambda example: np.atleast_3d(np.asarray(decode(example[image], channels)))
  images = np.empty((len(source), *pixels(source[0]).shape), np.uint8)
  labels = np.empty(len(source), np.int64)
  ids = [b""] * len(source)

  def fill(start: int) -> int:
    chunk = source.__getitems__(range(start, min(start + CHUNK, len(source))))
    for i, example in enumerate(chunk, start):
      decoded = pixels(example)
      if decoded.shape != images.shape[1:]:
        raise RunError(
          f"data.tfds.name: the images of {what} have unequal sizes, for instance {images.shape[1:]} and "
          f"{decoded.shape}; give a set with images of one size"
        )
      images[i], labels[i] = decoded, example[label]
      if order == "id":
        ids[i] = example["id"]
    return len(chunk)

  in_chunks(fill, len(source), f"decoding {what}")
  examples = Split(images, labels)
  return examples if order == "stored" else examples.take(np.argsort(np.array(ids), kind="stable"))


@contextlib.contextmanager
def _no_advice() -> Iterator[None]:
  """Silences TFDS, which recommends another decoder in the log of every run."""
  logger = logging.getLogger("absl")
  level = logger.level
  logger.setLevel(logging.ERROR)
  try:
    yield
  finally:
    logger.setLevel(level)

"""The source `tfds`: finds a set of TensorFlow Datasets, prepares it if it is missing, and checks it."""

import contextlib
import dataclasses
import itertools
import os
import re
from pathlib import Path
from typing import Any, Literal

import numpy as np

from jaxreg._atomic_files import in_bucket
from jaxreg._extras import install
from jaxreg.train.data.bounded_files import ERRORS, read_npz
from jaxreg.train.data.dataset import Dataset, Split, unread_line
from jaxreg.train.data.subsets import ALL, Subset, hold_out
from jaxreg.train.data.tfds.records import Reader, arrays, damaged, numbers, reading, streamed
from jaxreg.train.errors import ArgumentError, RunError, one_line
from jaxreg.train.sealed_tables import parse_table
from jaxreg.train.staged import staged
from jaxreg.train.user_paths import local_path, user_path


def tfds(
  *,
  name: str = "cifar10",
  data_dir: str = "",
  manual_dir: str = "",
  train: str = "train",
  val: str = "",
  test: str = "test",
  image: str = "image",
  label: str = "label",
  labels_file: str = "",
  labels_array: str = "labels",
  order: Literal["stored", "id"] = "stored",
  stream: bool = False,
  subset: Subset = ALL,
  validation_fraction: float = 0.1,
) -> Dataset:
  """Reads a set of https://www.tensorflow.org/datasets with one label per image and images of one size.

  With `stream`, the images may have any size. A prepared set (format array_record) is read as it is. A
  missing set is prepared first: mnist, cifar10 and cifar100 without TensorFlow, any other set if TensorFlow
  is installed (`pip install 'jaxreg[prepare]'`).

  Args:
    name: `name`, `name/configuration` or either with `:version`; without version the newest prepared one.
    data_dir: TFDS's data directory; empty for its default, `$TFDS_DATA_DIR` or `~/tensorflow_datasets`. A
      prepared set in a bucket is copied to this machine first.
    manual_dir: for preparing, a folder with the official files; empty for `downloads/manual` in the data
      directory, to which missing files of mnist, cifar10 and cifar100 are downloaded.
    train, val, test: split expressions of TFDS, such as `train[:90%]` or `validation`.
    image, label: the names of the features.
    labels_file: an `.npz` file with other labels of the training examples, such as those of CIFAR-10N, which
      people gave; validation examples that are held out of `train` have them, too. Empty: the set's own.
    labels_array: the array `[n]` of that file; entry i belongs to the `id` that ends in `_i`.
    order: order of the examples of every split: `stored`, which is shuffled, or by the feature `id`, the
      original order of cifar10 and cifar100. Split expressions refer to the stored order.
    stream: decode images when a batch is made, cut as `data.stream` says, instead of all at the start; only
      the labels are read once, and cached. In stored order only.
    subset: the examples that the run uses, the first `num_train` of `train` in that order.
    validation_fraction: without `val`, the fraction of `train` for validation, with `subset.num_train` of the
      others.
  """
  where = data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
  root: Any = user_path(where, "data_dir") if in_bucket(where) else local_path(where, "data_dir")
  if manual_dir:
    manual_dir = str(local_path(manual_dir, "manual_dir"))
  builder, folder = _open(name, root, manual_dir)
  num_classes, class_names = _classes(builder, image, label)
  _check_order(builder, order, stream)
  if labels_file and "id" not in builder.info.features:
    raise ArgumentError("labels_file", f"needs a set with the feature 'id', which {builder.name} lacks")
  read: dict[str, Split] = {}
  for field, split in (("train", train), ("val", val), ("test", test)):
    if split or field != "val":
      _check_split(builder, field, split, train)
      with reading(builder, folder, split):
        if stream:
          read[field] = streamed(folder, split, image, label)
        else:
          read[field] = arrays(builder, folder, split, image, label, order)
  if labels_file:
    other = _other_labels(labels_file, labels_array, num_classes, numbers(builder, folder, train, order))
    read["train"] = dataclasses.replace(read["train"], labels=other)
  others = read["train"]
  if num_train := subset.num_train:
    most = len(others) - (not val)
    if num_train > most:
      raise ArgumentError("subset.num_train", f"must be 0 or at most {most}, got {num_train}")
    read["train"], others = others.take(slice(num_train)), others.take(slice(num_train, None))
  if not val:
    kept, read["val"] = hold_out(others, validation_fraction, class_names)
    read["train"] = read["train"] if num_train else kept
  parts = (read[field] for field in ("train", "val", "test"))
  fields = {"train": train, "val": val, "test": test}
  named = {each for split in fields.values() for each in re.findall(r"[A-Za-z_][\w.-]*", split)}
  unread = [] if "all" in named else sorted({*builder.info.splits} - named)
  remarks = (unread_line(str(folder), unread, fields),) if unread else ()
  return Dataset(*parts, num_classes=num_classes, scale=255.0, class_names=class_names, remarks=remarks)


def _open(reference: str, root: Path, manual_dir: str) -> tuple[Reader, Path]:
  """Opens TFDS's reader of a data set and returns its folder too; prepares the set if need be."""
  parsed = re.fullmatch(r"(\w+)(?:/([^:/]+))?(?::((?:\d+|\*)(?:\.(?:\d+|\*)){2}))?", reference)
  if not parsed:
    raise ArgumentError(
      "name", f"got {reference!r}; give name, name/configuration, or either with :1.2.3 for a version"
    )
  name, config, version = (part or "" for part in parsed.groups())
  try:
    import tensorflow_datasets
  except ImportError as error:
    raise ArgumentError(
      "", f"needs tensorflow-datasets ({error}); {install('data')}, or train on digits, which needs none"
    ) from error
  try:
    folder = _find(root, name, config, version)
  except OSError as error:
    raise ArgumentError("data_dir", f"{root} cannot be read ({one_line(error)})") from error
  if in_bucket(root):
    if folder is None:
      raise ArgumentError("data_dir", f"{root / name} holds no prepared {reference}; copy one there")
    folder = staged(folder, "data_dir")
  if folder is None:
    from jaxreg.train.data.tfds.builders import prepare

    prepare(name, config, version, root, manual_dir)
    folder = _find(root, name, config, version)
  if folder is None:
    problem = f"{root / name} holds no prepared {reference}; remove it or what is in it"
    raise ArgumentError("data_dir", problem)
  try:
    _check_features(folder)
    return tensorflow_datasets.builder_from_directory(folder), folder
  except RunError:
    raise
  except Exception as error:  # its JSON files can be damaged in many ways
    raise damaged(folder, error) from error


def _find(root: Path, name: str, config: str, version: str) -> Path | None:
  """Finds the folder of the newest prepared version that matches; TFDS's own search may download."""
  from tensorflow_datasets.core import Version

  default = root / name / ".config" / "metadata.json"
  if not config and default.is_file():
    with contextlib.suppress(ValueError, KeyError, TypeError):  # a damaged file counts as missing
      named = parse_table(default.read_text())["default_config_name"]
      config = named if re.fullmatch(r"[^/:]+", named) else ""
  prepared = (info.parent for info in (root / name / config).glob("*/dataset_info.json"))
  versions = {Version(folder.name): folder for folder in prepared if Version.is_valid(folder.name)}
  matching = [each for each in versions if not version or each.match(version)]
  return versions[max(matching)] if matching else None


def _check_features(folder: Path) -> None:
  """Refuses features that are not TFDS's own: to read one, TFDS would import the module that it names."""
  file = folder / "features.json"
  inside: list[dict | list] = [parse_table(file.read_text())] if file.is_file() else []
  while inside:
    part = inside.pop()
    table = part if isinstance(part, dict) else {}
    inside += [value for value in table.values() or part if isinstance(value, dict | list)]
    for field in ("type", "pythonClassName", "python_class_name"):
      name = table.get(field)
      if isinstance(name, str) and not name.startswith("tensorflow_datasets.core.features."):
        raise ArgumentError(
          "",
          f"{file} names a feature that is not TFDS's own, {name!r}: to read it would run other people's "
          "program; give another set",
        )


def _classes(builder: Reader, image: str, label: str) -> tuple[int, tuple[str, ...]]:
  """Checks that the features can be trained on; returns the number of classes and their names."""
  import tensorflow_datasets

  features = builder.info.features
  for field, feature, kind in (
    ("image", image, tensorflow_datasets.features.Image),
    ("label", label, tensorflow_datasets.features.ClassLabel),
  ):
    if feature not in features or not isinstance(features[feature], kind):
      allowed = ", ".join(key for key in features if isinstance(features[key], kind))
      problem = f"{builder.name} has no {kind.__name__} feature {feature!r}"
      raise ArgumentError(field, f"{problem}; it has {allowed or 'none of that kind'}")
  if features[image].np_dtype != np.uint8:
    raise ArgumentError("image", f"{image} of {builder.name} is {features[image].np_dtype}, not uint8")
  number, names = features[label].num_classes, tuple(features[label].names)
  return number, names if names != tuple(map(str, range(number))) else ()


def _check_order(builder: Reader, order: str, stream: bool) -> None:
  if order == "id" and stream:
    raise ArgumentError("order", "must be stored with stream=True, got 'id'")
  if order == "id" and "id" not in builder.info.features:
    there = ", ".join(sorted(builder.info.features))
    problem = f"{builder.name} has no feature 'id' to be ordered by; it has {there}, and order=stored"
    raise ArgumentError("order", problem)


def _other_labels(path: str, name: str, num_classes: int, numbers: np.ndarray) -> np.ndarray:
  """Reads the labels of the examples with these numbers from a file."""
  file = local_path(path, "labels_file")
  if not file.is_file():
    raise ArgumentError("labels_file", f"got {path!r}, which is not a file")
  try:
    arrays = read_npz(file)
  except ERRORS as error:
    problem = f"{file} cannot be read ({one_line(error)}); give an undamaged .npz of plain arrays"
    raise ArgumentError("labels_file", problem) from error
  if name not in arrays:
    raise ArgumentError("labels_array", f"{file} has no array {name!r}; it has {', '.join(sorted(arrays))}")
  labels = arrays[name]
  if labels.ndim != 1 or labels.dtype.kind not in "iu" or len(labels) <= numbers.max():
    shape = f"{labels.dtype} {labels.shape}"
    needed = f"integers [n] for ids up to {numbers.max()}"
    raise ArgumentError("labels_array", f"{name} of {file} must be {needed}, got {shape}")
  labels = labels[numbers].astype(np.int64)
  if labels.min() < 0 or labels.max() >= num_classes:
    ends = f"{labels.min()} to {labels.max()}"
    raise ArgumentError("labels_array", f"{name} of {file} must lie in [0, {num_classes}), got {ends}")
  return labels


def _check_split(builder: Reader, field: str, split: str, train: str) -> None:
  """Checks that a split has examples and that validation and test share none with `train`."""
  splits = builder.info.splits
  try:
    number = splits[split].num_examples
  except (ValueError, KeyError) as error:
    raise ArgumentError(
      field,
      f"got {split!r}; {builder.name} has {', '.join(splits)}, and parts of them such as "
      f"{next(iter(splits), 'train')}[:90%] ({one_line(error)})",
    ) from error
  if number < 1:
    raise ArgumentError(field, f"{split!r} of {builder.name} has no examples")
  pairs = itertools.product(splits[split].file_instructions, splits[train].file_instructions)
  if field != "train" and any(
    a.filename == b.filename and a.skip < b.skip + b.take and b.skip < a.skip + a.take for a, b in pairs
  ):
    raise ArgumentError(field, f"must have no example of train={train!r}, got {split!r}")

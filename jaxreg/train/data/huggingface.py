"""What Hugging Face's `datasets` stores, read by pyarrow; nothing is downloaded."""

import dataclasses
import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from jaxreg.train.data.columns import Kind, Labels, Rows, dataset_of, fitted_labels, pyarrow
from jaxreg.train.data.dataset import Dataset
from jaxreg.train.data.images import Images, decode_all, is_grey
from jaxreg.train.errors import ArgumentError, one_line, unknown
from jaxreg.train.sealed_tables import Table
from jaxreg.train.user_paths import local_path

if TYPE_CHECKING:
  import pyarrow as arrow


def huggingface(
  *,
  path: str = "",
  train: str = "train",
  val: str = "",
  test: str = "test",
  inputs: tuple[str, ...] = (),
  labels: tuple[str, ...] = (),
  label_kind: Kind = "auto",
  weights: str = "",
  validation_fraction: float = 0.1,
  test_fraction: float = 0.2,
  standardize: bool = True,
  stream: bool = False,
) -> Dataset:
  """What `datasets.save_to_disk` wrote, or a folder of Parquet files; nothing is downloaded.

  A split's Parquet files are `SPLIT.parquet`, `SPLIT-*.parquet` or `SPLIT/*.parquet`, in the folder or in its
  folder `data`. The input is a column of images, or columns as of `csv`.

  Args:
    path: the folder.
    train, val, test: the names of the splits.
    inputs: the columns of the inputs; empty for the column of images, or for all but the labels and weights.
    labels: the column of the labels, or several; empty for the only `ClassLabel`, or else for `label`.
    label_kind: as of `csv`; a `ClassLabel` says it itself.
    weights: the column of the training examples' weights in the loss; "" weighs all alike.
    validation_fraction, test_fraction: with an empty `val` or `test`, the fraction of `train` for it,
      stratified, always the same; first that for the test.
    standardize: as of `csv`; images are divided by 255.
    stream: decode images, of any size, when a batch is made, cut as `data.stream` says, instead of all at the
      start.
  """
  folder = local_path(path, "path")
  if not path or not folder.is_dir():
    problem = "which is not a folder; give one of save_to_disk or of Parquet files"
    raise ArgumentError("path", f"got {path!r}, {problem}")
  found = _splits(folder)
  files: dict[str, tuple[str, ...]] = {}
  for part, name in {"train": train, "val": val, "test": test}.items():
    if name and name not in found:
      raise unknown(part, name, found)
    files |= {part: tuple(map(str, found[name]))} if name else {}
  features = _features(files["train"])
  classes = [name for name, feature in features.items() if feature.get("_type") == "ClassLabel"]
  target = labels or (tuple(classes) if len(classes) == 1 else ("label",))
  images = [name for name, feature in features.items() if feature.get("_type") == "Image"]
  images = [name for name in images if not inputs or name in inputs]
  if len(images) > 1 or (images and len(inputs) > 1):
    named = ", ".join(inputs or images)
    raise ArgumentError("inputs", f"must name one column of images or none, got {named}")
  names = _opened(files["train"]).column_names
  for argument, given in (("inputs", inputs), ("labels", target), ("weights", (weights,) if weights else ())):
    for name in given:
      if name not in names:
        raise unknown(argument, name, names)
  chosen = images or list(inputs) or [name for name in names if name not in (*target, weights)]
  needed = (*chosen, *target, *((weights,) if weights else ()))
  parts = {part: _rows_of(of_part, needed, images) for part, of_part in files.items()}
  if target[0] in classes and len(target) == 1:
    titles = tuple(features[target[0]]["names"])
    numbers = tuple(range(len(titles)))
    fitted = Labels(target, numbers, False, () if titles == tuple(map(str, numbers)) else titles)
  else:
    fitted = fitted_labels(parts["train"], target, label_kind)
  fractions = {"test": test_fraction, "val": validation_fraction}
  data = dataset_of(parts, chosen, fitted, weights, fractions, standardize)
  return data if stream or not images else _decoded(data)


def _splits(folder: Path) -> dict[str, list[Path]]:
  """The files of each split in a folder of save_to_disk or of Parquet files."""
  if (folder / "dataset_dict.json").is_file():
    folders = {name: folder / name for name in _json(folder / "dataset_dict.json")["splits"]}
  else:
    folders = {"train": folder} if (folder / "state.json").is_file() else {}
  found = {
    name: [inside / entry["filename"] for entry in _json(inside / "state.json")["_data_files"]]
    for name, inside in folders.items()
  }
  patterns = () if found else ("*.parquet", "*/*.parquet", "data/*/*.parquet")
  for file in sorted(file for pattern in patterns for file in folder.glob(pattern)):
    name = file.stem.split("-")[0] if file.parent in (folder, folder / "data") else file.parent.name
    found.setdefault(name, []).append(file)
  if not found:
    raise ArgumentError("path", f"{folder} has neither what datasets.save_to_disk writes nor Parquet files")
  return found


def _json(file: Path) -> Table:
  try:
    return json.loads(file.read_text())
  except (OSError, ValueError) as error:
    raise ArgumentError("path", f"{file} is damaged or missing ({one_line(error)})") from error


@functools.lru_cache(maxsize=8)
def _opened(files: tuple[str, ...]) -> "arrow.Table":
  """The table in these files, mapped into memory if they are Arrow's; each process opens them once."""
  arrow = pyarrow()
  from pyarrow import parquet

  def read(file: str) -> "arrow.Table":
    try:
      if file.endswith(".parquet"):
        return parquet.read_table(file)
      return arrow.ipc.open_stream(arrow.memory_map(file)).read_all()
    except (arrow.ArrowException, OSError) as error:
      raise ArgumentError("path", f"{file} is damaged or missing ({one_line(error)})") from error

  return arrow.concat_tables(map(read, files))


def _features(files: tuple[str, ...]) -> Table:
  """The features by which `datasets` describes the columns; {} if nothing does."""
  metadata = _opened(files).schema.metadata or {}
  return json.loads(metadata.get(b"huggingface", b"{}")).get("info", {}).get("features", {})


def _rows_of(files: tuple[str, ...], names: Sequence[str], images: Sequence[str]) -> Rows:
  """The columns of these names; those of images become `Images`."""
  table = _opened(files)
  where = functools.partial(_example, files)
  numbers = np.arange(table.num_rows)
  encoded = {name: Images(Encoded(files, name), numbers) for name in images}
  others = {name: _column(name, table[name], where) for name in names if name not in images}
  return Rows(encoded | others, where)


def _column(name: str, column: "arrow.ChunkedArray", where: Callable[[int], str]) -> np.ndarray:
  """Numbers as float64, NaN where one is missing, `[n]` or `[n, ...]`; or texts, and None."""
  types, kind = pyarrow().types, column.type
  storage = getattr(kind, "storage_type", kind)
  if types.is_dictionary(kind):
    column, storage = column.cast(kind.value_type), kind.value_type
  if types.is_string(storage) or types.is_large_string(storage):
    return np.array(column.to_pylist(), object)
  values = column.to_pylist()
  try:
    numbers = np.array([np.nan if value is None else value for value in values], np.float64)
  except (TypeError, ValueError) as error:
    raise ArgumentError(
      "inputs", f"must be columns of numbers, texts, images or lists of one length; {name!r} has {kind}"
    ) from error
  if np.isinf(numbers).any():
    row = int(np.isinf(numbers).reshape(len(numbers), -1).any(1).argmax())
    raise ArgumentError("path", f"{where(row)}: column {name!r} has an infinite value")
  return numbers


@dataclasses.dataclass(frozen=True)
class Encoded:
  """The encoded images in a column of files."""

  files: tuple[str, ...]
  column: str  # its name

  def read(self, number: int) -> bytes:
    value = _opened(self.files)[self.column][number].as_py()
    if not value or value["bytes"] is None:
      raise ValueError("the file has no image there" + (", but only a path" if value else ""))
    return value["bytes"]

  def name(self, number: int) -> str:
    return _example(self.files, number)

  def fingerprint(self, numbers: np.ndarray) -> tuple[np.ndarray, ...]:
    names = "\0".join((*(Path(file).name for file in self.files), self.column))
    return np.frombuffer(names.encode(), np.uint8), self._stat("st_size"), numbers

  def stamp(self, numbers: np.ndarray) -> tuple[np.ndarray, ...]:
    where = np.frombuffer(str(Path(self.files[0]).resolve()).encode(), np.uint8)
    return where, self._stat("st_mtime_ns"), *self.fingerprint(numbers)

  def _stat(self, what: str) -> np.ndarray:
    return np.array([getattr(Path(file).stat(), what) for file in self.files], np.int64)


def _decoded(data: Dataset) -> Dataset:
  """The data with all images decoded; they have one size, and are grey if the first is."""
  first = data.train.inputs
  first.decoded(0)  # a damaged image is an error of one line
  channels = 1 if is_grey(first.store.read(int(first.numbers[0]))) else 3

  def of(images: Images) -> np.ndarray:
    decode = lambda positions: [images.decoded(position, channels) for position in positions]
    return decode_all(decode, len(images), first.decoded(0, channels), "decoding images")

  splits = {
    name: dataclasses.replace(split, inputs=of(split.inputs)) for name, split in data.splits().items()
  }
  return dataclasses.replace(data, **splits)


def _example(files: Sequence[str], number: int) -> str:
  return f"{Path(files[0]).parent}, example {number}"

"""Data sets of the package `datasets`: on disk, in files that it reads, or on the Hugging Face hub."""

import dataclasses
import functools
import glob
import json
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxreg._atomic_files import in_bucket
from jaxreg._extras import install
from jaxreg.train.data.bounded_files import check_table
from jaxreg.train.data.dataset import Dataset, unread_line
from jaxreg.train.data.images import Images, decode_all, depth_remark, is_grey
from jaxreg.train.data.tables import (
  EXACT,
  NAMELESS,
  Frame,
  Kind,
  Rows,
  Series,
  check_distinct,
  check_named,
  check_roles,
  check_texts,
  make_dataset,
  names_in,
  pandas,
)
from jaxreg.train.errors import ArgumentError, one_line, shortened, unknown
from jaxreg.train.user_paths import local_path

if TYPE_CHECKING:
  import datasets

# Types of columns, by the names of `datasets`.
LISTS = ("List", "LargeList", "Array2D", "Array3D", "Array4D", "Array5D")
NUMBERS = ("int", "uint", "float", "decimal", "bool")


def huggingface(
  *,
  path: str = "",
  configuration: str = "",
  train: str = "train",
  val: str = "",
  test: str = "test",
  labels: tuple[str, ...] = (),
  label_kind: Kind = "auto",
  weights: str = "",
  leave_out: tuple[str, ...] = (),
  text: tuple[str, ...] = (),
  stream: bool = False,
  validation_fraction: float = 0.1,
) -> Dataset:
  """Reads a data set of the package `datasets`: what `save_to_disk` wrote, a folder of Parquet, or a name.

  A name on the Hugging Face hub is downloaded into the cache of `datasets`. The input is the column of
  images, or all columns but the labels and weights, as `csv` takes them.

  Args:
    path: the folder, or the name on the hub.
    configuration: the configuration of a data set that has several.
    train, val, test: the names of the splits. Without `test`, a fifth of `train` is for the test, and without
      `val` `validation_fraction` of the others for validation.
    labels: the column of the labels, or several; empty for the only `ClassLabel`, or else for `label`.
    label_kind: as of `csv`; a `ClassLabel` says it itself.
    weights, leave_out, text: as of `csv`.
    stream: decode images, of any size, when a batch is made, cut as `data.stream` says, instead of all at the
      start.
    validation_fraction: the fraction of `train` for validation.
  """
  copied = str(local_path(path, "path")) if in_bucket(path) else path
  if not path or (path[0] in "/.~" and not Path(path).expanduser().exists()):
    problem = "which is not there; give a folder of datasets or Parquet files, or a name on the hub"
    raise ArgumentError("path", f"got {path!r}, {problem}")
  stored = _open(copied, configuration, path)
  from datasets import Image

  wanted = {part: name for part, name in {"train": train, "val": val, "test": test}.items() if name}
  for part, name in wanted.items():
    if name not in stored:
      raise unknown(part, name, map(str, stored))
    if not len(stored[name]):
      raise ArgumentError(part, f"split {name!r} of {path} has no examples; give another")
  features = stored[train].features
  classes, images = (
    [name for name, feature in features.items() if _type_of(feature) == kind and name not in leave_out]
    for kind in ("ClassLabel", "Image")
  )
  target = labels or (tuple(classes) if len(classes) == 1 else ("label",))
  check_roles(features, target, weights, leave_out, text)
  if len(images) > 1:
    raise ArgumentError("leave_out", f"must leave at most one column of images, got {', '.join(images)}")
  nameless = [name for name in features if NAMELESS.fullmatch(name)]
  names = [name for name in features if name not in (*leave_out, *nameless)]
  names = [name for name in features if name in (*target, weights)] if images else names
  parts: dict[str, Rows] = {}
  for part, name in wanted.items():
    split, where = stored[name], f"{path}, split {name}, example"
    read = [each for each in names if part == "train" or each != weights]
    _check_alike(part, {each: features[each] for each in (*read, *images)}, split.features, (train, name))
    parts[part] = _rows(part, split.select_columns(read), where, target, text)
    if images:
      encoded = Encoded(split.select_columns(images).cast_column(images[0], Image(decode=False)), where)
      parts[part] = dataclasses.replace(parts[part], images=Images(encoded, np.arange(len(split))))
  left_out = [*leave_out, *([f"columns without a name ({len(nameless)})"] if nameless else [])]
  # A column of lists has become several.
  columns = parts["train"].frame.columns
  for part, rows in parts.items():
    if differ := sorted(({*columns} ^ {*rows.frame.columns}) - {weights}):
      column = differ[0].rpartition("[")[0]
      raise ArgumentError(
        part,
        f"column {column!r} has lists of another length in split {wanted[part]!r} than in {train!r}; "
        "leave it out",
      )
  target = tuple(each for name in target for each in columns if each == name or each.startswith(f"{name}["))
  data = make_dataset(parts, target, label_kind, weights, text, validation_fraction, ", ".join(left_out))
  unread = [str(name) for name in stored if name not in wanted.values()]
  fields = {"train": train, "val": val, "test": test}
  lines = [unread_line(f"{path}", unread, fields)]
  for part, rows in parts.items():
    if rows.images is not None:
      lines.append(depth_remark(rows.images.encoded, len(rows.images), f"split {part}: "))
  data = dataclasses.replace(data, remarks=(*data.remarks, *filter(None, lines)))
  return _decoded(data) if images and not stream else data


def read_parquet_rows(columns: Mapping[str, Any], file: Path) -> Frame:
  """Reads the columns that a trained model takes from a Parquet file."""
  split = _open_parquet(file)
  names = names_in(columns)
  lists = {name.rpartition("[")[0] for name in names if name.endswith("]")}
  there = [name for name in split.features if name in names or name in lists]
  missing = [name for name in names if name not in there and name.rpartition("[")[0] not in there]
  check_named(split.features, inputs=missing)
  frame = _rows("inputs", split.select_columns(there), f"{file}, row", (), columns["categories"]).frame
  check_named(frame, inputs=names)
  return frame


def _open_parquet(file: Path) -> "datasets.Dataset":
  try:
    import datasets
  except ImportError as error:
    raise ArgumentError("", f"needs the package datasets ({error}); {install('data')}") from error
  from pyarrow import parquet

  _quieten()
  try:
    check_parquet([file])
    if parquet.read_metadata(file).num_rows:  # without rows, `datasets` fails
      # `datasets` takes a path for a pattern.
      return datasets.Dataset.from_parquet(glob.escape(str(file)))  # pyright: ignore[reportReturnType]
  except Exception as error:  # readers of Parquet have no common error
    raise ArgumentError("inputs", f"{file} cannot be read as Parquet ({one_line(error)})") from error
  raise ArgumentError("inputs", f"{file} has no rows")


def _open(path: str, configuration: str, shown: str) -> "datasets.DatasetDict":
  """Opens the splits of a folder or of a name, without a bar for each file; errors call it `shown`."""
  try:
    import datasets
  except ImportError as error:
    raise ArgumentError("", f"needs the package datasets ({error}); {install('data')}") from error
  _quieten()
  folder = Path(path).expanduser()
  saved = any((folder / name).is_file() for name in ("dataset_dict.json", "state.json"))
  whole = str(folder.resolve()) if folder.exists() and not saved else ""
  if glob.escape(whole) != whole:
    problem = f"the package datasets takes {whole!r} for a pattern; give a path without * ? ["
    raise ArgumentError("path", problem)
  try:
    if saved:
      stored: Any = _load_saved(folder)
    else:
      check_parquet(folder.rglob("*.parquet") if folder.is_dir() else [])
      stored = datasets.load_dataset(str(folder) if folder.exists() else path, configuration or None)
  except ArgumentError:
    raise
  except Exception as error:  # a hub, its client and readers of many formats have no common error
    cause = one_line(error.__cause__ or error)
    raise ArgumentError(
      "path",
      f"{shown!r} cannot be read by the package datasets ({cause}); give what its save_to_disk "
      "wrote, a folder of Parquet files, or, with a network, a name on the hub; or use data.name=csv for CSV",
    ) from error
  stored = stored if isinstance(stored, datasets.DatasetDict) else datasets.DatasetDict({"train": stored})
  # Images may have a CSV file of labels beside them; then the builder is that of images.
  if not saved and folder.exists() and next(iter(stored.values())).info.builder_name == "csv":
    problem = f"{shown} has CSV files, whose cells must not be guessed"
    raise ArgumentError("path", f"{problem}; use data.name=csv, or write Parquet files")
  return stored


def _quieten() -> None:
  """Hides the bars of the package `datasets`, and its log, whose errors are raised as well."""
  import datasets

  datasets.disable_progress_bars()
  datasets.logging.set_verbosity(logging.CRITICAL)


def _load_saved(folder: Path) -> Any:
  """Loads what `save_to_disk` wrote; `datasets` itself cannot read a split without examples."""
  import datasets

  table = folder / "dataset_dict.json"
  if not table.is_file():
    return datasets.load_from_disk(folder)
  splits: Any = {}
  for name in json.loads(table.read_text())["splits"]:
    empty = not json.loads((folder / name / "state.json").read_text())["_data_files"]
    splits[name] = datasets.Dataset.from_dict({}) if empty else datasets.load_from_disk(folder / name)
  return datasets.DatasetDict(splits)


def check_parquet(files: Iterable[Path]) -> None:
  """Checks that Parquet files fit into memory, and that they number the classes of a column alike.

  A few packed bytes may hold very many values. `datasets` takes the class names of the first file for all.
  """
  from pyarrow import parquet

  total = 0
  classes: dict[str, tuple[Path, list[str]]] = {}
  for file in files:
    described = parquet.read_metadata(file)
    for name, titles in _class_names((described.metadata or {}).get(b"huggingface", b"{}")).items():
      first, known = classes.setdefault(name, (file, titles))
      if not _begin_alike(known, titles):
        raise ArgumentError(
          "path",
          f"column {name!r} has the classes {shortened(', '.join(titles), 80)} in {file}, and "
          f"{shortened(', '.join(known), 80)} in {first}; write both with one ClassLabel",
        )
    groups = [described.row_group(number) for number in range(described.num_row_groups)]
    total += max(
      8 * described.num_rows * described.num_columns, sum(group.total_byte_size for group in groups)
    )
    check_table(total)


def _class_names(stored: bytes) -> dict[str, list[str]]:
  """Returns the class names of each column that the package `datasets` described in a Parquet file."""
  features = json.loads(stored).get("info", {}).get("features") or {}
  return {
    name: feature["names"]
    for name, feature in features.items()
    if isinstance(feature, dict) and feature.get("_type") == "ClassLabel"
  }


def _begin_alike(first: Sequence[str], second: Sequence[str]) -> bool:
  """Tells whether two lists of class names number their common classes alike; one may be longer."""
  return all(a == b for a, b in zip(first, second, strict=False))


def _check_alike(
  part: str, expected: Mapping[str, Any], features: Mapping[str, Any], splits: tuple[str, str]
) -> None:
  """Checks that a split has the columns of the training split, with values of the same kind."""
  train, name = splits
  for column, feature in expected.items():
    if column not in features:
      raise ArgumentError(part, f"split {name!r} has no column {column!r}, which split {train!r} has")
    other = features[column]
    kinds = {_kind(feature), _kind(other)} - {"null"}  # a column without values goes with any
    if len(kinds) > 1 or (
      _kind(feature) == _kind(other) == "ClassLabel" and not _begin_alike(feature.names, other.names)
    ):
      raise ArgumentError(
        part,
        f"column {column!r} has {shortened(str(other), 80)} in split {name!r}, and "
        f"{shortened(str(feature), 80)} in split {train!r}; store both alike",
      )


def _kind(feature: object) -> str:
  """Returns what a column holds: numbers, texts, a list of numbers, or the name of another type."""
  kind, dtype = _type_of(feature), str(getattr(feature, "dtype", ""))
  if kind in LISTS:
    element = getattr(feature, "feature", None)
    return "list" if kind.startswith("Array") or (_kind(element) == "number") else f"list of {element}"
  if kind != "Value":
    return kind or "columns"
  return "number" if dtype.startswith(NUMBERS) else "text" if dtype.endswith("string") else dtype


def _rows(
  part: str, split: "datasets.Dataset", where: str, target: Collection[str], text: Collection[str]
) -> Rows:
  """Reads the rows of a split: its columns of numbers, texts, classes and lists of numbers."""
  from pyarrow import ArrowException

  # Integers stay integers where some are missing; as floats, large ones would lose digits.
  table: Any = split.with_format("arrow")[:]
  columns: dict[str, Any] = {}
  titles: dict[str, tuple[str, ...]] = {}
  for name, feature in split.features.items():
    try:
      kind, values = _kind(feature), table[name].to_pandas(integer_object_nulls=True).astype(object)
    except (ArrowException, ValueError) as error:
      problem = f"column {name!r} cannot be read ({one_line(error)}); its text must be UTF-8: write it again"
      raise ArgumentError(part, problem) from error
    is_class = kind == "ClassLabel"
    if is_class and name not in target:
      values, kind = values.map(dict(enumerate(feature.names))), "text"
    if kind == "text" or (
      name in text and _type_of(feature) in ("Value", "ClassLabel") and "binary" not in kind
    ):
      columns[name] = values.map(str, na_action="ignore")
      if part == "train" and name not in text and not is_class and values.notna().any():
        check_texts(name, columns[name].dropna(), lambda row: f"{where} {row}")
      continue
    if is_class or getattr(feature, "dtype", "") == "bool":
      titles[name] = tuple(feature.names) if is_class else ("False", "True")
    numbers = _numbers(part, name, values, feature)
    if np.isinf(numbers).any():
      row = int(np.isinf(numbers).any(axis=1).argmax())
      argument = "inputs" if part == "inputs" else "path"
      raise ArgumentError(argument, f"{where} {row}: column {name!r} has an infinite value")
    if kind != "list":
      columns[name] = numbers[:, 0]
      continue
    for k, column in enumerate(numbers.T):
      if f"{name}[{k}]" in split.features:
        raise ArgumentError("leave_out", f"columns {name!r} and '{name}[{k}]' have one name; leave one out")
      if part == "train" and name not in target and np.isnan(column).all():
        problem = f"the lists of column {name!r} have no value at {k} in training; leave it out"
        raise ArgumentError("leave_out", problem)
      columns[f"{name}[{k}]"] = column
  return Rows(pandas().DataFrame(columns), lambda row: f"{where} {row}", part, titles)


def _type_of(feature: object) -> str:
  """Returns the name of a column's type; "" for a column of columns."""
  return getattr(feature, "_type", "")


def _numbers(part: str, name: str, values: Series, feature: object) -> np.ndarray:
  """Converts a column to float64: `[n, 1]`, or `[n, k]` for lists; NaN where a number is missing.

  A model that is trained takes its columns as they are: in the part `inputs`, none can be left out.
  """
  try:
    if (kind := _kind(feature)) not in ("number", "list", "ClassLabel", "null"):
      raise TypeError(f"its values are {kind}")
    there = [np.shape(value) for value in values if value is not None]
    missing = np.full(there[0] if there else (), np.nan)
    rows = [missing if value is None else value for value in values]
    numbers = np.array(rows, np.float64).reshape(len(rows), -1)
    if not numbers.shape[1]:
      raise ValueError("it has empty lists")
  except (TypeError, ValueError) as error:
    argument, advice = ("inputs", "store numbers") if part == "inputs" else ("leave_out", "leave it out")
    problem = f"column {name!r} has {feature}, and inputs are numbers, texts, images or lists of one length"
    raise ArgumentError(argument, f"{problem}; {advice}") from error
  if part != "inputs" and np.nanmax(np.abs(numbers), initial=0) >= EXACT:
    check_distinct(name, numbers, np.array(rows, object).reshape(numbers.shape))
  return numbers


@dataclasses.dataclass(frozen=True)
class Encoded:
  """The encoded images in the only column of a split."""

  split: "datasets.Dataset"
  where: str  # what a message calls an example, without its number

  def read(self, number: int) -> bytes:
    ((name, value),) = self.split[number].items()
    if value is None:
      raise ValueError(f"column {name!r} has no image there")
    if value["bytes"] is None and not Path(value["path"] or "").is_file():
      raise ValueError(f"{value['path']} is not a file")
    return Path(value["path"]).read_bytes() if value["bytes"] is None else value["bytes"]

  def name(self, number: int) -> str:
    return f"{self.where} {number}"

  def fingerprint(self, numbers: np.ndarray) -> tuple[np.ndarray, ...]:
    names = "\0".join(file.name for file in self._files())
    return np.frombuffer(names.encode(), np.uint8), self._stat("st_size"), numbers

  def stamp(self, numbers: np.ndarray) -> tuple[np.ndarray, ...]:
    where = "\0".join(str(file.resolve()) for file in self._files())
    return np.frombuffer(where.encode(), np.uint8), self._stat("st_mtime_ns"), *self.fingerprint(numbers)

  def _files(self) -> list[Path]:
    return [Path(file["filename"]) for file in self.split.cache_files]

  def _stat(self, what: str) -> np.ndarray:
    return np.array([getattr(file.stat(), what) for file in self._files()], np.int64)


def _decoded(data: Dataset) -> Dataset:
  """Decodes all images, which must have one size; they are grey if the first one is."""
  first = data.train.inputs
  first.decoded(0)  # a damaged image is an error of one line
  channels = 1 if is_grey(first.encoded(0)) else 3
  splits = {}
  for name, split in data.splits().items():
    images: Images = split.inputs
    decode = functools.partial(_decode, images, channels)
    pixels = decode_all(decode, len(images), first.decoded(0, channels), "decoding images")
    splits[name] = dataclasses.replace(split, inputs=pixels)
  return dataclasses.replace(data, **splits)


def _decode(images: Images, channels: int, positions: range) -> list[Any]:
  return [images.decoded(position, channels) for position in positions]

"""Columns of a table become inputs and labels: numbers as they are, texts as one input for each category."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, Literal

import numpy as np

from jaxreg._extras import install
from jaxreg.train.data.dataset import Dataset, Split, check_apart, known, moments
from jaxreg.train.data.images import Images
from jaxreg.train.data.subsets import hold_out
from jaxreg.train.errors import ArgumentError, shortened, unknown

MOST_CATEGORIES = 1000  # of a column; more are likely names or identifiers
MANY_INTEGERS = 20  # a label with so many different integers may be meant as a number
Kind = Literal["auto", "classes", "numbers"]
Where = Callable[[int], str]  # what a message calls the row of this position


@dataclasses.dataclass(frozen=True)
class Column:
  """How a column becomes inputs, by the training examples."""

  name: str
  categories: tuple[str, ...]  # the texts in it, sorted; () if it holds numbers
  size: int = 1  # how many numbers each row has
  mean: float = 0.0  # of the numbers, in place of missing ones

  @property
  def names(self) -> list[str]:
    """A name for each of its inputs."""
    if self.categories:
      return [f"{self.name}={category}" for category in self.categories]
    return [self.name] if self.size == 1 else [f"{self.name}[{k}]" for k in range(self.size)]

  def inputs(self, values: np.ndarray) -> tuple[np.ndarray, str]:
    """The inputs `[n, k]` of values, and a line on what is missing or new, or ""."""
    if not self.categories:
      missing = np.isnan(values)
      told = f"{missing.sum()} in {self.name} (their mean {self.mean:.4g} is taken)" if missing.any() else ""
      return np.where(missing, self.mean, values).reshape(len(values), -1), told
    number = {category: k for k, category in enumerate(self.categories)}
    found = np.array([number.get(value, -1) for value in values])
    new = sum(value is not None for value in values[found < 0])
    told = f"{(found < 0).sum()} in {self.name}" if (found < 0).any() else ""
    return found[:, None] == np.arange(len(self.categories)), told + f" ({new} new in it)" * bool(new)


def fitted(name: str, values: np.ndarray) -> Column:
  """The column of these training values: numbers, or texts with None where one is missing."""
  there = values[~np.isnan(values)] if values.dtype.kind == "f" else values[values != None]  # noqa: E711
  if not there.size:
    raise ArgumentError("leave_out", f"column {name!r} has no value in training; leave it out")
  if values.dtype.kind == "f":
    return Column(name, (), values[0].size, float(there.mean()))
  categories = sorted({*there})
  if len(categories) > min(MOST_CATEGORIES, max(2, len(values) // 2)):
    raise ArgumentError(
      "leave_out",
      f"column {name!r} has {len(categories)} different texts in {len(values)} rows, such as "
      f"{shortened(categories[0], 40)!r}; leave it out",
    )
  return Column(name, tuple(categories))


@dataclasses.dataclass(frozen=True)
class Labels:
  """How columns become labels, by the training examples."""

  names: tuple[str, ...]  # of the columns
  classes: tuple[str, ...] | tuple[int, ...]  # of one column of classes, its values, sorted; else ()
  numbers: bool  # whether the labels are numbers
  titles: tuple[str, ...] = ()  # the names of the classes, if their values are not

  @property
  def num_classes(self) -> int:
    """As `Dataset` has it: 0 for numbers, 2 for several labels that are each no or yes."""
    return 0 if self.numbers else len(self.classes) or 2

  @property
  def class_names(self) -> tuple[str, ...]:
    """The names of the classes, or of the labels."""
    if self.classes == tuple(range(len(self.classes))):
      return self.titles or (() if self.classes else self.names)
    return tuple(map(str, self.classes))

  def of(self, rows: "Rows") -> np.ndarray:
    """The labels `[n]`, or `[n, labels]` if there are several columns."""
    values = [*rows.of(self.names, "labels").values()]
    if self.classes:
      number = {value: k for k, value in enumerate(self.classes)}
      found = np.array([number.get(value, -1) for value in values[0].tolist()], np.int64)
    else:
      found = np.stack(values, axis=1) if len(values) > 1 else values[0]
    if found.ndim == 1 and not (clear := known(found)).all():
      row = int((~clear).argmax())
      value = values[0][row]
      missing = value is None or value != value
      problem = "no label" if missing else f"{shortened(str(value), 40)!r}, which no training example has"
      raise ArgumentError(
        "labels", f"{rows.where(row)}: column {self.names[0]!r} has {problem}; mend or remove the row"
      )
    if self.numbers:
      return found.astype(np.float32)
    return np.where(known(found), found, -1).astype(np.int64)


def fitted_labels(rows: "Rows", names: tuple[str, ...], kind: Kind) -> Labels:
  """The labels that training columns hold: texts and integers are classes, unless `kind` says numbers."""
  columns = rows.of(names, "labels")
  if len(names) != 1:
    return _several(columns, names, kind)
  name = names[0]
  values = columns[name]
  if values.dtype.kind != "f":
    if kind == "numbers":
      problem = f"must be classes for column {name!r}, which holds texts, got 'numbers'"
      raise ArgumentError("label_kind", problem)
    return Labels(names, tuple(sorted({value for value in values if value is not None})), False)
  there = np.unique(values[~np.isnan(values)])
  whole = values.ndim == 1 and bool((there == np.round(there)).all())
  if kind == "numbers" or not whole:
    if kind == "classes":
      problem = f"must be numbers for column {name!r}, which holds fractions, got 'classes'"
      raise ArgumentError("label_kind", problem)
    return Labels(names, (), True)
  if kind == "auto" and len(there) > max(MANY_INTEGERS, len(values) // 20):
    raise ArgumentError(
      "label_kind",
      f"must be numbers or classes, got 'auto': column {name!r} has {len(there)} different integers in "
      f"{len(values)} rows, and could be either",
    )
  return Labels(names, tuple(int(value) for value in there), False)


def _several(columns: Mapping[str, np.ndarray], names: tuple[str, ...], kind: Kind) -> Labels:
  for name in names:
    if columns[name].dtype.kind != "f" or columns[name].ndim > 1:
      raise ArgumentError(
        "labels", f"several labels must be numbers, or each 0 or 1; column {name!r} is neither"
      )
  values = np.stack([columns[name] for name in names])
  binary = bool(np.isin(values[~np.isnan(values)], (0, 1)).all())
  if kind == "classes" and not binary:
    raise ArgumentError(
      "label_kind", f"must be numbers, unless each of {', '.join(names)} is 0 or 1, got 'classes'"
    )
  return Labels(names, (), kind == "numbers" or not binary)


@dataclasses.dataclass(frozen=True)
class Rows:
  """The rows of a part of a table."""

  columns: Mapping[str, Any]  # by name: float64, where NaN is missing, texts, where None is, or `Images`
  where: Where

  def __len__(self) -> int:
    return len(next(iter(self.columns.values())))

  def take(self, index: np.ndarray) -> "Rows":
    """The rows at `index`."""
    columns = {name: values[index] for name, values in self.columns.items()}
    return Rows(columns, lambda row: self.where(int(index[row])))

  def of(self, names: Sequence[str], argument: str) -> dict[str, np.ndarray]:
    """The columns of these names, which the argument gives."""
    for name in names:
      if name not in self.columns:
        raise unknown(argument, name, self.columns)
    return {name: self.columns[name] for name in names}


def divided(parts: Mapping[str, Rows], labels: Labels, fractions: Mapping[str, float]) -> dict[str, Rows]:
  """The parts, with those that are missing held out of `train`, always the same: a fraction of it each."""
  parts = dict(parts)
  for part, fraction in fractions.items():
    if part not in parts:
      train = parts["train"]
      numbers = Split(np.arange(len(train))[:, None], labels.of(train))
      try:
        kept, held = hold_out(numbers, fraction, labels.class_names)
      except ArgumentError as error:
        raise ArgumentError(f"{part}_fraction".replace("val_", "validation_"), error.problem) from error
      parts["train"], parts[part] = (train.take(each.inputs[:, 0]) for each in (kept, held))
  return parts


def dataset_of(
  parts: Mapping[str, Rows],
  names: Sequence[str],
  labels: Labels,
  weights: str,
  fractions: Mapping[str, float],
  standardize: bool,
) -> Dataset:
  """The data set with the inputs of these names."""
  if not names:
    raise ArgumentError("", "the table has no column for inputs beside its labels")
  parts = divided(parts, labels, fractions)
  inputs: dict[str, Any] = {part: rows.columns[names[0]] for part, rows in parts.items()}
  columns: list[Column] = []
  remarks: list[str] = []
  if not isinstance(inputs["train"], Images):
    columns = [fitted(name, values) for name, values in parts["train"].of(names, "inputs").items()]
    for part, rows in parts.items():
      blocks, told = zip(*(column.inputs(rows.columns[column.name]) for column in columns), strict=True)
      inputs[part] = np.concatenate(blocks, axis=1).astype(np.float32)
      if missing := ", ".join(filter(None, told)):
        remarks.append(shortened(f"split {part}: values are missing: {missing}", 500))
  splits = {part: Split(inputs[part], labels.of(rows)) for part, rows in parts.items()}
  if weights:
    of_rows = parts["train"].of((weights,), "weights")[weights]
    splits["train"] = dataclasses.replace(splits["train"], weights=of_rows)
  check_apart(splits["train"], test=splits["test"])
  mean, std = moments(np.asarray(inputs["train"])) if standardize and columns else ((), ())
  return Dataset(
    *(splits[part] for part in ("train", "val", "test")),
    num_classes=labels.num_classes,
    scale=1.0 if columns else 255.0,
    mean=mean,
    std=std,
    class_names=labels.class_names,
    input_names=tuple(name for column in columns for name in column.names),
    remarks=tuple(remarks),
  )


def pyarrow() -> ModuleType:
  """The package `pyarrow`."""
  try:
    import pyarrow
  except ImportError as error:
    raise ArgumentError("", f"needs pyarrow ({error}); {install('data')}") from error
  return pyarrow

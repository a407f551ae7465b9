"""Your own table: a CSV file, read by pyarrow."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from jaxreg.train.data.columns import Kind, Rows, dataset_of, fitted_labels, pyarrow
from jaxreg.train.data.dataset import Dataset
from jaxreg.train.errors import ArgumentError, one_line, shortened
from jaxreg.train.user_paths import local_path

MISSING = ("", "NA", "N/A", "NaN", "nan", "null", "NULL", "None")


def csv(
  *,
  path: str = "",
  val: str = "",
  test: str = "",
  labels: tuple[str, ...] = (),
  label_kind: Kind = "auto",
  weights: str = "",
  leave_out: tuple[str, ...] = (),
  missing: tuple[str, ...] = ("?",),
  delimiter: str = ",",
  validation_fraction: float = 0.1,
  test_fraction: float = 0.2,
  standardize: bool = True,
) -> Dataset:
  """Your own table: a CSV file, gzipped or not, whose first row names the columns.

  A column of numbers is an input, and so is each category of a column of texts: 1 where the row has it, else
  0. A missing number is the training mean; a missing or new category is 0 everywhere. A remark counts both.

  Args:
    path: the file of the training examples.
    val, test: files for validation and test, with the same columns.
    labels: the column of the labels, or several; empty for the last column. Several are each 0, 1 or missing,
      or numbers.
    label_kind: what a column of labels holds. `auto`: texts and few different integers are classes, other
      numbers are numbers.
    weights: the column of the training examples' weights in the loss; "" weighs all alike.
    leave_out: columns that are neither inputs nor labels, such as identifiers.
    missing: texts for a missing value, beside the empty one, NA, N/A, NaN, null and None.
    delimiter: the character between two values.
    validation_fraction, test_fraction: without `val` or `test`, the fraction of the training examples for it,
      stratified, always the same; first that for the test.
    standardize: subtract the mean of each input over the training examples, and divide by its standard
      deviation.
  """
  if len(delimiter) != 1:
    raise ArgumentError("delimiter", f"must be one character, got {delimiter!r}")
  parts: dict[str, Rows] = {}
  for part, name in {"train": path, "val": val, "test": test}.items():
    if not name and part != "train":
      continue
    argument, file = "path" if part == "train" else part, local_path(name, part)
    if not name or not file.is_file():
      raise ArgumentError(
        argument, f"got {name!r}, which is not a file; give a CSV file with names in its first row"
      )
    parts[part] = _read_csv(argument, file, delimiter, {*MISSING, *missing})
    if differ := sorted({*parts[part].columns} ^ {*parts["train"].columns}):
      raise ArgumentError(
        argument, f"{file} has other columns than {path}: only one of them has {differ[0]!r}"
      )
  train = parts["train"]
  target = labels or (list(train.columns)[-1],)
  others = [*train.of(leave_out, "leave_out"), *train.of((weights,) if weights else (), "weights"), *target]
  return dataset_of(
    parts,
    [name for name in train.columns if name not in others],
    fitted_labels(train, target, label_kind),
    weights,
    {"test": test_fraction, "val": validation_fraction},
    standardize,
  )


def _read_csv(argument: str, file: Path, delimiter: str, missing: set[str]) -> Rows:
  """The rows of a CSV file, in which the names of the columns are row 1."""
  arrow = pyarrow()
  from pyarrow import csv as reader

  bad = []
  parse = reader.ParseOptions(
    delimiter=delimiter, newlines_in_values=True, invalid_row_handler=lambda row: bad.append(row) or "skip"
  )
  read = reader.ReadOptions(use_threads=False)
  try:
    names = reader.open_csv(file, read, parse).schema.names
    as_texts = reader.ConvertOptions(
      column_types=dict.fromkeys(names, arrow.string()), strings_can_be_null=False
    )
    table = reader.read_csv(file, read, parse, as_texts)
  except (arrow.ArrowException, OSError, EOFError) as error:
    raise ArgumentError(argument, f"{file} cannot be read as CSV ({one_line(error)})") from error
  if bad:
    row = bad[-1]
    raise ArgumentError(
      argument,
      f"{file}, row {row.number}: has {row.actual_columns} values, and the first row names "
      f"{row.expected_columns} columns: {shortened(row.text, 60)!r}",
    )
  if len({*names}) < len(names):
    raise ArgumentError(argument, f"{file} names a column twice: {', '.join(names)}")
  if not table.num_rows:
    raise ArgumentError(argument, f"{file} has no rows")
  where = lambda row: f"{file}, row {row + 2}"
  columns = {name: _values(name, table[name].to_pylist(), missing, argument, where) for name in names}
  return Rows(columns, where)


def _values(
  name: str, column: Sequence[str], missing: set[str], argument: str, where: Callable[[int], str]
) -> np.ndarray:
  """Texts as float64 if they are numbers, NaN where one is missing; otherwise texts, and None."""
  texts = np.array([None if text.strip() in missing else text.strip() for text in column], object)
  there = np.flatnonzero(texts != None)  # noqa: E711
  numbers = np.full(len(texts), np.nan)
  wrong = []
  for row in there:
    try:
      numbers[row] = float(texts[row])
    except ValueError:
      wrong.append(row)
  if wrong and 2 * len(wrong) > len(there):
    return texts
  wrong += [row for row in there if np.isinf(numbers[row])]
  if wrong:
    raise ArgumentError(
      argument,
      f"{where(wrong[0])}: column {name!r} has {shortened(str(texts[wrong[0]]), 40)!r} among numbers; mend "
      "the row, or give the text in missing if it stands for no value",
    )
  return numbers

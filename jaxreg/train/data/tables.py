"""Tables: the columns of a CSV file, or of `datasets`, become inputs and labels."""

import codecs
import csv as csv_format
import dataclasses
import io
import re
import warnings
import zlib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from jaxreg._extras import install
from jaxreg.train.data.bounded_files import check_text_table, unpacked
from jaxreg.train.data.dataset import Dataset, Split, known, moments
from jaxreg.train.data.images import Images
from jaxreg.train.data.subsets import hold_out
from jaxreg.train.errors import ArgumentError, one_line, shortened, unknown
from jaxreg.train.sealed_tables import Table
from jaxreg.train.user_paths import local_path

Frame = Any  # a DataFrame of pandas, which is imported where it is used
Series = Any  # a column of one
MOST_CATEGORIES = 1000  # of a column; more are likely names or identifiers
EXACT = 2**53  # from here on, float64 does not hold all integers
MANY_INTEGERS = 20  # a label with at least this many different integers may be meant as a number
TEST_FRACTION = 0.2  # of the training rows, if no file or split is for the test
BLANK = "blank rows"
MISSING = ("", "?", "NA", "N/A", "NaN", "nan", "null", "NULL", "None")
FLAGS = {"True": 1.0, "true": 1.0, "TRUE": 1.0, "False": 0.0, "false": 0.0, "FALSE": 0.0}
NAMELESS = re.compile(r"|Unnamed: .*|__index_level_\d+__")  # names of columns without one, of pandas too
# A number as people write it: marks between thousands, symbols of units, an exponent of Fortran.
MARKED = re.compile(
  r"\W{0,3}[+-]?(\d{1,3}([.,'\u2019_ ])\d{3}(\2\d{3})*((?!\2)[.,]\d+)?|\d*[.,]?\d+)([eEdD][+-]?\d+)?\W{0,3}"
)
FRACTION = re.compile(r"[+-]?\d*[.,]\d+([eE][+-]?\d+)?")  # a number that numbers no column
Kind = Literal["auto", "classes", "numbers"]
CSV_FORM: dict[str, Any] = {"delimiter": ",", "decimal": ".", "encoding": "utf-8", "missing": MISSING}


class FormError(ArgumentError):
  """The error of a file that is written otherwise than the options say, and the advice to change them."""

  def __init__(self, argument: str, fact: str, advice: str):
    super().__init__(argument, f"{fact}; {advice}")
    self.fact = fact


def csv(
  *,
  path: str = "",
  val: str = "",
  test: str = "",
  labels: tuple[str, ...] = (),
  label_kind: Kind = "auto",
  weights: str = "",
  leave_out: tuple[str, ...] = (),
  text: tuple[str, ...] = (),
  missing: tuple[str, ...] = MISSING,
  delimiter: str = ",",
  decimal: Literal[".", ","] = ".",
  encoding: str = "utf-8",
  validation_fraction: float = 0.1,
) -> Dataset:
  """Reads your own table: a CSV file, gzipped or not, whose first row names the columns.

  A column of numbers, or of True and False, is an input. Each category of a column of texts is one, too: 1 in
  its rows, else 0. Texts that look like numbers, such as 12% or 1,234.5, are refused unless `text` names
  their column. Inputs are standardised by the training rows. A missing number becomes the training mean; a
  missing or new category is 0 everywhere. Columns without a name and rows without a value are left out.
  Remarks name the kinds of the columns, and count missing values.

  Args:
    path: the file of the training examples.
    val, test: files for validation and test, with the same columns, if not of `weights` or `leave_out`.
      Without `test`, a fifth of the training rows is for the test, and without `val` `validation_fraction` of
      the others for validation.
    labels: the column of the labels, or several; empty for the last one besides `weights`. Several are each
      0, 1 or missing, or numbers. Training rows of weight 0, or without any label, are left out.
    label_kind: what a column of labels holds. `auto`: texts, True and False, and few different integers are
      classes, other numbers are numbers.
    weights: the column of the training examples' weights in the loss; "" weighs all alike.
    leave_out: columns that are neither inputs nor labels, such as identifiers.
    text: columns of texts, also where these look like numbers.
    missing: all texts for a missing value; an empty cell is always missing. A number here, such as -99, is
      compared as a number.
    delimiter: the character between two values.
    decimal: the character before the decimals of a number.
    encoding: the encoding of the files, such as latin-1 or utf-16.
    validation_fraction: the fraction of the training rows for validation.
  """
  if len(delimiter) != 1:
    raise ArgumentError("delimiter", f"must be one character, got {delimiter!r}")
  parts: dict[str, Rows] = {}
  left_out = ""
  for part, name in {"train": path, "val": val, "test": test}.items():
    if not name and part != "train":
      continue
    argument, file = "path" if part == "train" else part, local_path(name, part)
    if not name or not file.is_file():
      raise ArgumentError(
        argument, f"got {name!r}, which is not a file; give a CSV file with names in its first row"
      )
    texts, odd = _read_csv(argument, file, delimiter, encoding)
    if part == "train":
      check_roles(texts, labels, weights, leave_out, text)
    kinds = {} if part == "train" else {name: x.dtype.kind == "f" for name, x in parts["train"].frame.items()}
    read = Reading(
      argument=argument,
      missing={"", *missing},
      decimal=decimal,
      text=dict.fromkeys([*text, *(name for name, is_number in kinds.items() if not is_number)], ()),
      where=lambda row, file=file: f"{file}, row {row + 1}",
      numbers={name for name, is_number in kinds.items() if is_number},
    )
    unread = leave_out if part == "train" else (*leave_out, weights)
    parts[part] = read.rows(texts.drop(columns=[*unread], errors="ignore"))
    if differ := sorted(({*parts[part].frame} ^ {*parts["train"].frame}) - {weights}):
      raise ArgumentError(
        argument, f"{file} has other columns than {path}: only one of them has {differ[0]!r}"
      )
    left_out = left_out or ", ".join([*leave_out, *odd])
  names = parts["train"].frame.columns
  data = make_dataset(
    parts,
    labels or tuple([name for name in names if name != weights][-1:]),
    label_kind,
    weights,
    text,
    validation_fraction,
    left_out,
  )
  if 2 * names.str.fullmatch(FRACTION).sum() <= len(names):
    return data
  first = shortened(", ".join(names), 60)
  remark = f"row 1 was taken for the names of the columns, {first}; if it is an example, write names above it"
  return dataclasses.replace(data, remarks=(*data.remarks, remark))


def pandas() -> Any:
  """Imports the package pandas."""
  try:
    import pandas
  except ImportError as error:
    raise ArgumentError("", f"needs pandas ({error}); {install('data')}") from error
  return pandas


def _read_csv(
  argument: str, file: Path, delimiter: str, encoding: str, wanted: Collection[str] = ()
) -> tuple[Frame, list[str]]:
  """Reads cells as texts, and lists what is left out: columns without a name, and blank rows.

  A file may have one column only if `wanted` names it, and numbers as names if `wanted` does.
  """
  read = pandas().read_csv
  try:
    check_text_table(file)
    _check_widths(file, delimiter, encoding)
    options: dict[str, Any] = {"sep": delimiter, "header": None, "dtype": str, "na_filter": False}
    cells = read(file, **options, encoding=encoding, skip_blank_lines=False)
  except (UnicodeError, LookupError) as error:
    fact = f"{file} is not text in {encoding} ({one_line(error)})"
    raise FormError("encoding", fact, "give its encoding, such as latin-1 or utf-16") from error
  except (ValueError, OSError, EOFError, zlib.error, csv_format.Error) as error:
    fact = f"{file} cannot be read as CSV ({one_line(error)})"
    advice = "mend the row, or give in delimiter what is between two values"
    raise FormError(argument, fact, advice) from error
  cells = cells[(cells != "").any(axis=1).cummax()]  # blank lines may come first
  if cells.empty:
    raise ArgumentError(argument, f"{file} has no rows")
  names = cells.iloc[0].str.strip().map(lambda name: "" if NAMELESS.fullmatch(name) else name)
  if len(names) == 1 and names[0] not in wanted:
    fact = f"{file} has only one column with delimiter={delimiter!r}, {shortened(names[0], 60)!r}"
    raise FormError("delimiter", fact, "give the character between two values")
  named = names[names != ""]
  numbered = [[str(k) for k in range(first, len(named) + first)] for first in (0, 1)]  # as pandas may
  meant = [*named] in numbered or (wanted and {*wanted} <= {*named})
  if _numbers(named.str.replace(",", ".")).notna().all() and not meant:
    raise ArgumentError(
      argument, f"{file}, row 1 must name the columns, got {shortened(', '.join(names), 60)}"
    )
  if named.duplicated().any():
    raise ArgumentError(argument, f"{file} names a column twice: {', '.join(named)}")
  frame = cells.iloc[1:][named.index].apply(lambda column: column.str.strip()).set_axis([*named], axis=1)
  blank = (frame == "").all(axis=1)
  if blank.all():
    raise ArgumentError(argument, f"{file} has no rows")
  counts = {"columns without a name": len(names) - len(named), BLANK: int(blank.sum())}
  return frame[~blank], [f"{what} ({number})" for what, number in counts.items() if number]


def _check_widths(file: Path, delimiter: str, encoding: str) -> None:
  """Checks that each row has as many values as the first one, which pandas would fill up without a word."""
  encoding = "utf-8-sig" if codecs.lookup(encoding).name == "utf-8" else encoding  # a mark may come first
  with unpacked(file) as stream, io.TextIOWrapper(stream, encoding, newline="") as text:
    width = 0
    for number, row in enumerate(csv_format.reader(text, delimiter=delimiter), 1):
      if number == 1 and any("\0" in name for name in row):
        raise UnicodeError("it has zero bytes")
      if number == 1 and row and row[0].startswith("sep="):
        raise ValueError("row 1 names no columns but the delimiter, 'sep='")
      width = width or len(row)
      if len(row) != width and any(map(str.strip, row)):
        raise ValueError(f"row {number} has {len(row)} values, and row 1 has {width} names")


@dataclasses.dataclass(frozen=True)
class Rows:
  """The rows of a part of a table."""

  # By name: float64, where NaN is missing, or texts, where None or NaN is. Its index numbers the rows.
  frame: Frame
  where: Callable[[int], str]  # what a message calls the row of this index
  argument: str  # the argument that names the part
  titles: Mapping[str, tuple[str, ...]]  # of columns with classes from 0 on, the names of the classes
  hint: str = ""  # ends the error of a row without a label
  images: Images | None = None  # the inputs of the rows, if these are images

  def __len__(self) -> int:
    return len(self.frame)

  def take(self, positions: np.ndarray) -> "Rows":
    """Returns the rows at these positions."""
    images = None if self.images is None else self.images[positions]
    return dataclasses.replace(self, frame=self.frame.iloc[positions], images=images)


@dataclasses.dataclass(frozen=True)
class Reading:
  """How the texts of a CSV file become values."""

  argument: str  # that names the file
  missing: Collection[str]
  decimal: str
  text: Mapping[str, Collection[str]]  # columns of texts, and the categories of each, which are never missing
  where: Callable[[int], str]
  numbers: Collection[str] = ()  # columns that are numbers in the training rows

  def rows(self, texts: Frame) -> Rows:
    """Converts each column of texts to numbers if all its texts are numbers."""
    columns = {name: self._values(name, texts[name]) for name in texts}
    flags = {
      name: ("False", "True")
      for name, values in columns.items()
      if values.dtype.kind == "f" and texts[name][values.notna()].isin(FLAGS).all()
    }
    hint = ", or give in missing only what stands for no value, if the text is a class"
    return Rows(pandas().DataFrame(columns), self.where, self.argument, flags, hint)

  def _values(self, name: str, texts: Series) -> Series:
    """Converts texts to float64 if all are numbers, or True and False; otherwise returns them."""
    there = texts[~texts.isin({*self.missing} - {*self.text.get(name, ())})]
    as_texts = there.astype(object).reindex(texts.index)
    if name in self.text or there.empty:
      return as_texts
    if there.isin(FLAGS).all():
      return there.map(FLAGS).astype(np.float64).reindex(texts.index)
    numbers = _numbers(there, self.decimal)
    sentinels = _numbers(pandas().Series([*self.missing], dtype=str), self.decimal)
    wrong = there[~np.isfinite(numbers)]
    if wrong.empty:
      large = there[numbers.abs() >= EXACT]
      if name not in self.numbers and large.str.fullmatch(r"\s*[+-]?\d+\s*").all():
        check_distinct(name, numbers[large.index].to_numpy(), large.to_numpy())
      return numbers[~numbers.isin(sentinels.dropna())].reindex(texts.index)
    other = "," if self.decimal == "." else "."
    others = wrong[np.isfinite(_numbers(wrong.str.replace(other, ".", n=1, regex=False)))]
    if 2 * len(others) > len(wrong):
      raise FormError(
        "decimal",
        f"{self.where(others.index[0])}: column {name!r} has {_shown(others.iloc[0])}, which is a number "
        f"with decimal={other!r} alone",
        f"give that if {other!r} comes before its decimals, mend the values if it parts thousands, or name "
        "the column in text",
      )
    if 2 * len(wrong) > len(there) and name not in self.numbers:
      check_texts(name, there, self.where, self.decimal)
      return as_texts
    raise FormError(
      self.argument,
      f"{self.where(wrong.index[0])}: column {name!r} has {_shown(wrong.iloc[0])} among numbers",
      "mend the row, give the text in missing if it stands for no value, or name the column in text or "
      "leave_out",
    )


def check_texts(name: str, texts: Series, where: Callable[[int], str], decimal: str = "") -> None:
  """Checks that texts are categories, and not numbers with marks or beside one other text.

  `decimal` is the mark of a CSV file, or "" for a file that stores texts and numbers apart.
  """
  plain = texts.str.normalize("NFKC").str.replace(r"\u200b|\ufeff", "", regex=True).str.replace("\u2212", "-")
  marked, words = texts[plain.str.fullmatch(MARKED)], texts[~plain.str.contains(r"\d")]
  none = "" if words.empty else words.mode()[0]
  if 2 * len(marked) <= (texts != none).sum():
    return
  odd = marked[_numbers(marked, decimal).isna()]
  if not decimal and odd.empty:  # digits that are stored as texts, such as postcodes, are meant so
    return
  row = (marked if odd.empty else odd).index[0]
  form = f"write numbers with decimal={decimal!r}" if decimal else "store numbers, and null for no value"
  given = f", give {_shown(none)} in missing if it stands for no value" if decimal and none else ""
  raise ArgumentError(
    "text",
    f"{where(row)}: column {name!r} has {_shown(texts[row])}, which looks like a number; {form}{given}, "
    "or name the column in text",
  )


def _numbers(texts: Series, decimal: str = ".") -> Series:
  """Converts texts to numbers in float64; NaN for texts that are not numbers."""
  texts = texts.str.translate(str.maketrans(",.", ".,")) if decimal == "," else texts
  return pandas().to_numeric(texts, errors="coerce").astype(np.float64)


def check_distinct(name: str, numbers: np.ndarray, values: np.ndarray) -> None:
  """Checks that different integers of a column stay different in float64, by their exact `values`."""
  large = (np.abs(numbers) >= EXACT) & np.isfinite(numbers)
  exact = {int(value) for value in values[large]}
  if len(exact) > len({*numbers[large].tolist()}):
    raise ArgumentError(
      "text",
      f"column {name!r} has different integers beyond 2**53, such as {max(exact, key=abs)}, which are one "
      "number in float64; name it in text if they are names, or in leave_out",
    )


def check_named(names: Collection[str], **arguments: Collection[str]) -> None:
  """Checks that a table has the columns that each argument names."""
  for argument, wanted in arguments.items():
    for name in wanted:
      if name not in names:
        raise unknown(argument, name, names)


def check_roles(
  names: Collection[str],
  labels: tuple[str, ...],
  weights: str,
  leave_out: tuple[str, ...],
  text: tuple[str, ...],
) -> None:
  """Checks that a table has the columns that these arguments name, and that each column has one use."""
  weighed = (weights,) if weights else ()
  check_named(names, labels=labels, weights=weighed, leave_out=leave_out, text=text)
  if left := [name for name in (*labels, *weighed) if name in leave_out]:
    raise ArgumentError("leave_out", f"must not name {left[0]!r}, a column of labels or weights")
  if weights in labels:
    raise ArgumentError("weights", f"must not name a column of labels, got {weights!r}")


@dataclasses.dataclass(frozen=True)
class Labels:
  """How columns become labels, by the training examples."""

  names: tuple[str, ...]  # of the columns
  classes: tuple[str, ...] | tuple[int, ...] = ()  # the values of one column of classes, sorted
  numbers: bool = False  # whether the labels are numbers
  titles: tuple[str, ...] = ()  # class names, where they differ from the values in the column

  @property
  def num_classes(self) -> int:
    """The number of classes: 0 for numbers, 2 for several labels that are each no or yes."""
    return 0 if self.numbers else len(self.classes) or 2

  @property
  def class_names(self) -> tuple[str, ...]:
    """The names of the classes, or of the labels."""
    if self.titles or not self.classes:
      return self.titles or self.names
    return () if self.classes == tuple(range(len(self.classes))) else tuple(map(str, self.classes))

  def encode(self, rows: Rows) -> np.ndarray:
    """Encodes the labels `[n]`, or `[n, labels]` if there are several columns."""
    name, *others = self.names
    if others:
      labels = rows.frame[[*self.names]].to_numpy(np.float64)
      return labels if self.numbers else np.where(known(labels), labels, -1).astype(np.int64)
    column = rows.frame[name]
    numbers = column.map({value: k for k, value in enumerate(self.classes)}) if self.classes else column
    wrong = column[numbers.isna()]
    if len(wrong) == len(column):
      raise ArgumentError(
        rows.argument,
        f"none of the {len(wrong)} rows has a label in column {name!r}, the first one has "
        f"{_shown(wrong.iloc[0])}; give a part with labels, or an empty name for a part of the training rows",
      )
    if not wrong.empty:
      value = wrong.iloc[0]
      missing = value is None or value != value
      problem = "no label" if missing else f"{_shown(value)}, which no training example has"
      raise ArgumentError(
        "labels",
        f"{rows.where(wrong.index[0])}: column {name!r} has {problem}; mend or remove the row{rows.hint}",
      )
    return numbers.to_numpy(np.float64 if self.numbers else np.int64)


def _shown(value: object) -> str:
  return shortened(repr(value if isinstance(value, str) else float(value)), 40)  # type: ignore[arg-type]


def fit_labels(rows: Rows, names: tuple[str, ...], kind: Kind) -> Labels:
  """Infers the labels from training columns: texts and integers are classes, unless `kind` says numbers."""
  values, name = rows.frame[[*names]], names[0]
  texts = [name for name in names if values[name].dtype.kind != "f"]
  distinct = np.unique(values.drop(columns=texts).to_numpy().ravel())
  distinct = distinct[~np.isnan(distinct)]
  whole = bool((distinct == np.round(distinct)).all())
  if len(names) > 1:
    binary = bool(np.isin(distinct, (0, 1)).all())
    if texts:
      raise ArgumentError(
        "labels", f"several labels must be numbers, or each 0 or 1; column {texts[0]!r} holds texts"
      )
    if kind != "numbers" and (wide := [each for each in names if len(rows.titles.get(each, ())) > 2]):
      raise ArgumentError(
        "labels", f"several labels must be numbers, or each no or yes; column {wide[0]!r} has classes"
      )
    if kind == "classes" and not binary:
      raise ArgumentError(
        "label_kind", f"must be numbers, unless each of {', '.join(names)} is 0 or 1, got 'classes'"
      )
    return Labels(names, numbers=kind == "numbers" or not binary)
  if texts:
    if kind == "numbers":
      problem = f"must be classes for column {name!r}, which holds texts, got 'numbers'"
      raise ArgumentError("label_kind", problem)
    return Labels(names, tuple(sorted(values[name].dropna().unique())))
  if kind != "numbers" and (titles := rows.titles.get(name)):
    numbers = tuple(range(len(titles)))
    return Labels(names, numbers, titles=() if titles == tuple(map(str, numbers)) else titles)
  if kind == "numbers" or not whole:
    if kind == "classes":
      problem = f"must be numbers for column {name!r}, which holds fractions, got 'classes'"
      raise ArgumentError("label_kind", problem)
    return Labels(names, numbers=True)
  if kind == "auto" and len(distinct) > max(MANY_INTEGERS, len(values) // 20):
    raise ArgumentError(
      "label_kind",
      f"must be numbers or classes, got 'auto': column {name!r} has {len(distinct)} different integers in "
      f"{len(values)} rows, and could be either",
    )
  if distinct.size and np.abs(distinct).max() >= EXACT:
    raise ArgumentError(
      "text", f"column {name!r} has classes beyond 2**53, whose last digits float64 loses; name it in text"
    )
  return Labels(names, tuple(int(value) for value in distinct))


def fit_columns(frame: Frame, text: Collection[str]) -> Table:
  """Learns the columns from the training rows, as JSON takes it: `{"fill": ..., "categories": ...}`.

  `fill` has the mean of each column of numbers, which missing ones become, `categories` the sorted texts of
  each other column. A column that is not named in `text` may not have texts that differ in most rows.
  """
  for name in frame:
    if frame[name].isna().all():
      raise ArgumentError("leave_out", f"column {name!r} has no value in training; leave it out")
  numbers = [name for name in frame if frame[name].dtype.kind == "f"]
  categories = {name: sorted(frame[name].dropna().unique()) for name in frame if name not in numbers}
  for name, values in categories.items():
    most = MOST_CATEGORIES if name in text else min(MOST_CATEGORIES, max(2, len(frame) // 2))
    if len(values) > most:
      raise ArgumentError(
        "leave_out",
        f"column {name!r} has {len(values)} different texts in {len(frame)} rows, such as "
        f"{shortened(values[0], 40)!r}; leave it out, or write numbers in its place, such as a date's month",
      )
  means = moments(frame[numbers].to_numpy(np.float64))[0] if numbers else ()
  return {"fill": dict(zip(numbers, means)), "categories": categories}


def encode(columns: Mapping[str, Any], frame: Frame) -> np.ndarray:
  """Encodes rows by `fit_columns` as float64 inputs `[n, inputs]`: the numbers, then the categories."""
  fill, categories = columns["fill"], columns["categories"]
  inputs = frame[[*fill]].fillna(fill).to_numpy(np.float64)
  # A text that is missing or new is in no category.
  texts = [pandas().Categorical(frame[name], values) for name, values in categories.items()]
  return np.hstack([inputs, *(pandas().get_dummies(each).to_numpy() for each in texts)])


def names_in(columns: Mapping[str, Any]) -> tuple[str, ...]:
  """Returns the names of the columns of `fit_columns`: numbers, then categories."""
  return (*columns["fill"], *columns["categories"])


def read_csv_rows(
  columns: Mapping[str, Any],
  file: Path,
  *,
  delimiter: str,
  decimal: str,
  encoding: str,
  missing: tuple[str, ...],
) -> Frame:
  """Reads the columns that a trained model takes from a CSV file; its index counts its rows from 1."""
  names = names_in(columns)
  read = Reading(
    argument="inputs",
    missing={"", *missing},
    decimal=decimal,
    text=columns["categories"],
    where=lambda row: f"{file}, row {row + 1}",
    numbers=columns["fill"],
  )
  try:
    texts, left_out = _read_csv("inputs", file, delimiter, encoding, names)
    check_named(texts, inputs=names)
    rows = read.rows(texts[[*names]])
  except FormError as error:
    # The options are those of the training, so only the file can change.
    form = f"delimiter={delimiter!r}, decimal={decimal!r}, encoding={encoding!r}, missing={missing}"
    problem = f"{error.fact}; mend the file: this run reads files with {form}"
    raise ArgumentError("inputs", problem) from error
  if blank := [what for what in left_out if what.startswith(BLANK)]:
    warnings.warn(f"inputs: {file}: left out: {blank[0]}", stacklevel=2)
  # Truth values remain what they are, since a number of `missing` is none of them.
  truth = {name: rows.frame[name].map({0.0: False, 1.0: True}) for name in rows.titles}
  return rows.frame.assign(**truth).set_axis(rows.frame.index + 1)


def inputs_of_rows(
  columns: Mapping[str, Any], rows: Any, missing: Collection[str] = (), decimal: str = "."
) -> np.ndarray:
  """Computes the inputs `[n, inputs]` of a data frame or its row, of dicts, or a dict of columns or numbers.

  A missing number becomes the training mean; a missing or new category is 0 everywhere, and a warning names
  new ones. What `missing` names is missing here too, so that a file and its data frame give the same. Other
  columns are not read.
  """
  rows = rows.to_pandas() if hasattr(rows, "to_pandas") else rows
  if isinstance(rows, pandas().Series) and rows.name not in names_in(columns):  # a row, not the only column
    rows = rows.to_dict()
  if isinstance(rows, Mapping) and not any(map(np.ndim, rows.values())):
    rows = [rows]
  data_frame = pandas().DataFrame
  try:
    frame = data_frame(rows)
  except (TypeError, ValueError) as error:
    problem = "must be a data frame, dicts or the path of a CSV or Parquet file"
    raise ArgumentError("inputs", f"{problem}, got a {type(rows).__name__} ({one_line(error)})") from error
  if frame.columns.nlevels > 1:
    raise ArgumentError("inputs", f"must have one name for each column, got {frame.columns.nlevels} levels")
  frame = frame.set_axis(frame.columns.map(str), axis=1)  # pandas numbers columns without names
  frame = _unnested(frame.reset_index(drop=True), names_in(columns))
  check_named(frame, inputs=names_in(columns))
  if frame.empty:
    raise ArgumentError("inputs", "has no rows")
  if twice := [name for name in names_in(columns) if frame.columns.tolist().count(name) > 1]:
    raise ArgumentError("inputs", f"has several columns {twice[0]!r}")
  numbers = {
    name: _as_numbers(name, frame[name].astype(object), missing, decimal) for name in columns["fill"]
  }
  texts = {name: _as_texts(frame[name], values, missing) for name, values in columns["categories"].items()}
  for name, column in texts.items():
    new = column.dropna()[~column.dropna().isin(columns["categories"][name])]
    if not new.empty:
      told = f"{len(new)} of {len(column)} rows have values of column {name!r} that training had not"
      warnings.warn(f"inputs: {told}, the first {shortened(repr(new.iloc[0]), 40)}", stacklevel=2)
  return encode(columns, pandas().DataFrame({**numbers, **texts}))


def _unnested(frame: Frame, names: Collection[str]) -> Frame:
  """Adds the columns `NAME[k]` of these names, the k-th values of a column `NAME` of lists."""
  added: dict[str, list[Any]] = {}
  for name in names:
    base, _, number = name.removesuffix("]").rpartition("[")
    if name in frame or base not in frame or not number.isdigit():
      continue
    lists = [[] if np.ndim(value) == 0 else [*value] for value in frame[base]]
    length = sum(other.rpartition("[")[0] == base for other in names)
    for row, values in enumerate(lists):
      if values and len(values) != length:
        raise ArgumentError(
          "inputs", f"row {row}: column {base!r} must have {length} numbers, got {len(values)}"
        )
    added[name] = [values[int(number)] if values else np.nan for values in lists]
  return frame.assign(**added)


def _as_numbers(name: str, values: Series, missing: Collection[str], decimal: str) -> np.ndarray:
  """Returns a column as float64, where NaN is missing; other texts and infinite numbers are refused."""
  numbers, none = np.full(len(values), np.nan), np.asarray(values.isna() | values.isin([*missing]))
  truth = values.map(lambda value: isinstance(value, bool | np.bool_))
  for row, (value, is_none) in enumerate(zip(values, none, strict=True)):
    if is_none:
      continue
    try:
      numbers[row] = np.inf if isinstance(value, str | bytes) else value
    except (TypeError, ValueError, OverflowError):
      numbers[row] = np.inf
    if not np.isfinite(numbers[row]):
      got = shortened(repr(value), 40)
      raise ArgumentError("inputs", f"row {row}: column {name!r} must be a number or missing, got {got}")
  sentinels = _numbers(pandas().Series([*missing], dtype=str), decimal)
  return np.where(np.isin(numbers, sentinels) & ~truth, np.nan, numbers)


def _as_texts(values: Series, categories: Collection[str], missing: Collection[str]) -> Series:
  """Returns a column as texts; a whole number is written as the categories have it, with or without `.0`."""

  def as_text(value: object) -> str:
    text = str(value)
    return text.removesuffix(".0") if isinstance(value, float) and text not in categories else text

  texts = values.astype(object).map(as_text, na_action="ignore")
  return texts.mask(texts.isin([*missing]))


def input_names(columns: Table) -> tuple[str, ...]:
  """Names each input of `encode`."""
  categories = columns["categories"].items()
  return (*columns["fill"], *(f"{name}={category}" for name, values in categories for category in values))


def _remarks(columns: Table, parts: Mapping[str, Rows], left_out: str) -> list[str]:
  """Lines on the kinds of the columns, and on the values that are missing or new in each part."""
  fill, categories = columns["fill"], columns["categories"]
  kinds = {
    "numbers": ", ".join(fill),
    "categories": ", ".join(f"{name} ({len(values)})" for name, values in categories.items()),
    "left out": left_out,
  }
  lines = ["; ".join(f"{kind}: {shortened(names, 300)}" for kind, names in kinds.items() if names)]
  train = parts["train"].frame
  if counters := [name for name in fill if (train[name] - train.index).nunique(dropna=False) == 1]:
    told = f"columns that count the rows: {shortened(', '.join(counters), 300)}"
    lines.append(f"{told}; name them in leave_out, unless the order has a meaning")
  for part, rows in parts.items():
    missing = []
    for name in (*fill, *categories):
      number = int(rows.frame[name].isna().sum())
      new = int((~rows.frame[name].dropna().isin(categories[name])).sum()) if name in categories else 0
      if number + new:
        told = (
          f" (their mean {fill[name]:.4g} is taken)" if name in fill else f" ({new} new in it)" * bool(new)
        )
        missing.append(f"{number + new} in {name}{told}")
    if missing:
      lines.append(shortened(f"split {part}: values are missing: {', '.join(missing)}", 500))
  return lines


def _check_apart(parts: Mapping[str, Rows]) -> None:
  """Checks that no other part repeats the training rows."""
  train = parts["train"]
  for part, rows in parts.items():
    if part == "train" or not rows.frame.equals(train.frame.reindex(columns=rows.frame.columns)):
      continue
    if rows.images is None or train.images is None or rows.images.repeats(train.images):
      raise ArgumentError(part, "it has the examples of the train split; give others")


def _divided(parts: Mapping[str, Rows], labels: Labels, validation_fraction: float) -> dict[str, Rows]:
  """Holds missing parts out of the training rows, always the same rows."""
  parts = dict(parts)
  for part, fraction in (("test", TEST_FRACTION), ("val", validation_fraction)):
    if part not in parts:
      train = parts["train"]
      positions = Split(np.arange(len(train))[:, None], labels.encode(train))
      try:
        kept, held = hold_out(positions, fraction, labels.class_names)
      except ArgumentError as error:
        if part == "test":
          raise ArgumentError("test", error.problem) from error
        raise
      parts["train"], parts[part] = (train.take(each.inputs[:, 0]) for each in (kept, held))
  return parts


def _check_weights(rows: Rows, name: str) -> None:
  """Checks that a column holds a number of at least 0 in each row."""
  column = rows.frame[name]
  right = column >= 0 if column.dtype.kind == "f" else column.map(lambda value: False)
  if not right.all():
    value = column[~right].iloc[0]
    got = "no value" if value is None or value != value else _shown(value)
    where = rows.where(column[~right].index[0])
    raise ArgumentError("weights", f"{where}: column {name!r} must have a number of at least 0, got {got}")
  if not column.any():
    raise ArgumentError("weights", f"column {name!r} must not be 0 in all rows")


def make_dataset(
  parts: Mapping[str, Rows],
  target: tuple[str, ...],
  label_kind: Kind,
  weights: str,
  text: Collection[str],
  validation_fraction: float,
  left_out: str,
) -> Dataset:
  """Builds the data set with these columns as labels and weights; its inputs are all others, or images."""
  train = parts["train"]
  _check_apart(parts)
  weighed = (weights,) if weights else ()
  check_named(train.frame, labels=target, weights=weighed)
  if weights:
    _check_weights(train, weights)
    train = train.take(np.flatnonzero(train.frame[weights]))  # the others teach nothing
    parts = {**parts, "train": train}
  labels = fit_labels(train, target, label_kind)
  labelled = known(labels.encode(train)).reshape(len(train), -1).any(axis=1)
  if labelled.any():  # otherwise a check of the splits says so
    parts = {**parts, "train": train.take(np.flatnonzero(labelled))}
  parts = _divided(parts, labels, validation_fraction)
  train = parts["train"]
  inputs: dict[str, Any] = {part: rows.images for part, rows in parts.items()}
  columns: Table = {}
  if train.images is None:
    others = train.frame.columns.drop([*target, *weighed])
    if others.empty:
      raise ArgumentError("", "the table has no column for inputs besides its labels")
    columns = fit_columns(train.frame[others], text)
    inputs = {part: encode(columns, rows.frame) for part, rows in parts.items()}
  splits = {part: Split(inputs[part], labels.encode(rows)) for part, rows in parts.items()}
  if weights:
    splits["train"] = dataclasses.replace(splits["train"], weights=train.frame[weights].to_numpy())
  data = Dataset(
    splits["train"],
    splits["val"],
    splits["test"],
    num_classes=labels.num_classes,
    scale=255.0,
    class_names=labels.class_names,
  )
  if not columns:
    return data
  names, remarks = input_names(columns), tuple(_remarks(columns, parts, left_out))
  with np.errstate(over="ignore", invalid="ignore"):
    data = dataclasses.replace(data, columns=columns, input_names=names, remarks=remarks).standardized()
  for part, split in data.splits().items():
    if large := [name for name, x in zip(names, split.inputs.T, strict=True) if not np.isfinite(x).all()]:
      problem = f"column {large[0]!r} has values too large to standardize in split {part}"
      raise ArgumentError("leave_out", f"{problem}; leave it out, or mend or rescale them")
  return data

"""Data from tables, `csv` and `huggingface`: against NumPy, scikit-learn and what was written."""

import csv
import datetime
import decimal
import functools
import gzip
import io
import json
import os
import pickle
import re
import shutil
import warnings

import numpy as np
import pytest
import runs
from sklearn import compose, datasets, impute, preprocessing

from jaxreg import train
from jaxreg.train.data.huggingface import Encoded, _open_parquet, read_parquet_rows
from jaxreg.train.data.tables import inputs_of_rows, pandas
from jaxreg.train.errors import ArgumentError

hub = pytest.importorskip("datasets")
pa = pytest.importorskip("pyarrow")

RANDOM = np.random.default_rng(0)
COLOURS = np.array(["red", "green", "blue"])


def rows(number=60):
  """A table with numbers, texts, values that are missing, and a class."""
  age = RANDOM.normal(40, 10, number).round(2).astype(object)
  colour = RANDOM.choice(COLOURS, number).astype(object)
  kind = np.where(np.arange(number) % 3 == 0, "yes", "no")
  age[5], colour[7] = "?", ""
  return {"id": [f"p{k}" for k in range(number)], "age": age, "colour": colour, "kind": kind}


def write(file, columns, delimiter=","):
  text = io.StringIO()
  writer = csv.writer(text, delimiter=delimiter)
  writer.writerow(columns)
  writer.writerows(zip(*columns.values(), strict=True))
  file.write_bytes(
    gzip.compress(text.getvalue().encode()) if file.suffix == ".gz" else text.getvalue().encode()
  )
  return str(file)


def load(**options):
  return runs.read_source("csv", **options)


def unscaled(data, split):
  """The features in the units of the table."""
  return split.inputs.astype(np.float64) * np.array(data.input_std) + np.array(data.input_mean)


@pytest.mark.parametrize(("name", "delimiter"), [("a.csv", ","), ("a.csv.gz", ","), ("a.tsv", "\t")])
def test_columns_become_inputs_as_those_of_scikit_learn(tmp_path, name, delimiter):
  columns = {part: rows(number) for part, number in (("train", 60), ("val", 20), ("test", 30))}
  columns["test"]["colour"][3] = "violet"
  files = {part: write(tmp_path / f"{part}-{name}", table, delimiter) for part, table in columns.items()}
  data = load(
    path=files["train"], val=files["val"], test=files["test"], leave_out=("id",), delimiter=delimiter
  )
  assert data.input_names == ("age", "colour=blue", "colour=green", "colour=red")
  assert data.class_names == ("no", "yes")
  oracle = compose.make_column_transformer(
    (impute.SimpleImputer(), [0]),
    (preprocessing.OneHotEncoder(handle_unknown="ignore", categories=[sorted(COLOURS)]), [1]),
    sparse_threshold=0,
  )

  def features(table):
    numbers = [np.nan if value == "?" else value for value in table["age"]]
    return np.array([numbers, [value or "none" for value in table["colour"]]], object).T

  oracle.fit(features(columns["train"]))
  numbers = {part: oracle.transform(features(columns[part])).astype(float) for part in columns}
  scaler = preprocessing.StandardScaler().fit(numbers["train"])
  for part, split in data.splits().items():
    np.testing.assert_allclose(split.inputs, scaler.transform(numbers[part]), rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(split.labels, columns[part]["kind"] == "yes")
    np.testing.assert_allclose(data.describe().standardized(numbers[part]), split.inputs, atol=1e-6)
  kinds, *missing = data.remarks
  assert kinds == "numbers: age; categories: colour (3); left out: id"
  assert [line.split(": ", 1)[1].split(", ")[-1] for line in missing] == [
    "1 in colour",
    "1 in colour",
    "2 in colour (1 new in it)",
  ]
  assert all("1 in age (their mean " in line for line in missing)
  learnt = json.loads(json.dumps(data.describe().table()["columns"]))
  assert learnt["categories"] == {"colour": sorted(COLOURS)}
  assert learnt["fill"] == {"age": pytest.approx(np.nanmean(numbers["train"][:, 0]), rel=1e-14)}


def test_one_file_is_divided_and_what_is_held_out_says_nothing_of_the_inputs(tmp_path):
  table = rows(100)
  data = load(path=write(tmp_path / "a.csv", table), leave_out=("id",))
  assert [len(split) for split in data.splits().values()] == [72, 8, 20]
  ages = np.concatenate([unscaled(data, split)[:, 0] for split in data.splits().values()]).round(4)
  there = np.array([np.nan if value == "?" else value for value in table["age"]], np.float64)
  (mean,) = np.setdiff1d(ages, there)
  np.testing.assert_array_equal(np.sort(ages), np.sort(np.where(np.isnan(there), mean, there)))
  kept = unscaled(data, data.train)[:, 0].round(4)
  np.testing.assert_allclose(mean, kept[kept != mean].mean(), rtol=1e-5)
  for split in data.splits().values():
    assert split.labels.mean() == pytest.approx(0.34, abs=0.05)


@pytest.mark.parametrize(
  ("values", "options", "expected"),
  [
    ([3, 5, 3, 9], {}, (3, ("3", "5", "9"), [0, 1, 0, 2])),
    ([0, 1, 0, 1], {}, (2, (), [0, 1, 0, 1])),
    ([0.5, 1, 0, 1], {}, (0, ("label",), [0.5, 1, 0, 1])),
    ([3, 5, 3, 9], {"label_kind": "numbers"}, (0, ("label",), [3, 5, 3, 9])),
  ],
)
def test_what_a_column_of_labels_holds(tmp_path, values, options, expected):
  labels = np.array(values * 15)
  file = write(tmp_path / "a.csv", {"x": np.arange(60) / 7, "label": labels})
  data = load(
    path=file, test=write(tmp_path / "b.csv", {"x": np.arange(4) + 0.5, "label": values}), **options
  )
  assert (data.num_classes, data.class_names, data.test.labels.tolist()) == expected


def test_several_labels_and_weights(tmp_path):
  columns = {"x": np.arange(40) / 7, "a": [0, 1] * 20, "b": ["", *[1] * 18, *[0] * 21], "w": np.arange(40)}
  columns["w"][1] = 0  # the first row counts, the second does not
  columns["w"][0] = 40
  file = write(tmp_path / "a.csv", columns)
  data = load(path=file, labels=("a", "b"), weights="w")
  every = np.concatenate([split.labels for split in data.splits().values()])
  assert (data.num_classes, data.class_names, data.input_names) == (2, ("a", "b"), ("x",))
  assert ((every == -1).sum(), (every[:, 1] == 1).sum()) == (1, 17)
  rows = (unscaled(data, data.train)[:, 0] * 7).round().astype(int)
  np.testing.assert_array_equal(data.train.weights, columns["w"][rows])
  numbers = load(path=file, labels=("a", "w"))
  assert (numbers.num_classes, numbers.train.labels.shape[1]) == (0, 2)


def test_rows_of_weight_0_are_in_no_split(tmp_path):
  """What they hold is no class, no part of a mean and no example of a split that is held out."""
  columns = {"x": np.arange(40.0), "label": ["a", "b"] * 20, "w": np.ones(40)}
  columns["w"][::7], columns["x"][::7], columns["label"][::7] = 0, 1e6, ["?"] * 6
  data = load(path=write(tmp_path / "a.csv", columns), weights="w")
  assert data.class_names == ("a", "b")
  inputs = np.concatenate([unscaled(data, split)[:, 0] for split in data.splits().values()])
  np.testing.assert_allclose(np.sort(inputs), [x for x in range(40) if x % 7], rtol=1e-5)
  columns["w"][:] = 0
  with pytest.raises(train.RunError, match=r"^data\.csv\.weights: column 'w' must not be 0 in all rows$"):
    load(path=write(tmp_path / "b.csv", columns), weights="w")


@pytest.mark.parametrize("known", [(0, 1), (0.5, 3.5)])
def test_rows_without_any_label_are_in_no_split(tmp_path, known):
  """As without these rows: they enter no mean, no category and no split that is held out."""
  columns = {"x": np.arange(40.0), "c": ["u", "v"] * 20, "a": [*known] * 20, "b": [*known, *known[::-1]] * 10}
  kept = np.arange(40) % 7 > 0
  columns = {name: np.array(values, object) for name, values in columns.items()}
  without = {name: values[kept] for name, values in columns.items()}
  for name, value in {"x": 1e6, "c": "odd", "a": "", "b": "?"}.items():
    columns[name][~kept] = value
  columns["a"][1] = without["a"][0] = ""  # one label is enough
  data, expected = (
    load(path=write(tmp_path / f"{k}.csv", each), labels=("a", "b")).describe()
    for k, each in enumerate((columns, without))
  )
  assert (data, sum(data.sizes.values())) == (expected, kept.sum())
  none = columns | {"w": 1 - kept}
  with pytest.raises(train.RunError, match=r"^data\.csv: split train: no label is known, all are -1$"):
    load(path=write(tmp_path / "none.csv", none), labels=("a", "b"), weights="w")


GOOD = {"x": np.arange(40) / 7, "y": np.arange(40) / 3, "label": ["a", "b"] * 20}


def with_value(name, row, value):
  columns = {key: [*map(str, values)] for key, values in GOOD.items()}
  columns[name][row] = value
  return columns


@pytest.mark.parametrize(
  ("columns", "options", "message"),
  [
    (
      with_value("x", 4, "1;5"),
      {},
      r"path: .*a\.csv, row 6: column 'x' has '1;5' among numbers; mend",
    ),
    (with_value("x", 4, "inf"), {}, r"path: .*a\.csv, row 6: column 'x' has 'inf' among numbers"),
    (
      with_value("label", 9, ""),
      {},
      r"labels: .*a\.csv, row 11: column 'label' has no label; mend .* give in missing only what",
    ),
    (GOOD, {"labels": ("lable",)}, r"labels: got 'lable'.* did you mean 'label'"),
    (GOOD, {"leave_out": ("z",)}, r"leave_out: got 'z'"),
    (GOOD, {"weights": "z"}, r"weights: got 'z'"),
    (GOOD, {"leave_out": ("x", "y")}, r"csv: the table has no column for inputs"),
    (GOOD, {"labels": ("x",)}, r"leave_out|csv"),
    (GOOD, {"delimiter": ""}, r"delimiter: must be one character"),
    (GOOD, {"path": "nowhere.csv"}, r"path: got 'nowhere\.csv', which is not a file"),
    (GOOD, {"validation_fraction": 0.99}, r"validation_fraction: got 0\.99"),
    (
      GOOD | {"name": [f"n{k}" for k in range(40)]},
      {"labels": ("label",)},
      r"leave_out: column 'name' has",
    ),
    (GOOD | {"empty": [""] * 40}, {"labels": ("label",)}, r"leave_out: column 'empty' has no value"),
    (GOOD | {"k": range(40)}, {}, r"label_kind: must be numbers or classes, got 'auto': column 'k' has 40"),
    (GOOD, {"label_kind": "numbers"}, r"label_kind: must be classes for column 'label', which holds texts"),
    (GOOD, {"labels": ("x", "label")}, r"labels: several labels must be numbers"),
    (GOOD, {"leave_out": ("label",), "labels": ("label",)}, r"leave_out: must not name 'label', a column of"),
    (GOOD, {"leave_out": ("x",), "weights": "x"}, r"leave_out: must not name 'x', a column of labels or wei"),
    (GOOD, {"labels": ("x",), "weights": "x"}, r"weights: must not name a column of labels, got 'x'$"),
  ],
)
def test_mistakes_are_told(tmp_path, columns, options, message):
  file = write(tmp_path / "a.csv", columns)
  if options == {"labels": ("x",)}:
    assert load(path=file, **options).num_classes == 0
    return
  with pytest.raises(train.RunError, match=message):
    load(**{"path": file, **options})


@pytest.mark.parametrize(
  ("text", "message"),
  [
    (
      "x,label\n1,a\n2,b,c\n3,b\n",
      r"path: .*a\.csv cannot .*row 3 has 3 values, and row 1 has 2 names.*delimiter",
    ),
    ("x,label\n1,a\n2\n3,b\n", r"path: .*a\.csv cannot .*row 3 has 1 values, and row 1 has 2 names"),
    ("x,label\n\n1,a\n,\n \n2\n3,b\n", r"row 6 has 1 values"),
    ('x,label\n1,"a\nb"\n2\n3,b\n', r"row 3 has 1 values"),
    ('x,label\n"1,100",a\n"1,200",b\n', r"decimal: .*row 2: column 'x' has '1,100', .* parts thousands"),
    ("x,x,label\n1,2,a\n", r"names a column twice"),
    ("x,label\n", r"has no rows"),
    ("", r"cannot be read as CSV"),
    ("x,label\n\udcff,a\n", r"encoding: .* is not text in utf-8"),
    ("gr\udcf6,label\n1,a\n", r"encoding: .* is not text in utf-8 .*; give its encoding, such as latin-1"),
    ("\udcff\udcfex\0,\0l\0\n\0", r"encoding: .* is not text in utf-8"),
    ("x\0,\0l\0\n\0", r"encoding: .* is not text in utf-8 \(it has zero bytes\)"),
    (
      "x;label\n1;a\n",
      r"delimiter: .*a\.csv has only one column with delimiter=',', 'x;label'; give the character",
    ),
    ("x;y;label\n0,5;1;a\n", r"cannot be read .* give in delimiter"),
    ("sep=,\nx,label\n1,a\n", r"row 1 names no columns but the delimiter"),
    ("0.5,1.5\n1,2\n", r"path: .*row 1 must name the columns, got 0\.5, 1\.5"),
    ("0.5,1.5,\n1,2,\n", r"path: .*row 1 must name the columns, got 0\.5, 1\.5"),
    ('"0,5","1,5"\n1,2\n', r"path: .*row 1 must name the columns, got 0,5, 1,5"),
  ],
)
def test_a_damaged_file_is_told(tmp_path, text, message):
  (tmp_path / "a.csv").write_bytes(text.encode(errors="surrogateescape"))
  with pytest.raises(train.RunError, match=message):
    load(path=str(tmp_path / "a.csv"))


MARKED = {
  "thousands": lambda x: f"{x:,}.50",
  "millions": lambda x: f"{x},234,000",
  "German": lambda x: f"{x}.234,50",
  "spaces": lambda x: f"{x} 234.50",
  "apostrophes": lambda x: f"{x}'234.5",
  "minus": lambda x: f"\u2212{x}.5",
  "per cent": lambda x: f"{x}%",
  "dollars": lambda x: f"${x}",
  "underscores": lambda x: f"{x}_000",
  "Fortran": lambda x: f"{x}.5D+02",
  "full width": lambda x: "".join(chr(ord(digit) + 0xFEE0) for digit in str(x)),
  "no width": lambda x: f"{x}\u200b",
  "n/a in most": lambda x: "n/a" if x % 3 else str(x),
}


@pytest.mark.parametrize("form", MARKED)
@pytest.mark.parametrize("role", ["input", "label"])
def test_numbers_with_marks_are_not_categories(tmp_path, form, role):
  values = [MARKED[form](1000 + 111 * (k % 7) if form == "thousands" else 3 + k % 7) for k in range(140)]
  table = {"x": np.arange(140) % 2, "y": values}
  options = {"labels": ("y",) if role == "label" else ("x",), "validation_fraction": 0.2, "delimiter": ";"}
  options |= {"decimal": ","} if form == "German" else {}
  file = write(tmp_path / "a.csv", table, delimiter=";")
  with pytest.raises(
    train.RunError, match=r"text: .*row \d+: column 'y' .* looks like a number; .* in text$"
  ):
    load(path=file, **options)
  kept = load(path=file, text=("y",), **options)
  names = kept.class_names if role == "label" else [name.removeprefix("y=") for name in kept.input_names]
  assert [*names] == sorted({*values})


def test_categories_with_digits_stay_categories(tmp_path):
  for values in (
    ["2020.01.02", "2020.01.03"],
    ["192.168.0.1", "192.168.0.2"],
    ["A5", "B7"],
    ["1st", "2nd"],
    ["9:30", "10:15"],
    ["<18", "18-25", "26-40", "40+"],
  ):
    data = load(path=write(tmp_path / "a.csv", {"x": (values * 30)[:60], "label": [0, 1, 1] * 20}))
    assert data.input_names == tuple(f"x={value}" for value in sorted(values))


@pytest.mark.parametrize(
  ("values", "told"),
  [
    (["900.5", "1,011.5", "1,012.5"], "row 3: column 'x' has '1,011.5', which .* decimal='.', or name"),
    (
      ["9", "n/a", "n/a"],
      "row 2: column 'x' has '9', .*, give 'n/a' in missing if it stands for no value, or",
    ),
  ],
)
def test_the_cell_that_is_no_plain_number_and_the_flag_that_helps_are_told(tmp_path, values, told):
  file = write(tmp_path / "a.csv", {"x": values * 20, "label": [0, 1, 1] * 20})
  with pytest.raises(train.RunError, match=told):
    load(path=file)


@pytest.mark.parametrize("encoding", ["utf-8", "UTF_8"])
def test_a_byte_order_mark_may_come_before_a_quoted_name(tmp_path, encoding):
  text = '\ufeff"x,1",y,label\n' + "1,2,a\n3,5,b\n" * 20
  (tmp_path / "a.csv").write_bytes(text.encode())
  assert load(path=str(tmp_path / "a.csv"), encoding=encoding).input_names == ("x,1", "y")


@pytest.mark.parametrize(
  ("names", "told"),
  [
    ("5.1,3.5,1.4,0.2,setosa", ["5.1, 3.5, 1.4, 0.2, setosa"]),
    ('"5,1","-3,5",".2e-1","x",setosa', ["5,1, -3,5, .2e-1, x, setosa"]),
    ("5.1,3.5,a,b,label", []),
    ("1,2,3,4,label", []),
    ("2019,2020,2021,2022,label", []),
  ],
)
def test_a_first_row_of_numbers_that_was_taken_for_names_is_told(tmp_path, names, told):
  rows = [f"{k},{k / 3:.3f},{k / 5},{k % 7}.5,{'ab'[k % 2]}" for k in range(60)]
  (tmp_path / "a.csv").write_text("\n".join([names, *rows]))
  remarks = [line for line in load(path=str(tmp_path / "a.csv")).remarks if "row 1" in line]
  before, after = (
    "row 1 was taken for the names of the columns, ",
    "; if it is an example, write names above it",
  )
  assert remarks == [before + each + after for each in told]


@pytest.mark.parametrize(("part", "other"), [("train", "1"), ("val", "0.5")])
def test_a_column_whose_values_are_too_large_is_named(tmp_path, part, other):
  table = {"x": ["0.5", "1", "2"] * 20, "y": np.arange(60) / 7, "label": [0, 1, 1] * 20}
  large = table | {"x": ["1.7e308", "-1.7e308", other] * 20}
  files = {
    name: write(tmp_path / f"{name}.csv", large if name == part else table) for name in ("train", "val")
  }
  with pytest.raises(train.RunError, match=f"leave_out: column 'x' has values too large .* in split {part};"):
    load(path=files["train"], val=files["val"])


@pytest.mark.parametrize("first", [0, 1])
def test_a_column_that_counts_the_rows_is_told(tmp_path, first):
  count = np.arange(60) + first
  table = {"id": count, "index": count, "x": np.arange(60)[::-1], "label": [0, 1, 1] * 20}
  told = load(path=write(tmp_path / "a.csv", table)).remarks
  counters = [line for line in told if "count the rows" in line]
  names = "columns that count the rows: id, index"
  assert counters == [f"{names}; name them in leave_out, unless the order has a meaning"]


def test_missing_numbers_have_the_decimal_mark_of_the_file(tmp_path):
  table = {"x": ["-99", "2,5", "-99,5"] * 20, "label": [0, 1, 1] * 20}
  file = write(tmp_path / "a.csv", table, delimiter=";")
  options = {"missing": ("-99,0", "-99,50"), "delimiter": ";", "decimal": ","}
  assert load(path=file, **options).columns["fill"] == {"x": 2.5}


@pytest.mark.thorough
def test_truth_values_are_no_missing_numbers(tmp_path):
  table = {"x": [0.0, 1.0, 3.0] * 20, "b": [True, False, False] * 20, "label": ["u", "v", "v"] * 20}
  file = write(tmp_path / "a.csv", table)
  options = {"path": file, "missing": ("0",)}
  fields = {"data.name": "csv", **{f"data.csv.{name}": value for name, value in options.items()}}
  train.train(runs.make_config({**fields, "epochs": 1, "method.name": "softmax"}), tmp_path / "run")
  predict = train.load(tmp_path / "run")
  want = np.array([[2.0, 1], [1.0, 0], [3.0, 0]])  # a missing number is the mean of 1 and 3
  for rows in (file, predict.read_table(tmp_path / "a.csv"), {**table, "x": [0, 1, 3] * 20}):
    got = np.asarray(predict.stored(rows), np.float64) * predict.data.input_std + predict.data.input_mean
    np.testing.assert_allclose(got[:3], want, atol=0.2)  # the mean is that of the rows of training
    np.testing.assert_allclose(got[:3, 1], want[:, 1], atol=1e-6)


def test_rows_of_weight_0_fill_no_missing_number(tmp_path):
  table = {"x": ["1", "", "1e9", "3"] * 20, "c": ["a", "a", "odd", "b"] * 20, "w": [1, 1, 0, 1] * 20}
  table |= {"label": [0, 1, 1, 0] * 20}
  file = write(tmp_path / "a.csv", table)
  other = write(tmp_path / "b.csv", table | {"x": ["2"] * 80})
  data = load(path=file, val=other, test=other, weights="w")
  assert data.columns == {"fill": {"x": 2.0}, "categories": {"c": ["a", "b"]}}


@pytest.mark.parametrize("weight", [None, "heavy"])
def test_other_parts_need_no_weights_and_nothing_that_is_left_out(tmp_path, weight):
  table = GOOD | {"w": np.arange(40) % 3, "id": np.arange(40), "label": [0, 1] * 20}
  other = {name: table[name][:10] for name in ("x", "y", "label")} | ({"w": [weight] * 10} if weight else {})
  files = {part: write(tmp_path / f"{part}.csv", other) for part in ("val", "test")}
  parts = {"train": hub.Dataset.from_dict(table), "test": hub.Dataset.from_dict(other)}
  save_to_disk(tmp_path / "set", parts)
  options = {"labels": ("label",), "weights": "w", "leave_out": ("id",)}
  table_of_file = load(path=write(tmp_path / "a.csv", table), **files, **options)
  for data in (table_of_file, stored(tmp_path / "set", **options)):
    assert data.input_names == ("x", "y")
    np.testing.assert_array_equal(unscaled(data, data.test)[:, 0].round(4), GOOD["x"][:10].round(4))


@pytest.mark.parametrize("part", ["val", "test"])
def test_a_part_that_repeats_the_training_rows_is_told_if_the_other_is_held_out(tmp_path, part):
  columns = rows()
  file, copy = (write(tmp_path / name, columns) for name in ("a.csv", "copy.csv"))
  with pytest.raises(train.RunError, match=rf"^data\.csv\.{part}: it has the examples of the train split"):
    load(path=file, **{part: copy})


def test_a_label_that_training_lacks_is_told_with_its_row(tmp_path):
  file = write(tmp_path / "a.csv", GOOD)
  other = write(tmp_path / "b.csv", with_value("label", 2, "c"))
  with pytest.raises(train.RunError, match=r"b\.csv, row 4: column 'label' has 'c', which no training"):
    load(path=file, test=other)


def test_the_training_rows_say_which_columns_are_texts_and_which_are_numbers(tmp_path):
  """In another file, texts that all look like numbers are the same categories."""
  table = {"x": np.arange(60) / 7, "code": ["A", "B", "C", "10", "20"] * 12, "y": ["u", "v", "7"] * 20}
  file = write(tmp_path / "a.csv", table)
  rest = {"x": np.arange(4) + 0.5, "code": ["10", "20", "20", "C"], "y": ["7", "7", "u", "v"]}
  part = {"val": {name: values[:2] for name, values in rest.items()}, "test": rest}
  files = {name: write(tmp_path / f"{name}.csv", each) for name, each in part.items()}
  data = load(path=file, labels=("y",), **files)
  names = ["code=10", "code=20", "code=A", "code=B", "code=C"]
  want = np.array([[each == f"code={value}" for each in names] for value in rest["code"]])
  assert data.input_names == ("x", *names)
  np.testing.assert_allclose(unscaled(data, data.test)[:, 1:], want, atol=1e-6)
  np.testing.assert_array_equal(data.test.labels, [0, 0, 1, 2])
  np.testing.assert_array_equal(data.val.labels, [0, 0])
  for values in (["yes", "no"] * 2, ["1", "2", "3", "4 m"]):
    other = write(tmp_path / "c.csv", rest | {"x": values})
    with pytest.raises(train.RunError, match=r"test: .*c\.csv, row \d: column 'x' has .* among numbers"):
      load(path=file, labels=("y",), test=other)


def test_a_sentinel_of_the_training_file_is_missing_in_a_data_frame_too(tmp_path):
  """As `pandas.read_csv` gives it: a number, or a text."""
  table = {"x": [-99.0, 2.0, 4.0] * 20, "colour": ["unknown", "red", "blue"] * 20, "label": [0, 1, 1] * 20}
  other = {name: values[:30] for name, values in table.items()}
  options = {"missing": ("-99", "unknown", "none")}
  learnt = load(path=write(tmp_path / "a.csv", table), val=write(tmp_path / "b.csv", other), **options)
  columns = learnt.describe().columns
  rows = {"x": [-99, "unknown", 2.0, None], "colour": ["none", "red", "unknown", "blue"]}
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    got = inputs_of_rows(columns, rows, options["missing"])
  np.testing.assert_allclose(got, [[3, 0, 0], [3, 0, 1], [2, 0, 0], [3, 1, 0]], rtol=0.1)
  np.testing.assert_array_equal(got[:, 1:], [[0, 0], [0, 1], [0, 0], [1, 0]])
  assert len({*got[[0, 1, 3], 0]}) == 1
  with pytest.raises(ArgumentError, match="row 1: column 'x' must be a number or missing, got 'unknown'"):
    inputs_of_rows(columns, rows)


@pytest.mark.parametrize("backend", ["numpy_nullable", "pyarrow"])
def test_data_frames_with_other_types_of_columns(backend):
  rows = {"x": [1, None, -99], "y": [0.5, 2.0, None], "b": [True, None, False], "c": ["u", None, "NA"]}
  frame = pandas().DataFrame(rows).convert_dtypes(dtype_backend=backend)
  columns = {"fill": {"x": 3.0, "y": 4.0, "b": 0.5}, "categories": {"c": ["u", "v"]}}
  got = inputs_of_rows(columns, frame, ("-99", "NA"))
  np.testing.assert_array_equal(got, [[1, 0.5, 1, 1, 0], [3, 2, 0.5, 0, 0], [3, 4, 0, 0, 0]])


CASES = (
  ("r38", {"missing": ("-99",)}, "train: values are missing: 28 in a (their mean 0.54"),
  ("r39", {"delimiter": ";"}, "decimal: .*row 2: column 'co' has '0,6', .* decimal=',' alone"),
  ("r39", {"delimiter": ";", "decimal": ","}, "numbers: co, no"),
  ("r39g", {"delimiter": ";"}, "decimal: .*row 2"),
  ("r38", {"decimal": ","}, "decimal: .*, which is a number with decimal='.' alone"),
  ("r41", {}, "labels: .*row 2: column 'zone' has no label; .* give in missing only"),
  ("r42", {}, "numbers: a, b; left out: columns without a name (1)"),
  ("r45", {"labels": ("Survived",)}, "row 2: column 'Ticket' has 'A/5 20000' among .* text or leave_out"),
  ("r45", {"labels": ("Survived",), "leave_out": ("Name", "Ticket")}, "left out: Name, Ticket"),
  ("r45", {"labels": ("Survived",), "leave_out": ("Name",), "text": ("Ticket",)}, "categories: Ticket (144)"),
  ("r73", {}, "delimiter: .* 'a;b;label'"),
  (
    "r75",
    {"delimiter": ";", "decimal": ",", "missing": ("-200",), "labels": ("T",), "leave_out": ("Date", "Time")},
    "numbers: CO(GT), S1(CO), RH; left out: Date, Time, columns without a name (2), blank rows (5)",
  ),
  ("r78a", {}, "encoding: .*utf-8"),
)


@pytest.mark.parametrize(("name", "options", "told"), CASES)
def test_tables_as_people_have_them(name, options, told, data_dir):
  """Each of them once failed, or was read wrongly without a word."""
  read = functools.partial(load, path=str(data_dir / "cases" / f"{name}.csv"), **options)
  if ".*" not in told:
    assert told in " ".join(read().remarks)
    return
  with pytest.raises(train.RunError, match=told) as refused:
    read()
  assert "\n" not in str(refused.value)


def test_a_text_for_missing_can_be_a_class_and_truth_values_are_classes_in_all_formats(tmp_path):
  table = {"x": np.arange(60) / 7, "zone": ["NA", "None", "EUR"] * 20}
  data = load(path=write(tmp_path / "a.csv", table), missing=("?",))
  assert data.class_names == ("EUR", "NA", "None")
  table = {"x": np.arange(60) / 7, "even": [True, False] * 30, "big": [False] * 29 + [True] * 31}
  hub.Dataset.from_dict(table).save_to_disk(tmp_path / "set")
  both = {
    "csv": load(path=write(tmp_path / "b.csv", table), labels=("even", "big")),
    "hub": stored(tmp_path / "set", labels=("even", "big"), test=""),
    "csv, one": load(path=write(tmp_path / "b.csv", table)),
    "hub, one": stored(tmp_path / "set", labels=("big",), test=""),
  }
  for name, data in both.items():
    assert data.class_names == (("False", "True") if "one" in name else ("even", "big"))
    assert data.num_classes == 2
  for one, other in (("csv", "hub"), ("csv, one", "hub, one")):
    np.testing.assert_array_equal(both[one].train.inputs, both[other].train.inputs)
    np.testing.assert_array_equal(both[one].train.labels, both[other].train.labels)


@pytest.mark.parametrize(
  ("values", "told"),
  [
    (["", *[1.0] * 59], "weights: .*a.csv, row 2: column 'w' must have a number of at least 0, got no value"),
    ([*[1.0] * 58, -1, 1], "row 60: column 'w' .* got -1.0"),
    (["low", *["high"] * 59], "row 2: column 'w' .* got 'low'"),
  ],
)
def test_a_weight_that_is_none_is_told_with_its_row(tmp_path, values, told):
  table = {"x": np.arange(60) / 7, "w": values, "label": ["a", "b"] * 30}
  other = write(tmp_path / "b.csv", table | {"x": np.arange(60) / 3})
  with pytest.raises(train.RunError, match=told):
    load(path=write(tmp_path / "a.csv", table), test=other, val=other, weights="w")


def test_splits_and_arrays_that_nothing_reads_are_told(tmp_path, data_dir):
  case = data_dir / "cases" / "hf47"
  told = stored(case, test="validation").remarks
  assert f"{case} has test too, not read with train='train', val='', test='validation'" in told
  with pytest.raises(train.RunError, match=r"data.huggingface.test: none of the 40 rows has a label"):
    stored(case)
  arrays = {f"x_{part}": np.eye(40)[number:] for number, part in enumerate(("train", "test"))}
  arrays |= {f"y_{part}": np.arange(len(arrays[f"x_{part}"])) % 2 for part in ("train", "test")}
  np.savez(tmp_path / "a.npz", **arrays, x_valid=np.eye(40))
  assert runs.read_source("npz", path=str(tmp_path / "a.npz")).remarks == (
    f"{tmp_path / 'a.npz'} has the arrays x_valid too, which nothing reads",
  )


@pytest.mark.thorough
def test_a_run_goes_on_where_its_data_moved(tmp_path, light_runs, capsys, monkeypatch):
  table = {"x": np.arange(60) / 7, "label": ["a", "b"] * 30}
  (tmp_path / "data").mkdir()
  write(tmp_path / "data" / "a.csv", table)
  monkeypatch.chdir(tmp_path)
  fields = {"data.name": "csv", "method.name": "softmax", "data.csv.path": "data/a.csv"}
  first = train.train(runs.make_config({**fields, "epochs": 1}), tmp_path / "run")
  again = {**fields, "data.csv.path": "./data/a.csv"}
  assert train.train(runs.make_config({**again, "epochs": 1}), tmp_path / "run") == first
  (tmp_path / "data").rename(tmp_path / "elsewhere")
  moved = {**fields, "data.csv.path": "elsewhere/a.csv", "epochs": 2}
  assert train.train(runs.make_config(moved), tmp_path / "run")["step"] == 2 * first["step"]
  told = "the same data are at another place: data.csv.path was 'data/a.csv', is 'elsewhere/a.csv'"
  assert told in capsys.readouterr().err
  write(tmp_path / "elsewhere" / "b.csv", table | {"x": np.arange(60) / 6})
  other = {**moved, "data.csv.path": "elsewhere/b.csv"}
  with pytest.raises(train.RunError, match=r"belongs to another configuration: data.csv.path"):
    train.train(runs.make_config(other), tmp_path / "run")


@pytest.mark.parametrize("shift", [0.0, 1.7e9, -5e12])
@pytest.mark.parametrize("unit", [1.0, 1e12, 1e-12])
def test_no_offset_and_no_unit_of_a_feature_costs_digits(tmp_path, shift, unit):
  values = RANDOM.integers(0, 1000, 60) / 16.0  # which an offset does not round
  plain, other = (
    load(path=write(tmp_path / f"{name}.csv", {"x": each, "label": ["a", "b"] * 30}))
    for name, each in (("plain", values), ("other", (values + shift) * unit))
  )
  tolerance = max(1e-6, 1e-14 * abs(shift))  # the decimals of the product are rounded
  np.testing.assert_allclose(other.train.inputs, plain.train.inputs, atol=tolerance)


def test_a_teacher_sees_the_inputs_in_its_own_units(tmp_path):
  """Its training rows may have had other means and scales."""
  values, factor = RANDOM.normal(size=(2, 60)), np.array([3.0, 0.1])
  file, other = (
    load(path=write(tmp_path / f"{k}.csv", {"x": x[0], "y": x[1], "label": ["a", "b"] * 30})).describe()
    for k, x in enumerate((values, values * factor[:, None] + 5))
  )
  scale, shift = file.in_units_of(other)
  rows = RANDOM.normal(size=(7, 2))
  np.testing.assert_allclose(file.standardized(rows) * scale + shift, other.standardized(rows), atol=1e-4)


@pytest.mark.thorough
def test_a_table_trains_and_its_model_names_its_inputs(tmp_path, light_runs):
  bunch = datasets.load_wine(as_frame=False)
  columns = dict(zip(bunch.feature_names, bunch.data.T, strict=True))
  file = write(tmp_path / "wine.csv", columns | {"cultivar": bunch.target_names[bunch.target]})
  fields = {"data.name": "csv", "data.csv.path": file, "epochs": 20, "batch_size": 32, "model.name": "MLP"}
  results = train.train(runs.make_config(fields), tmp_path / "run")
  assert results["test/error"] < 0.1
  predict = train.load(tmp_path / "run")
  assert predict.input_names == tuple(bunch.feature_names)
  assert predict.class_names == tuple(sorted(bunch.target_names))
  right = np.asarray(predict(bunch.data.astype(np.float32))).argmax(-1) == bunch.target
  assert right.mean() > 0.9
  test = predict.dataset.test  # in the units of the file
  assert all((bunch.data == row).all(axis=1).any() for row in test.inputs.round(4))
  np.testing.assert_array_equal(predict.stored(test.inputs), predict.stored_dataset.test.inputs)
  wrong = np.asarray(predict(test.inputs)).argmax(-1) != test.labels
  assert wrong.mean() == pytest.approx(results["test/error"])


# Data sets of the package `datasets`.
FEATURES = {"image": hub.Image(), "label": hub.ClassLabel(names=["cat", "dog"])}


@pytest.fixture(autouse=True)
def no_network(monkeypatch, tmp_path_factory):
  from huggingface_hub import constants

  monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
  monkeypatch.setattr(hub.config, "HF_HUB_OFFLINE", True)
  monkeypatch.setattr(hub.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("hub"))


def stored(folder, **options):
  return runs.read_source("huggingface", path=str(folder), **options)


def image_table(images, labels):
  from PIL import Image

  table = {"image": [Image.fromarray(image) for image in images], "label": labels}
  return hub.Dataset.from_dict(table, features=hub.Features(FEATURES))


def save_to_disk(folder, tables):
  hub.DatasetDict(tables).save_to_disk(folder, num_shards=dict.fromkeys(tables, 2))


def save_parquet(folder, tables):
  for name, table in tables.items():
    (folder / "data").mkdir(parents=True, exist_ok=True)
    table.to_parquet(folder / "data" / f"{name}-00000-of-00001.parquet")


@pytest.mark.parametrize("save", [save_to_disk, save_parquet])
@pytest.mark.parametrize("shape", [(6, 5), (6, 5, 3)])
def test_stored_images_are_those_that_were_written(tmp_path, save, shape):
  images = {
    part: RANDOM.integers(0, 256, (number, *shape), np.uint8)
    for part, number in (("train", 20), ("test", 10))
  }
  labels = {part: np.arange(len(array)) % 2 for part, array in images.items()}
  save(tmp_path / "set", {part: image_table(images[part], labels[part]) for part in images})
  data = stored(tmp_path / "set")
  assert (data.class_names, data.scale) == (("cat", "dog"), 255.0)
  assert data.train.inputs.shape[1:] == (*shape, 1)[:3]
  np.testing.assert_array_equal(data.test.inputs.reshape(10, *shape), images["test"])
  np.testing.assert_array_equal(data.test.labels, labels["test"])
  both = np.concatenate([data.train.inputs, data.val.inputs]).reshape(20, *shape)
  assert {image.tobytes() for image in both} == {image.tobytes() for image in images["train"]}


def test_a_part_that_repeats_the_training_images_is_refused(tmp_path):
  table = image_table(RANDOM.integers(0, 256, (20, 4, 4), np.uint8), [0, 1] * 10)
  save_to_disk(tmp_path, {"train": table, "test": table})
  with pytest.raises(train.RunError, match=r"^data\.huggingface\.test: it has the examples of the train"):
    stored(tmp_path)


def test_unused_bits_of_images_are_told_by_split(tmp_path):
  images = RANDOM.integers(0, 256, (20, 4, 4), np.uint16)
  tables = {
    "train": image_table(images.astype(np.uint8), [0, 1] * 10),
    "test": image_table(images, [0, 1] * 10),
  }
  save_to_disk(tmp_path, tables)
  assert [line.partition(" of 16")[0] for line in stored(tmp_path).remarks] == ["split test: 20 images"]


def test_images_of_unequal_sizes_are_streamed_also_from_another_process_and_folder(tmp_path):
  images = [RANDOM.integers(0, 256, (8 + k % 3, 9, 3), np.uint8) for k in range(20)]
  tables = {"train": image_table(images, [0, 1] * 10)}
  tables["test"] = image_table([255 - image for image in images], [0, 1] * 10)
  save_to_disk(tmp_path / "set", tables)
  with pytest.raises(train.RunError, match=r"stream: must be True for images of unequal sizes"):
    stored(tmp_path / "set")
  data = stored(tmp_path / "set", stream=True)
  assert data.streams()
  assert data.test.inputs.store.name(3).endswith("split test, example 3")
  there = pickle.loads(pickle.dumps(data.test.inputs))
  np.testing.assert_array_equal(np.asarray(there[:1].decoded(0)), 255 - images[0])
  shutil.copytree(tmp_path / "set", tmp_path / "copy")
  assert stored(tmp_path / "copy", stream=True).describe() == data.describe()


def test_columns_of_numbers_texts_classes_and_lists(tmp_path):
  table = {
    "vector": RANDOM.normal(size=(30, 3)).tolist(),
    "flag": [True, False, None] * 10,
    "colour": [0, 1, 2] * 10,
    "zip": [10115, 20095, 10115] * 10,
    "label": RANDOM.normal(size=30),
  }
  colours = hub.ClassLabel(names=["red", "green", "blue"])
  save_parquet(tmp_path / "set", {"train": hub.Dataset.from_dict(table).cast_column("colour", colours)})
  data = stored(tmp_path / "set", test="", text=("zip",), labels=("label",))
  names = ("vector[0]", "vector[1]", "vector[2]", "flag")
  names += ("colour=blue", "colour=green", "colour=red", "zip=10115", "zip=20095")
  assert (data.num_classes, data.input_names) == (0, names)
  every = np.concatenate([unscaled(data, split) for split in data.splits().values()])
  written = np.array(table["vector"])
  np.testing.assert_allclose(np.sort(every[:, :3], axis=0), np.sort(written, axis=0), atol=1e-6)
  left = stored(tmp_path / "set", test="", leave_out=("flag", "colour", "zip"), labels=("vector",))
  assert (left.input_names, left.class_names) == (("label",), names[:3])


@pytest.mark.parametrize("name", ["a[1]", "a*", "a?"])
def test_a_path_that_reads_as_a_pattern(tmp_path, name):
  """Files and saved data sets are read; a folder of Parquet files is refused in one line."""
  table = hub.Dataset.from_dict({"x": [0.5 * k for k in range(40)], "label": [0, 1] * 20})
  save_to_disk(tmp_path / name / "saved", {"train": table})
  assert stored(tmp_path / name / "saved", test="").input_names == ("x",)
  table.to_parquet(tmp_path / name / "rows.parquet")
  assert _open_parquet(tmp_path / name / "rows.parquet")["x"][:] == table["x"][:]
  save_parquet(tmp_path / name / "set", {"train": table})
  message = rf"huggingface\.path: the package datasets takes '.*{re.escape(name)}/set' for a pattern; give"
  with pytest.raises(train.RunError, match=message):
    stored(tmp_path / name / "set")


@pytest.mark.parametrize(
  ("options", "message"),
  [
    ({"path": "./nowhere"}, r"path: got '\./nowhere', which is not there"),
    (
      {"path": "somebody/nothing"},
      r"path: 'somebody/nothing' cannot be read by .*; give .* a name on the hub",
    ),
    ({"test": "tst"}, r"test: got 'tst'.* did you mean 'test'"),
    ({"labels": ("lable",)}, r"labels: got 'lable'"),
    ({"leave_out": ("imagen",)}, r"leave_out: got 'imagen'"),
    (
      {"test": "unlabelled"},
      r"test: none of the 20 rows has a label in column 'label', the first one has -1",
    ),
  ],
)
def test_mistakes_in_a_folder_are_told(tmp_path, options, message):
  images = RANDOM.integers(0, 256, (20, 4, 4), np.uint8)
  tables = {part: image_table(images, [0, 1] * 10) for part in ("train", "test")}
  save_parquet(tmp_path / "set", tables | {"unlabelled": image_table(images, [-1] * 20)})
  with pytest.raises(train.RunError, match=message) as refused:
    runs.read_source("huggingface", **{"path": str(tmp_path / "set"), **options})
  assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
  ("values", "options", "told"),
  [
    ([{"a": 1}] * 40, {}, "leave_out: column 'z' has {'a': .*leave it out"),
    ([{"a": 1}, None] * 20, {"text": ("z",)}, "leave_out: column 'z' has"),
    ([{"a": 1}] * 40, {"labels": ("z",)}, "leave_out: column 'z' has"),
    ([[]] * 40, {}, "leave_out: column 'z' has List"),
    ([[]] * 40, {"labels": ("z",)}, "leave_out: column 'z' has List"),
    ([[1.0]] * 40, {"text": ("z",)}, None),
    ([b"a"] * 40, {"text": ("z",)}, "leave_out: column 'z' has"),
    ([1.0] * 40, {"leave_out": ("label",)}, "leave_out: must not name 'label', a column of labels"),
    ([1.0] * 40, {"labels": ("z",), "weights": "z"}, "weights: must not name a column of labels, got 'z'"),
    (
      [1.0] * 40,
      {"leave_out": ("z",), "weights": "z"},
      "leave_out: must not name 'z', a column of labels or",
    ),
  ],
)
def test_columns_of_other_kinds_are_told(tmp_path, values, options, told):
  table = {"x": np.arange(40) / 7, "z": values, "label": ["a", "b"] * 20}
  save_parquet(tmp_path / "set", {"train": hub.Dataset.from_dict(table)})
  if told is None:  # a list of numbers is no text
    assert stored(tmp_path / "set", test="", **options).input_names == ("x", "z[0]")
    return
  with pytest.raises(train.RunError, match=told) as refused:
    stored(tmp_path / "set", test="", **options)
  assert "\n" not in str(refused.value)


DAY = datetime.datetime(2020, 1, 1)
TWO = ["u", "v"]
# Arrow's type of the column z, its values, and what must come of it: inputs by name, or the end of the error.
KINDS = {
  "8-bit integers": (pa.int8(), [-128, 127], {"z": [-128, 127]}),
  "unsigned integers of 64 bits": (pa.uint64(), [2**63, 2**64 - 2**11], {"z": [2.0**63, 2.0**64 - 2.0**11]}),
  "integers beyond 2**31, some missing": (pa.int64(), [2**40 + 1, None], {"z": [2**40 + 1, np.nan]}),
  "integers that are one in float64": (
    pa.int64(),
    [2**53, 2**53 + 1],
    "text: column 'z' has different integers",
  ),
  "half precision": (pa.float16(), [np.float16(1.5), None], {"z": [1.5, np.nan]}),
  "infinity": (pa.float64(), [1.0, np.inf], "column 'z' has an infinite value"),
  "bools, some missing": (pa.bool_(), [True, None], {"z": [1, np.nan]}),
  "decimals": (pa.decimal128(5, 2), [decimal.Decimal("1.25"), None], {"z": [1.25, np.nan]}),
  "nothing": (pa.null(), [None, None], "leave_out: column 'z' has no value in training"),
  "texts, some missing": (pa.string(), ["u", None], {"z=u": [1, 0]}),
  "texts of numbers": (pa.string(), ["0,5", "1,5"], "column 'z' has '0,5', which looks like a number; store"),
  "texts of digits": (pa.string(), ["10115", "80331"], {"z=10115": [1, 0], "z=80331": [0, 1]}),
  "texts, some empty, some missing": (pa.string(), ["", None], {"z=": [1, 0]}),
  "large texts": (pa.large_string(), TWO, {"z=u": [1, 0], "z=v": [0, 1]}),
  "a dictionary of texts": (pa.dictionary(pa.int32(), pa.string()), TWO, {"z=u": [1, 0], "z=v": [0, 1]}),
  "a dictionary of numbers": (pa.dictionary(pa.int32(), pa.int64()), [5, 7], {"z": [5, 7]}),
  "bytes": (pa.binary(), [b"1", b"2"], "leave_out: column 'z' has Value"),
  "bytes of one length": (pa.binary(1), [b"1", b"2"], "leave_out: column 'z' has Value"),
  "timestamps": (pa.timestamp("ns", tz="UTC"), [DAY, None], "leave_out: column 'z' has Value"),
  "dates": (pa.date32(), [DAY.date()] * 2, "leave_out: column 'z' has Value"),
  "times": (pa.time64("us"), [datetime.time(1)] * 2, "leave_out: column 'z' has Value"),
  "durations": (pa.duration("s"), [datetime.timedelta(1)] * 2, "leave_out: column 'z' has Value"),
  "structures": (pa.struct([("a", pa.int64())]), [{"a": 1}, None], "leave_out: column 'z' has {'a'"),
  "lists": (pa.list_(pa.int64()), [[1, 2], [3, 4]], {"z[0]": [1, 3], "z[1]": [2, 4]}),
  "large lists": (pa.large_list(pa.float32()), [[1, 2], [3, 4]], {"z[0]": [1, 3], "z[1]": [2, 4]}),
  "lists, the first missing": (
    pa.list_(pa.float64(), 2),
    [None, [3, 4]],
    {"z[0]": [np.nan, 3], "z[1]": [np.nan, 4]},
  ),
  "lists of bools": (pa.list_(pa.bool_()), [[True, False]] * 2, {"z[0]": [1, 1], "z[1]": [0, 0]}),
  "lists of unequal length": (pa.list_(pa.float64()), [[1.0, 2.0], [1.0]], "leave_out: column 'z' has List"),
  "lists without a value": (
    pa.list_(pa.float64()),
    [[1.0, None]] * 2,
    "leave_out: the lists of column 'z' have no",
  ),
  "empty lists": (pa.list_(pa.float64()), [[]] * 2, "leave_out: column 'z' has List"),
  "lists of lists": (pa.list_(pa.list_(pa.int64())), [[[1], [2, 3]]] * 2, "leave_out: column 'z' has List"),
  "lists of digits": (pa.list_(pa.string()), [["1", "2"]] * 2, "leave_out: column 'z' has List"),
  "lists of bytes": (pa.list_(pa.binary()), [[b"1"]] * 2, "leave_out: column 'z' has List"),
  "lists of timestamps": (pa.list_(pa.timestamp("s")), [[DAY]] * 2, "leave_out: column 'z' has List"),
  "lists of structures": (
    pa.list_(pa.struct([("a", pa.int64())])),
    [[{"a": 1}]] * 2,
    "leave_out: column 'z' has List",
  ),
}


@pytest.mark.parametrize("save", [save_to_disk, save_parquet])
@pytest.mark.parametrize("kind", KINDS)
def test_a_column_of_each_kind_is_right_or_named(tmp_path, kind, save):
  dtype, values, expected = KINDS[kind]
  table = pa.table({"z": pa.array(values * 20, dtype), "x": np.arange(40) / 7, "label": ["a", "b"] * 20})
  save(tmp_path / "set", {"train": hub.Dataset(table), "test": hub.Dataset(table[:38])})
  if isinstance(expected, str):
    with pytest.raises(train.RunError, match=re.escape(expected)) as refused:
      stored(tmp_path / "set", labels=("label",))
    assert "\n" not in str(refused.value)
    return
  data = stored(tmp_path / "set", labels=("label",))
  inputs = dict(zip(data.input_names, unscaled(data, data.test).T, strict=True))
  for name, column in expected.items():
    column = np.array(column, np.float64)
    filled = np.where(np.isnan(column), np.nanmean(column), column)
    np.testing.assert_allclose(inputs[name][:2], filled, rtol=1e-6, atol=1e-6)
  assert {*expected} == {name for name in inputs if name[0] == "z"}


ANIMALS = {"label": hub.ClassLabel(names=["cat", "dog"])}


def classes(names, label=(0, 1), more=None):
  features = {"x": hub.Value("float64"), "label": hub.ClassLabel(names=names)} | (more or {})
  table = {"x": np.arange(40) / 7, "label": [*label] * 20} | dict.fromkeys(more or {}, [0, 1] * 20)
  return hub.Dataset.from_dict(table, features=hub.Features(features))


@pytest.mark.parametrize(
  ("splits", "told"),
  [
    ({"test": classes(["dog", "cat"])}, "column 'label' has"),
    ({"test": classes(["cat", "dog", "eel"], (0, 2))}, "column 'label' has 2.0, which no training"),
    (
      {"test": hub.Dataset.from_dict({"x": [0.0] * 4, "label": ["cat"] * 4})},
      "column 'label' has Value",
    ),
    (
      {"test": hub.Dataset.from_dict({"x": ["0"] * 4}).add_column("label", [0] * 4)},
      "column 'x' has Value",
    ),
    ({"test": hub.Dataset.from_dict({"label": [0, 1]})}, "test: split 'test' has no column 'x'"),
    ({"test": hub.Dataset.from_dict({"x": [0.0, 1.0]})}, "test: split 'test' has no column 'label'"),
    ({"test": classes(["cat", "dog"]).select([])}, "test: split 'test' of .* has no examples"),
    ({"train": classes(["cat", "dog"]).select([])}, "train: split 'train' of .* has no examples"),
    ({"un sup-1": classes(["cat", "dog"]).select([])}, ""),
    ({"test": classes(["cat", "dog"]).remove_columns("x").add_column("x", [None] * 40)}, ""),
  ],
)
def test_splits_that_differ_are_told(tmp_path, splits, told):
  animals = classes(["cat", "dog"])
  tables = {"train": animals, "test": animals.select([2, 1, 0, *range(3, 40)]), **splits}
  hub.DatasetDict(tables).save_to_disk(tmp_path / "set")
  if not told:  # a split that nothing reads, or a column without values
    np.testing.assert_array_equal(stored(tmp_path / "set").test.labels, [0, 1] * 20)
    return
  with pytest.raises(train.RunError, match=told) as refused:
    stored(tmp_path / "set")
  assert "\n" not in str(refused.value)


def test_files_that_number_their_classes_otherwise_are_told(tmp_path):
  """`datasets` reads both with the names of one, so that all test labels would be wrong."""
  save_parquet(tmp_path / "set", {"train": classes(["cat", "dog"]), "test": classes(["dog", "cat"])})
  with pytest.raises(train.RunError, match=r"path: column 'label' has the classes .*; write both"):
    stored(tmp_path / "set")


@pytest.mark.parametrize("number", [2, 3])
def test_lists_of_another_length_in_a_split_are_told(tmp_path, number):
  parts = {"train": 40 * [[1.0, 2.0]], "test": 40 * [[1.0, 3.0, 4.0][: 5 - number]]}
  tables = {name: classes(["cat", "dog"]).add_column("z", lists) for name, lists in parts.items()}
  save_parquet(tmp_path / "set", tables)
  if number == 3:
    assert stored(tmp_path / "set").input_names == ("x", "z[0]", "z[1]")
    return
  with pytest.raises(train.RunError, match="test: column 'z' has lists of another length in split 'test'"):
    stored(tmp_path / "set")


def test_text_that_is_not_utf_8_is_told(tmp_path):
  import pyarrow
  from pyarrow import parquet

  words = pyarrow.array([b"a", b"caf\xe9"] * 20, pyarrow.binary()).view(pyarrow.string())
  table = pyarrow.table({"x": np.arange(40) / 7, "t": words, "label": np.arange(40) % 2})
  (tmp_path / "set").mkdir()
  parquet.write_table(table, tmp_path / "set" / "train.parquet")
  message = r"train: column 't' cannot be read \([^\n]*\); its text must be UTF-8: write it again$"
  with pytest.raises(train.RunError, match=message):
    stored(tmp_path / "set", test="")
  with pytest.raises(ValueError, match="inputs: column 't' cannot be read"):
    read_parquet_rows({"fill": {"x": 0.0}, "categories": {"t": ["a"]}}, tmp_path / "set" / "train.parquet")


def test_class_numbers_are_no_yes_or_no_labels(tmp_path):
  more = {"kind": hub.ClassLabel(names=["u", "v", "w"])}
  save_parquet(tmp_path / "set", {"train": classes(["cat", "dog"], more=more)})
  with pytest.raises(train.RunError, match=r"labels: several labels must be .*; column 'kind' has classes"):
    stored(tmp_path / "set", test="", labels=("label", "kind"))
  lists = hub.Dataset.from_dict(
    {"x": np.arange(40) / 7, "label": [[0, 1]] * 40},
    features=hub.Features({"x": hub.Value("float64"), "label": hub.Sequence(ANIMALS["label"])}),
  )
  save_parquet(tmp_path / "lists", {"train": lists})
  with pytest.raises(train.RunError, match="leave_out: column 'label' has List"):
    stored(tmp_path / "lists", test="")


def test_large_integers_are_classes_by_their_digits(tmp_path):
  """In float64, the two classes would be one."""
  ids = [2**53, 2**53 + 1] * 20
  table = {"x": np.arange(40) / 7, "z": [1.0, 2.0] * 20, "label": ids}
  save_parquet(tmp_path / "set", {"train": hub.Dataset.from_dict(table)})
  file = write(tmp_path / "a.csv", table)
  for read in (functools.partial(stored, tmp_path / "set", test=""), functools.partial(load, path=file)):
    with pytest.raises(train.RunError, match="text: column 'label' has different integers beyond 2"):
      read()
    assert read(text=("label",)).class_names == (str(2**53), str(2**53 + 1))
  table["label"] = [2**60 + 1, 3] * 20
  with pytest.raises(train.RunError, match="text: column 'label' has classes beyond 2"):
    load(path=write(tmp_path / "a.csv", table))


def test_an_image_that_is_missing_is_told_with_its_column(tmp_path):
  images = [np.zeros((4, 4), np.uint8), None] * 20
  features = hub.Features({"picture": hub.Image(), **ANIMALS})
  save_parquet(
    tmp_path / "set",
    {"train": hub.Dataset.from_dict({"picture": images, "label": [0, 1] * 20}, features=features)},
  )
  with pytest.raises(train.RunError, match=r"split train, example 1 .*column 'picture' has no image there"):
    stored(tmp_path / "set", test="")
  assert stored(tmp_path / "set", test="", stream=True).streams()


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "tsv"])
def test_a_folder_of_csv_files_is_refused(tmp_path, ending):
  table = {"x": ["0,5", "1,5"] * 20, "label": ["a", "b"] * 20}
  write(tmp_path / f"train.{ending}", table, "\t" if ending == "tsv" else ",")
  with pytest.raises(
    train.RunError, match=r"huggingface\.path: .* has CSV files, .*; use data.name=csv"
  ) as refused:
    stored(tmp_path, test="")
  assert "\n" not in str(refused.value)


def test_csv_files_beside_images_or_parquet_refuse_nothing(tmp_path):
  from PIL import Image

  (tmp_path / "images").mkdir()
  files = [f"{k}.png" for k in range(20)]
  for file in files:
    Image.fromarray(RANDOM.integers(0, 256, (4, 4), np.uint8)).save(tmp_path / "images" / file)
  write(tmp_path / "images" / "metadata.csv", {"file_name": files, "label": ["cat", "dog"] * 10})
  assert stored(tmp_path / "images", test="").class_names == ("cat", "dog")
  save_parquet(tmp_path / "set", {"train": classes(["cat", "dog"])})
  write(tmp_path / "set" / "notes.csv", {"a": [1]})
  assert stored(tmp_path / "set", test="").input_names == ("x",)


@pytest.mark.parametrize(
  "name", ["", "Unnamed: 0", "Unnamed: 0.1", "Unnamed: 0_level_0", "__index_level_0__"]
)
def test_the_nameless_index_of_pandas_is_left_out(tmp_path, name):
  """With rows sorted by class, it would tell the class."""
  table = {name: np.arange(40), "x": np.arange(40) / 7, "label": ["a", "b"] * 20}
  save_parquet(tmp_path / "set", {"train": hub.Dataset.from_dict(table)})
  write(tmp_path / "a.csv", table)
  for data in (stored(tmp_path / "set", test=""), load(path=str(tmp_path / "a.csv"))):
    assert data.input_names == ("x",)
    assert data.remarks[0] == "numbers: x; left out: columns without a name (1)"


def test_an_image_at_a_pipe_is_told(tmp_path):
  os.mkfifo(tmp_path / "pipe")
  table = {"image": [{"bytes": None, "path": str(tmp_path / "pipe")}] * 40, "label": [0, 1] * 20}
  store = Encoded(hub.Dataset.from_dict(table).select_columns(["image"]), "split train, example")
  with pytest.raises(ValueError, match="pipe is not a file"):
    store.read(0)


@pytest.mark.parametrize("damage", ["empty", "cut", "no state", "no image"])
def test_a_damaged_folder_is_told(tmp_path, damage):
  images = RANDOM.integers(0, 256, (20, 4, 4), np.uint8)
  table = image_table(images, [0, 1] * 10)
  if damage == "no image":
    empty = {"image": [None] * 20, "label": [0, 1] * 10}
    table = hub.Dataset.from_dict(empty, features=hub.Features(FEATURES))
  save_to_disk(tmp_path / "set", {"train": table, "test": table})
  file = next((tmp_path / "set" / "train").glob("*.arrow"))
  if damage == "empty":
    shutil.rmtree(tmp_path / "set")
    (tmp_path / "set").mkdir()
  elif damage == "cut":
    file.write_bytes(file.read_bytes()[:100])
  elif damage == "no state":
    (file.parent / "state.json").unlink()
  with pytest.raises(train.RunError, match=r"huggingface|set") as refused:
    stored(tmp_path / "set")
  assert "\n" not in str(refused.value)

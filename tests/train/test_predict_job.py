"""Predictions for new examples, by `load` and by the job `predict`: against an encoding by scikit-learn."""

import csv
import functools
import gzip
import json
import shutil
import warnings

import numpy as np
import pytest
import runs
import zips
from image_files import make_folder, noise
from sklearn import compose, impute, preprocessing

from jaxreg import train
from jaxreg.train import cli
from jaxreg.train.data import sources
from jaxreg.train.data.tables import MISSING
from jaxreg.train.jobs.predict import lines, predict

pandas = pytest.importorskip("pandas")
hub = pytest.importorskip("datasets")

COLOURS = ("blue", "green", "red")
ROWS = {  # with missing values and a colour that training had not
  "age": [31.5, None, 44.0, -2.0],
  "colour": ["red", "green", None, "violet"],
  "wide": [1.0, 2.5, 3.0, None],
}


METHODS = {"kind": "softmax", "score": "gaussian_nll", "quantiles": "pinball"}


def table(number=90, *, label):
  generator = np.random.default_rng(number)
  age, wide = generator.normal(40, 10, number).round(2), generator.normal(size=number).round(3)
  colour = generator.choice(COLOURS, number)
  columns = {"age": age.astype(object), "colour": colour.astype(object), "wide": wide}
  columns["age"][4], columns["colour"][6] = "", ""
  score = age / 10 + 3 * (colour == "red") + wide
  kind = np.where(score > np.median(score), "yes", "no")
  return pandas.DataFrame(columns | ({"kind": kind} if label == "kind" else {"score": 1e6 + 100 * score}))


@pytest.fixture(scope="module")
def trained(tmp_path_factory, light_module):
  """A function from the kind of labels to a run on a table: the work directory and the training rows."""
  del light_module

  @functools.cache
  def make(label):
    folder = tmp_path_factory.mktemp(label)
    frame = table(label=label)
    frame.to_csv(folder / "train.csv", index=False)
    fields = {
      "data.name": "csv",
      "data.csv.path": str(folder / "train.csv"),
      "method.name": METHODS[label],
    }
    table(60, label=label).to_csv(folder / "test.csv", index=False)
    table(40, label=label).to_csv(folder / "val.csv", index=False)
    fields |= {"data.csv.test": str(folder / "test.csv"), "data.csv.val": str(folder / "val.csv")}
    train.train(runs.make_config({**fields, "epochs": 3}), folder / "run")
    return folder / "run", frame

  return make


def encoded(frame, rows):
  """The matrix of the inputs, by scikit-learn: the numbers, then a column for each colour."""
  numbers, texts = ["age", "wide"], ["colour"]
  transform = compose.make_column_transformer(
    (impute.SimpleImputer(), numbers),
    (preprocessing.OneHotEncoder(handle_unknown="ignore", categories=[[*COLOURS]]), texts),
    sparse_threshold=0,
  )

  def clean(table):
    values = {name: pandas.to_numeric(pandas.Series(table[name])) for name in numbers}
    return pandas.DataFrame({**values, "colour": [each or "none" for each in table["colour"]]})

  transform.fit(clean(frame.replace("", None)))
  return np.asarray(transform.transform(clean(rows)), np.float64)


def called(*arguments):
  """The results of the command `jaxreg predict`."""
  call = cli.parse(["predict", *map(str, arguments)], runs.ROOT / "configs")
  return predict(call.config, call.workdir)


def written(workdir, file, out, *flags):
  """What the job writes, by column, and its results."""
  results = called(workdir, file, "--out", out, *flags)
  with open(out, newline="", encoding="utf-8", errors="surrogateescape") as stream:
    rows = [*csv.DictReader(stream)]
  assert [*rows[0]] == results["columns"]
  assert len(rows) == results["examples"]
  return {name: [row[name] for row in rows] for name in rows[0]}, results


def forms(folder):
  """The same rows in every form that `load` takes."""
  frame = pandas.DataFrame(ROWS)
  frame.assign(more="left").to_csv(folder / "rows.csv", index=False)
  hub.Dataset.from_dict(ROWS).to_parquet(folder / "rows.parquet")
  rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
  return {
    "frame": frame,
    "turned": frame[["wide", "colour", "age"]].set_index(pandas.Index([7, 7, 3, 1])),
    "rows": rows,
    "columns": ROWS,
    "arrow": hub.Dataset.from_dict(ROWS),
    "csv": folder / "rows.csv",
    "csv as text": str(folder / "rows.csv"),
    "parquet": folder / "rows.parquet",
  }


@pytest.mark.parametrize("kind", ["kind", pytest.param("score", marks=pytest.mark.thorough)])
def test_rows_are_encoded_as_in_training(kind, trained, tmp_path):
  workdir, frame = trained(kind)
  predictor = train.load(workdir)
  expected = np.asarray(predictor(encoded(frame, ROWS)))
  for name, rows in forms(tmp_path).items():
    with pytest.warns(UserWarning, match="1 of 4 rows have values of column 'colour' .* 'violet'"):
      predictions = np.asarray(predictor(rows))
    np.testing.assert_allclose(predictions, expected, rtol=1e-6, err_msg=name)
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    first = {name: values[0] for name, values in ROWS.items()}
    for row in (first, pandas.DataFrame(ROWS).iloc[0]):
      np.testing.assert_allclose(predictor(row), expected[:1], rtol=1e-6)
  if kind == "kind":
    assert predictor.classify([first]) == [("no", "yes")[int(expected[0].argmax())]]


def test_a_category_of_a_parquet_file_is_not_missing(tmp_path, light_module):
  """In a CSV file, each of these texts would stand for no value."""
  frame = pandas.DataFrame({"x": np.arange(120) / 7, "c": [*MISSING, "a"] * 12, "label": [0, 1] * 60})
  hub.Dataset.from_pandas(frame).to_parquet(tmp_path / "a.parquet")
  fields = {"data.name": "huggingface", "data.huggingface.path": str(tmp_path), "data.huggingface.test": ""}
  train.train(runs.make_config({**fields, "method.name": "softmax", "epochs": 1}), tmp_path / "run")
  predictor = train.load(tmp_path / "run")
  rows = frame[:10].drop(columns="label")
  categories = np.array(sorted({*frame["c"]}))
  matrix = np.column_stack([rows["x"], rows["c"].to_numpy(str)[:, None] == categories])
  rows.to_csv(tmp_path / "a.csv", index=False)
  hub.Dataset.from_pandas(rows).to_parquet(tmp_path / "b.parquet")
  files = [tmp_path / name for name in ("a.csv", "b.parquet")]
  for each in (rows, rows.to_dict("records"), rows.to_dict("list"), *files):
    np.testing.assert_array_equal(predictor.stored(each), predictor.stored(matrix))
  expected = np.exp(np.asarray(predictor(matrix)))[:, 1]
  for file in files:
    columns, _ = written(tmp_path / "run", file, tmp_path / "out.csv")
    np.testing.assert_allclose(np.array(columns["p(1)"], float), expected, rtol=1e-6)


def test_columns_named_by_numbers(tmp_path, light_module):
  """As pandas names columns without names; in any order, and beside others."""
  x = np.random.default_rng(0).normal(size=(60, 3)).round(3)
  pandas.DataFrame(x).assign(label=[0, 1] * 30).to_csv(tmp_path / "a.csv", index=False)
  fields = {"data.name": "csv", "data.csv.path": str(tmp_path / "a.csv"), "method.name": "softmax"}
  train.train(runs.make_config({**fields, "epochs": 1}), tmp_path / "run")
  predictor = train.load(tmp_path / "run")
  frame = pandas.DataFrame(x[:5])
  turned = frame[[2, 0, 1]].assign(**{"7": 1.0})
  turned.to_csv(tmp_path / "b.csv", index=False)
  for rows in (frame, turned, frame.to_dict("records"), frame.to_dict("list"), tmp_path / "b.csv"):
    np.testing.assert_array_equal(predictor.stored(rows), predictor.stored(x[:5]))
  np.testing.assert_array_equal(predictor.stored(frame.iloc[3]), predictor.stored(x[3:4]))
  (tmp_path / "c.csv").write_text("2,0\n1.5,3\n")
  with pytest.raises(ValueError, match=r"c\.csv, row 1 must name the columns, got 2, 0$"):
    predictor(tmp_path / "c.csv")


@pytest.mark.thorough
def test_a_frame_and_its_file_have_the_same_missing_values(tmp_path, light_runs):
  generator = np.random.default_rng(0)
  x = np.where(np.arange(90) % 5 == 0, -99, generator.normal(size=90).round(2))
  frame = pandas.DataFrame({"x": x, "y": generator.normal(size=90).round(2), "label": ["a", "b", "c"] * 30})
  frame.to_csv(tmp_path / "a.csv", index=False)
  fields = {"data.name": "csv", "data.csv.path": str(tmp_path / "a.csv"), "data.csv.missing": ("-99",)}
  train.train(runs.make_config({**fields, "method.name": "softmax", "epochs": 2}), tmp_path / "run")
  predictor = train.load(tmp_path / "run")
  want = np.asarray(predictor(frame.replace(-99, np.nan)))
  for rows in (frame, frame.to_dict("records"), tmp_path / "a.csv"):
    np.testing.assert_array_equal(predictor(rows), want)


def test_a_file_of_one_column_is_predicted_and_its_blank_rows_are_told(tmp_path, light_module):
  frame = pandas.DataFrame({"x": np.arange(90) / 7, "label": ["a", "b", "c"] * 30})
  frame.to_csv(tmp_path / "a.csv", index=False)
  fields = {"data.name": "csv", "data.csv.path": str(tmp_path / "a.csv"), "method.name": "softmax"}
  train.train(runs.make_config({**fields, "epochs": 1}), tmp_path / "run")
  (tmp_path / "b.csv").write_text("x\n1.5\n\n59\n9007199254740992\n9007199254740993\n")
  with pytest.warns(UserWarning, match=r"inputs: .*b\.csv: left out: blank rows \(1\)"):
    columns, _ = written(tmp_path / "run", tmp_path / "b.csv", tmp_path / "out.csv")
  assert columns["example"] == ["2", "4", "5", "6"]
  expected = np.exp(np.asarray(train.load(tmp_path / "run")(np.array([[1.5], [59], [2**53], [2**53]]))))
  np.testing.assert_allclose(np.array(columns["p(b)"], float), expected[:, 1], rtol=1e-6)


@pytest.mark.thorough
def test_texts_that_look_like_numbers_are_the_same_texts_in_a_frame(tmp_path, light_runs):
  codes = ["1", "2", "3.0"] * 30
  frame = pandas.DataFrame({"code": codes, "label": ["a", "b", "c"] * 30})
  frame.to_csv(tmp_path / "a.csv", index=False)
  fields = {"data.name": "csv", "data.csv.path": str(tmp_path / "a.csv"), "data.csv.text": ("code",)}
  train.train(runs.make_config({**fields, "epochs": 1, "method.name": "softmax"}), tmp_path / "run")
  predictor = train.load(tmp_path / "run")
  expected = predictor(np.array([[1.0, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0]]))
  for codes in (["1", "2", "3.0", None], [1.0, 2.0, 3.0, np.nan]):
    np.testing.assert_allclose(predictor(pandas.DataFrame({"code": codes})), expected, rtol=1e-6)


@pytest.mark.parametrize(
  ("rows", "told"),
  [
    ({"age": [1.0], "wide": [2.0]}, "inputs: got 'colour', allowed are age, wide"),
    (
      {"age": ["x"], "wide": [2.0], "colour": ["red"]},
      "row 0: column 'age' must be a number or missing, got 'x'",
    ),
    ({"age": [1.0, np.inf], "wide": [2.0, 1], "colour": ["red"] * 2}, "row 1: column 'age' .* got inf"),
    ({"age": b"1", "wide": 2.0, "colour": "red"}, "row 0: column 'age' must be a number .* got b'1'"),
    ({"age": 10**400, "wide": 2.0, "colour": "red"}, "row 0: column 'age' must be a number .* got 1000"),
    (
      {"age": [1.0, 1e300], "wide": 2.0, "colour": "red"},
      r"row 1: 'age' must be finite in float32 after any standardizing, got 1e\+300",
    ),
    (np.array([[1, -1e300, 0, 0, 1]]), r"row 0: 'wide' must be finite .* got -1e\+300"),
    (np.array([[1, 2, 0, 0, 1], [np.nan, 2, 0, 0, 1]]), "row 1: 'age' must be finite .* got nan"),
    ([[None, 2, 0, 0, 1]], "row 0: 'age' must be finite .* got None"),
    (np.ma.array([[1, 2, 0, 0, 1]], mask=[[1, 0, 0, 0, 0]]), "inputs: must have no masked value"),
    ({"age": [], "wide": [], "colour": []}, "inputs: has no rows"),
    ({"age": [1.0], "wide": [2.0, 3.0], "colour": ["red"]}, "inputs: must be a data frame, dicts or"),
    (pandas.DataFrame(np.ones((2, 3))), "inputs: got 'age', allowed are 0, 1, 2"),
    (pandas.DataFrame({("age", k): [1.0] for k in "uv"}), "must have one name for each column, got 2 levels"),
    ([], "inputs must have shape"),
    (3, "inputs: must be a data frame, dicts or the path of a CSV or Parquet file, got a int"),
    ("absent.csv", "inputs: absent.csv is not a file"),
  ],
)
def test_rows_that_do_not_fit(rows, told, trained):
  predict = train.load(trained("kind")[0])
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    with pytest.raises(ValueError, match=told) as refused:
      predict(rows)
  assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
  ("content", "told"),
  [
    ("age,wide\n1,2\n", "got 'colour', allowed are age, wide"),
    (
      "age,wide,colour\n1,2,red\nold,2,red\n",
      "row 3: column 'age' has 'old' among numbers; mend the file: this run reads .*missing=.*'NA'",
    ),
    ("age,wide,colour\nold,2,red\n", "row 2: column 'age' has 'old' among numbers"),
    (
      'age,wide,colour\n"1,5",2,red\n',
      r"row 2: .* '1,5', which is a number with decimal=',' alone; mend the file: .* decimal='\.', ",
    ),
    (
      "age;wide;colour\n1;2;red\n",
      "only one column with delimiter=',', 'age;wide;colour'; mend the file: .* delimiter=',', ",
    ),
    ("age,wide,colour\n1,2,r\udcf6t\n", "not text in utf-8 .*; mend the file: .* encoding='utf-8', "),
    ("age,wide,colour\n1,2\n", r"row 2 has 2 values, and row 1 has 3 names\); mend the file"),
    ("age,wide,colour\n1,2,red\n-1e300,2,red\n", "row 3: 'age' must be finite in float32"),
    ("age,wide,colour\n", "has no rows"),
    ("", "cannot be read as CSV"),
  ],
)
def test_files_that_do_not_fit(content, told, trained, tmp_path):
  (tmp_path / "a.csv").write_bytes(content.encode(errors="surrogateescape"))
  with pytest.raises(train.RunError, match=told) as refused:
    written(trained("kind")[0], tmp_path / "a.csv", tmp_path / "out.csv")
  assert str(refused.value).startswith(f"predict.file: {tmp_path / 'a.csv'}: ")
  assert "delimiter: " not in str(refused.value)
  assert "\n" not in str(refused.value)
  assert not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize(
  ("age", "told"),
  [
    ([], r"has no rows$"),
    (np.array(["2020-01-01"], "datetime64[us]"), r"column 'age' has Value\(.*of one length; store numbers$"),
    ([np.inf], r"row 0: column 'age' has an infinite value$"),
  ],
)
def test_parquet_files_that_do_not_fit(age, told, trained, tmp_path):
  frame = pandas.DataFrame({"age": age, "wide": [1.0] * len(age), "colour": ["red"] * len(age)})
  frame.to_parquet(tmp_path / "a.parquet")
  with pytest.raises(train.RunError, match=told) as refused:
    written(trained("kind")[0], tmp_path / "a.parquet", tmp_path / "out.csv")
  assert str(refused.value).startswith(f"predict.file: {tmp_path / 'a.parquet'}: ")
  assert not any(name in str(refused.value) for name in ("leave_out", "path: ", "\n"))


def test_large_integers_of_a_parquet_file(trained, tmp_path):
  """In float64 they are one number, as they are in a CSV file."""
  frame = pandas.DataFrame({"age": [2**53, 2**53 + 1], "wide": 1.0, "colour": "red"})
  frame.to_parquet(tmp_path / "a.parquet")
  stored = train.load(trained("kind")[0]).stored
  np.testing.assert_array_equal(stored(tmp_path / "a.parquet"), stored(frame))


def test_an_array_that_float32_does_not_hold_is_refused_with_its_row(trained, tmp_path):
  x = np.zeros((60, 5))
  x[57, 1] = 1e300  # beyond the first batch
  np.savez(tmp_path / "a.npz", x=x)
  file = (tmp_path / "a.npz").rename(tmp_path / "a.NPZ")
  with pytest.raises(train.RunError, match=r"a\.NPZ: row 57: 'wide' must be finite in float32"):
    written(trained("kind")[0], file, tmp_path / "out.csv")


def test_a_folder_is_no_table(trained, tmp_path):
  (tmp_path / "d.csv").mkdir()
  with pytest.raises(train.RunError, match=r"d\.csv is not a file; give a CSV or Parquet file"):
    written(trained("kind")[0], tmp_path / "d.csv", tmp_path / "out.csv")


def test_a_job_writes_classes_probabilities_and_sets(trained, tmp_path):
  workdir, frame = trained("kind")
  forms(tmp_path)
  for name in ("rows.PARQUET", "rows.pq"):
    shutil.copy(tmp_path / "rows.parquet", tmp_path / name)
  (tmp_path / "rows.CSV.GZ").write_bytes(gzip.compress((tmp_path / "rows.csv").read_bytes()))
  files = {"rows.csv": 2, "rows.CSV.GZ": 2} | dict.fromkeys(("rows.parquet", "rows.PARQUET", "rows.pq"), 0)
  for name, first in files.items():
    with pytest.warns(UserWarning, match="violet"):
      columns, results = written(workdir, tmp_path / name, tmp_path / "out.csv", "--conformal")
    assert columns["example"] == [str(first + row) for row in range(4)]
    log_probs = np.asarray(train.load(workdir)(encoded(frame, ROWS)))
    shown = np.array([columns["p(no)"], columns["p(yes)"]], float).T
    np.testing.assert_allclose(shown, np.exp(log_probs), rtol=1e-6)
    assert columns["class"] == [("no", "yes")[number] for number in log_probs.argmax(1)]
    # Of 40 held-out examples, the 37th smallest of the true classes' scores: (40 + 1) * 0.9, rounded up.
    val = table(40, label="kind")
    theirs = np.asarray(train.load(workdir)(encoded(frame, val)), np.float64)
    threshold = np.sort(np.exp(theirs[np.arange(40), (val["kind"] == "yes").astype(int)]))[40 - 37]
    sets = [
      [name for name, p in zip(("no", "yes"), row, strict=True) if p >= threshold * (1 - 1e-5)]
      for row in shown
    ]
    assert [json.loads(text) for text in columns["set"]] == sets
  assert "4 predictions of the checkpoint of step" in lines(results)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["score", "quantiles"])
def test_a_job_writes_numbers_and_intervals_in_their_units(kind, trained, tmp_path):
  workdir, frame = trained(kind)
  forms(tmp_path)
  predictor, matrix = train.load(workdir), encoded(frame, ROWS)
  with pytest.warns(UserWarning, match="violet"):
    columns, _ = written(workdir, tmp_path / "rows.csv", tmp_path / "a.csv")
  assert [*columns] == ["example", "score", "score low", "score high"]
  np.testing.assert_allclose(np.array(columns["score"], float), predictor(matrix), rtol=1e-9)
  for end, values in zip(("low", "high"), predictor.interval(matrix), strict=True):
    np.testing.assert_allclose(np.array(columns[f"score {end}"], float), values, rtol=1e-9)
  with pytest.warns(UserWarning, match="violet"):
    columns, _ = written(workdir, tmp_path / "rows.csv", tmp_path / "b.csv", "--conformal")
  val = table(40, label=kind)
  low, high = predictor.interval(encoded(frame, val))
  margin = np.sort(np.maximum(low - val["score"], val["score"] - high))[37 - 1]  # (40 + 1) * 0.9, rounded up
  for end, own, sign in zip(("low", "high"), predictor.interval(matrix), (-1, 1), strict=True):
    np.testing.assert_allclose(np.array(columns[f"score {end}"], float), own + sign * margin, rtol=1e-8)


@pytest.mark.thorough
def test_several_seeds_and_ensembles(tmp_path, light_runs):
  table(label="kind").to_csv(tmp_path / "a.csv", index=False)
  fields = {"data.name": "csv", "data.csv.path": str(tmp_path / "a.csv"), "method.name": "softmax"}
  fields |= {"replicas": 4, "ensemble": 2, "epochs": 1}
  train.train(runs.make_config(fields), tmp_path / "run")
  forms(tmp_path)
  members = [train.load(tmp_path / "run", replica=replica) for replica in range(2)]
  with pytest.warns(UserWarning, match="violet"):
    columns, results = written(tmp_path / "run", tmp_path / "rows.csv", tmp_path / "out.csv")
  with pytest.warns(UserWarning, match="violet"):
    mean = np.mean([np.exp(np.asarray(member(ROWS))) for member in members], axis=0)
  np.testing.assert_allclose(np.array(columns["p(yes)"], float), mean[:, 1], rtol=1e-5)
  assert results["remarks"] == ["the run has 2 ensembles: the first predicts"]


@pytest.mark.thorough
def test_several_labels(tmp_path, light_runs):
  generator = np.random.default_rng(0)
  x = generator.normal(size=(90, 2)).round(3)
  frame = pandas.DataFrame({"x": x[:, 0], "y": x[:, 1], "up": x[:, 0] > 0, "right": x[:, 1] > 0})
  frame.to_csv(tmp_path / "a.csv", index=False)
  fields = {"data.name": "csv", "data.csv.path": str(tmp_path / "a.csv"), "data.csv.labels": ("up", "right")}
  train.train(runs.make_config({**fields, "method.name": "binary", "epochs": 2}), tmp_path / "run")
  columns, _ = written(tmp_path / "run", tmp_path / "a.csv", tmp_path / "out.csv", "--conformal")
  assert [*columns] == ["example", "up", "p(up)", "set(up)", "right", "p(right)", "set(right)"]
  log_probs = np.asarray(train.load(tmp_path / "run")(x))
  np.testing.assert_allclose(np.array(columns["p(up)"], float), np.exp(log_probs[:, 0, 1]), rtol=1e-5)
  assert [int(value) for value in columns["right"]] == log_probs[:, 1].argmax(-1).tolist()
  assert all({"0", "1"} >= {*json.loads(text)} for text in columns["set(up)"])


@pytest.mark.thorough
def test_arrays_of_an_npz_file(finished_run, tmp_path):
  images = sources.digits().test.inputs[:50]
  for name in ("x", "x_test"):
    np.savez(tmp_path / "a.npz", **{name: images})
    columns, _ = written(finished_run, tmp_path / "a.npz", tmp_path / "out.csv")  # 48 and 2 of them
    log_probs = np.asarray(train.load(finished_run)(images))
    shown = np.array([columns[f"p({k})"] for k in range(10)], float).T
    np.testing.assert_allclose(shown, np.exp(log_probs), rtol=1e-5)
    assert columns["class"] == [str(k) for k in log_probs.argmax(1)]
  for arrays, told in (
    ({"y": images}, "it has no array x or x_test; it has y"),
    ({"x": images[:, :3]}, "must have shape"),
    ({"x": images[:0]}, "x must have examples"),
    ({"x": np.full((2, 8, 8, 1), np.nan)}, "NaN or an infinite value in example 0"),
    ({"x": images.astype("U")}, "x must be real numbers"),
  ):
    np.savez(tmp_path / "b.npz", **arrays)
    with pytest.raises(train.RunError, match=f"predict.file: .*b.npz: .*{told}"):
      written(finished_run, tmp_path / "b.npz", tmp_path / "out.csv")
  (tmp_path / "b.npz").write_bytes(zips.encrypted((tmp_path / "a.npz").read_bytes()))
  with pytest.raises(train.RunError, match=r"predict.file: [^\n]*b.npz: [^\n]*\.npy is encrypted\)$"):
    written(finished_run, tmp_path / "b.npz", tmp_path / "out.csv")


@pytest.mark.thorough
def test_folders_of_images(tmp_path, light_runs):
  folder = make_folder(tmp_path / "images")
  fields = {"data.name": "image_folder", "data.image_folder.path": str(folder), "data.stream.size": 6}
  fields |= {
    "batch_size": 8,
    "eval_batch_size": 5,
    "data.subset.limit": 0,
    "epochs": 1,
    "method.name": "softmax",
  }
  train.train(runs.make_config(fields), tmp_path / "run")
  (folder / "val" / "notes.txt").write_text("no image")
  columns, results = written(tmp_path / "run", folder / "val", tmp_path / "out.csv", "--conformal")
  files = sorted(path for path in (folder / "val").rglob("*") if path.suffix.lower() == ".png")
  assert columns["example"] == [str(path.relative_to(folder / "val")) for path in files]
  log_probs = np.asarray(train.load(tmp_path / "run")(files))
  np.testing.assert_allclose(np.array(columns["p(cat)"], float), np.exp(log_probs[:, 0]), rtol=1e-5)
  assert "1 .txt" in results["remarks"][0]
  one, _ = written(tmp_path / "run", files[0], tmp_path / "out.csv")
  assert one["p(cat)"] == pytest.approx(columns["p(cat)"][:1])
  remark = "x is taken as finished crops of 6 pixels; give image files to have them scaled and cropped"
  for size, remarks in ((6, [remark]), (7, [])):
    arrays = np.stack([noise(seed, size, size) for seed in range(3)])
    np.savez(tmp_path / "a.npz", x=arrays)
    columns, results = written(tmp_path / "run", tmp_path / "a.npz", tmp_path / "out.csv")
    assert results["remarks"] == remarks
    log_probs = np.asarray(train.load(tmp_path / "run")(arrays))
    np.testing.assert_allclose(np.array(columns["p(cat)"], float), np.exp(log_probs[:, 0]), rtol=1e-5)
  files[0].write_bytes(b"no image")
  with pytest.raises(train.RunError, match=f"predict.file: .*{files[0].name} cannot be decoded"):
    written(tmp_path / "run", folder / "val", tmp_path / "out.csv")


@pytest.mark.thorough
def test_images_of_one_size_in_a_folder(finished_run, tmp_path):
  from PIL import Image

  images = sources.digits().test.inputs[:3]
  (tmp_path / "images").mkdir()
  for number, image in enumerate(images):
    Image.fromarray(image[..., 0]).save(tmp_path / "images" / f"{number}.png")
  columns, _ = written(finished_run, tmp_path / "images", tmp_path / "out.csv")
  log_probs = np.asarray(train.load(finished_run)(images))
  np.testing.assert_allclose(np.array(columns["p(3)"], float), np.exp(log_probs[:, 3]), rtol=1e-5)
  name = "caf\udce9.png"  # Python's form of a name in Latin-1
  (tmp_path / "images" / "0.png").rename(tmp_path / "images" / name)
  columns, _ = written(finished_run, tmp_path / "images", tmp_path / "out.csv")
  assert columns["example"] == ["1.png", "2.png", name]
  for number in (1, 2):
    Image.fromarray(noise(number, 8, 8)[..., 0].astype(np.uint16)).save(tmp_path / "images" / f"{number}.png")
  _, results = written(finished_run, tmp_path / "images", tmp_path / "out.csv")
  assert results["remarks"][0].startswith("2 images of 16 bits were looked at, and the values of most lie")
  Image.new("L", (9, 8)).save(tmp_path / "images" / "wide.png")
  with pytest.raises(train.RunError, match=r"wide.png must have the shape \(8, 8, 1\)"):
    written(finished_run, tmp_path / "images", tmp_path / "out.csv")


@pytest.mark.thorough
def test_the_arguments(finished_run, trained, tmp_path):
  workdir = trained("kind")[0]
  call = cli.parse(["predict", str(workdir), "b.csv", "--out=c.csv", "--conformal"], runs.ROOT / "configs")
  assert (call.workdir, call.config.job) == (workdir, "predict")
  assert call.config.predict.to_dict() == {"file": "b.csv", "out": "c.csv", "conformal": True}
  with pytest.raises(train.RunError, match=r"predict: needs a run and a file, .* got 'b.csv'"):
    cli.parse(["predict", "b.csv", "--out=c.csv"], runs.ROOT / "configs")
  (tmp_path / "b.csv").write_text("age,wide,colour\n1,2,red\n")
  for arguments, told in (
    ([str(workdir), str(tmp_path / "b.csv")], "predict.out: must name a file"),
    ([str(workdir), "absent.csv", "--out", "c.csv"], "predict.file: got 'absent.csv', which is not there"),
    ([str(workdir), str(tmp_path / "b.csv"), "--out", str(tmp_path)], "predict.out: must be a new file"),
    ([str(workdir), str(tmp_path / "b.csv"), "--out", str(tmp_path / "b.csv")], "predict.out: must be a new"),
    ([str(finished_run), str(tmp_path / "b.csv"), "--out", "c.csv"], "this run reads no table"),
    ([str(tmp_path), str(tmp_path / "b.csv"), "--out", "c.csv"], "has no config.json"),
    (
      [str(workdir), str(tmp_path / "b.csv"), "--out", "c.csv", "--config.seed=3"],
      "belongs to another configuration",
    ),
  ):
    with pytest.raises(train.RunError, match=told):
      called(*arguments)


@pytest.mark.thorough
def test_a_prediction_may_sample_and_take_the_best_checkpoint(finished_run, tmp_path):
  np.savez(tmp_path / "a.npz", x=sources.digits().test.inputs[:5])
  plain, results = written(finished_run, tmp_path / "a.npz", tmp_path / "out.csv")
  sampled, _ = written(
    finished_run, tmp_path / "a.npz", tmp_path / "out.csv", "--config.evaluate.mc_samples=3"
  )
  assert plain["p(0)"] != sampled["p(0)"]
  best, others = written(
    finished_run, tmp_path / "a.npz", tmp_path / "out.csv", "--config.evaluate.checkpoint=best"
  )
  predictor = train.load(finished_run, checkpoint="best")
  assert (results["step"], others["step"]) == (24, predictor.step)
  expected = np.exp(np.asarray(predictor(sources.digits().test.inputs[:5])))[:, 0]
  np.testing.assert_allclose(np.array(best["p(0)"], float), expected, rtol=1e-5)

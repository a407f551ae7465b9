"""Data from tables, `csv` and `huggingface`: against NumPy, scikit-learn and what was written."""

import csv
import gzip
import io
import json

import numpy as np
import pytest
import runs
from sklearn import compose, datasets, impute, preprocessing

from jaxreg import train

pyarrow = pytest.importorskip("pyarrow")
from pyarrow import parquet  # noqa: E402

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
  for part, split in data.splits().items():
    np.testing.assert_allclose(
      split.inputs, oracle.transform(features(columns[part])).astype(float), rtol=1e-6
    )
    np.testing.assert_array_equal(split.labels, columns[part]["kind"] == "yes")
  scaled = (data.train.inputs - np.array(data.mean)) / np.array(data.std)
  np.testing.assert_allclose(
    scaled, preprocessing.StandardScaler().fit_transform(data.train.inputs), atol=1e-4
  )
  assert [line.split(": ", 1)[1].split(", ")[-1] for line in data.remarks] == [
    "1 in colour",
    "1 in colour",
    "2 in colour (1 new in it)",
  ]
  assert all("1 in age (their mean " in line for line in data.remarks)


def test_one_file_is_divided_and_what_is_held_out_says_nothing_of_the_inputs(tmp_path):
  table = rows(100)
  data = load(path=write(tmp_path / "a.csv", table), leave_out=("id",))
  assert [len(split) for split in data.splits().values()] == [72, 8, 20]
  ages = np.concatenate([split.inputs[:, 0] for split in data.splits().values()])
  there = np.array([np.nan if value == "?" else value for value in table["age"]], np.float32)
  mean = np.setdiff1d(ages, there)
  np.testing.assert_array_equal(np.sort(ages), np.sort(np.where(np.isnan(there), mean, there)))
  kept = data.train.inputs[:, 0]
  np.testing.assert_allclose(mean, kept[~np.isin(kept, mean)].mean(dtype=np.float64), rtol=1e-5)
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
  file = write(tmp_path / "a.csv", columns)
  data = load(path=file, labels=("a", "b"), weights="w")
  every = np.concatenate([split.labels for split in data.splits().values()])
  assert (data.num_classes, data.class_names, data.input_names) == (2, ("a", "b"), ("x",))
  assert ((every == -1).sum(), (every[:, 1] == 1).sum()) == (1, 18)
  np.testing.assert_allclose(data.train.weights, data.train.inputs[:, 0] * 7, rtol=1e-5, atol=1e-6)
  numbers = load(path=file, labels=("a", "w"))
  assert (numbers.num_classes, numbers.train.labels.shape[1]) == (0, 2)


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
      r"labels: .*a\.csv, row 11: column 'label' has no label; mend",
    ),
    (GOOD, {"labels": ("lable",)}, r"labels: got 'lable'.* did you mean 'label'"),
    (GOOD, {"leave_out": ("z",)}, r"leave_out: got 'z'"),
    (GOOD, {"weights": "z"}, r"weights: got 'z'"),
    (GOOD, {"leave_out": ("x", "y")}, r"csv: the table has no column for inputs"),
    (GOOD, {"labels": ("x",)}, r"leave_out|csv"),
    (GOOD, {"delimiter": ""}, r"delimiter: must be one character"),
    (GOOD, {"path": "nowhere.csv"}, r"path: got 'nowhere\.csv', which is not a file"),
    (GOOD, {"test_fraction": 0.99}, r"test_fraction: got 0\.99"),
    (
      GOOD | {"name": [f"n{k}" for k in range(40)]},
      {"labels": ("label",)},
      r"leave_out: column 'name' has",
    ),
    (GOOD | {"empty": [""] * 40}, {"labels": ("label",)}, r"leave_out: column 'empty' has no value"),
    (GOOD | {"k": range(40)}, {}, r"label_kind: must be numbers or classes, got 'auto': column 'k' has 40"),
    (GOOD, {"label_kind": "numbers"}, r"label_kind: must be classes for column 'label', which holds texts"),
    (GOOD, {"labels": ("x", "label")}, r"labels: several labels must be numbers"),
  ],
)
def test_mistakes_are_told(tmp_path, columns, options, message):
  file = write(tmp_path / "a.csv", columns)
  if options.get("labels") == ("x",):
    assert load(path=file, **options).num_classes == 0
    return
  with pytest.raises(train.RunError, match=message):
    load(**{"path": file, **options})


@pytest.mark.parametrize(
  ("text", "message"),
  [
    (
      "x,label\n1,a\n2\n3,b\n",
      r"path: .*a\.csv, row 3: has 1 values, .* names 2 columns: '2'",
    ),
    ("x,x,label\n1,2,a\n", r"names a column twice"),
    ("x,label\n", r"has no rows"),
    ("", r"cannot be read as CSV"),
    ("x,label\n\udcff,a\n", r"cannot be read as CSV"),
  ],
)
def test_a_damaged_file_is_told(tmp_path, text, message):
  (tmp_path / "a.csv").write_bytes(text.encode(errors="surrogateescape"))
  with pytest.raises(train.RunError, match=message):
    load(path=str(tmp_path / "a.csv"))


def test_a_label_that_training_lacks_is_told_with_its_row(tmp_path):
  file = write(tmp_path / "a.csv", GOOD)
  other = write(tmp_path / "b.csv", with_value("label", 2, "c"))
  with pytest.raises(train.RunError, match=r"b\.csv, row 4: column 'label' has 'c', which no training"):
    load(path=file, test=other)


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


# Hugging Face's folders.
FEATURES = {
  "image": {"_type": "Image"},
  "label": {"names": ["cat", "dog"], "_type": "ClassLabel"},
}
IMAGE = pyarrow.struct({"bytes": pyarrow.binary(), "path": pyarrow.string()})


def png(pixels):
  from PIL import Image

  stream = io.BytesIO()
  Image.fromarray(pixels).save(stream, "PNG")
  return stream.getvalue()


def image_table(images, labels, features=FEATURES):
  columns = {
    "image": pyarrow.array([{"bytes": png(image), "path": None} for image in images], IMAGE),
    "label": pyarrow.array(labels, pyarrow.int64()),
  }
  described = json.dumps({"info": {"features": features}})
  return pyarrow.table(columns).replace_schema_metadata({"huggingface": described})


def save_to_disk(folder, tables):
  """As `datasets.DatasetDict.save_to_disk` does."""
  folder.mkdir()
  (folder / "dataset_dict.json").write_text(json.dumps({"splits": [*tables]}))
  for name, table in tables.items():
    (folder / name).mkdir()
    names = [f"data-0000{k}-of-00002.arrow" for k in range(2)]
    for k, file in enumerate(names):
      half = table.slice(k * (len(table) // 2), len(table) if k else len(table) // 2)
      with (
        pyarrow.OSFile(str(folder / name / file), "wb") as sink,
        pyarrow.ipc.new_stream(sink, table.schema) as out,
      ):
        out.write_table(half)
    (folder / name / "state.json").write_text(
      json.dumps({"_data_files": [{"filename": file} for file in names]})
    )


def save_parquet(folder, tables):
  (folder / "data").mkdir(parents=True)
  for name, table in tables.items():
    parquet.write_table(table, folder / "data" / f"{name}-00000-of-00001.parquet")


@pytest.mark.parametrize("save", [save_to_disk, save_parquet])
@pytest.mark.parametrize("shape", [(6, 5), (6, 5, 3)])
def test_stored_images_are_those_that_were_written(tmp_path, save, shape):
  images = {
    part: RANDOM.integers(0, 256, (number, *shape), np.uint8)
    for part, number in (("train", 20), ("test", 10))
  }
  labels = {part: np.arange(len(array)) % 2 for part, array in images.items()}
  save(tmp_path / "set", {part: image_table(images[part], labels[part]) for part in images})
  data = runs.read_source("huggingface", path=str(tmp_path / "set"))
  assert (data.class_names, data.scale, data.train.inputs.shape[1:]) == (
    ("cat", "dog"),
    255.0,
    (*shape, 1)[:3],
  )
  np.testing.assert_array_equal(data.test.inputs.reshape(10, *shape), images["test"])
  np.testing.assert_array_equal(data.test.labels, labels["test"])
  both = np.concatenate([data.train.inputs, data.val.inputs]).reshape(20, *shape)
  assert {image.tobytes() for image in both} == {image.tobytes() for image in images["train"]}


def test_images_of_unequal_sizes_are_streamed(tmp_path):
  images = [RANDOM.integers(0, 256, (8 + k % 3, 9, 3), np.uint8) for k in range(20)]
  tables = {part: image_table(images, [0, 1] * 10) for part in ("train", "test")}
  tables["test"] = image_table([255 - image for image in images], [0, 1] * 10)
  save_to_disk(tmp_path / "set", tables)
  with pytest.raises(train.RunError, match=r"stream: must be True for images of unequal sizes"):
    runs.read_source("huggingface", path=str(tmp_path / "set"))
  data = runs.read_source("huggingface", path=str(tmp_path / "set"), stream=True)
  assert data.streams()
  assert data.test.inputs.store.name(3).endswith("test, example 3")
  np.testing.assert_array_equal(np.asarray(data.test.inputs[:1].decoded(0)), 255 - images[0])


def test_columns_of_numbers_texts_and_lists(tmp_path):
  table = pyarrow.table(
    {
      "vector": pyarrow.array(RANDOM.normal(size=(30, 3)).tolist()),
      "flag": pyarrow.array([True, False, None] * 10),
      "colour": pyarrow.array([*COLOURS] * 10).dictionary_encode(),
      "label": pyarrow.array(RANDOM.normal(size=30)),
    }
  )
  save_parquet(tmp_path / "set", {"train": table})
  data = runs.read_source("huggingface", path=str(tmp_path / "set"), test="")
  names = ("vector[0]", "vector[1]", "vector[2]", "flag", "colour=blue", "colour=green", "colour=red")
  assert (data.num_classes, data.input_names) == (0, names)
  every = np.concatenate([split.inputs for split in data.splits().values()])
  written = np.array(table["vector"].to_pylist(), np.float32)
  np.testing.assert_array_equal(np.sort(every[:, :3], axis=0), np.sort(written, axis=0))
  chosen = runs.read_source("huggingface", path=str(tmp_path / "set"), test="", inputs=("flag",))
  assert chosen.input_names == ("flag",)


@pytest.mark.parametrize(
  ("options", "message"),
  [
    ({"path": "nowhere"}, r"path: got 'nowhere', which is not a folder"),
    ({"test": "tst"}, r"test: got 'tst'.* did you mean 'test'"),
    ({"labels": ("lable",)}, r"labels: got 'lable'"),
    ({"inputs": ("label",), "labels": ("image",)}, r"inputs|labels"),
  ],
)
def test_mistakes_in_a_folder_are_told(tmp_path, options, message):
  images = RANDOM.integers(0, 256, (20, 4, 4), np.uint8)
  save_parquet(tmp_path / "set", {part: image_table(images, [0, 1] * 10) for part in ("train", "test")})
  with pytest.raises(train.RunError, match=message):
    runs.read_source("huggingface", **{"path": str(tmp_path / "set"), **options})


@pytest.mark.parametrize("damage", ["empty", "cut", "no state", "no image"])
def test_a_damaged_folder_is_told(tmp_path, damage):
  images = RANDOM.integers(0, 256, (20, 4, 4), np.uint8)
  table = image_table(images, [0, 1] * 10)
  if damage == "no image":
    table = table.set_column(0, "image", pyarrow.array([{"bytes": None, "path": "a.png"}] * 20, IMAGE))
  save_to_disk(tmp_path / "set", {"train": table, "test": table})
  file = next((tmp_path / "set" / "train").glob("*.arrow"))
  if damage == "empty":
    for each in (tmp_path / "set").iterdir():
      if each.is_file():
        each.unlink()
      else:
        [inside.unlink() for inside in each.iterdir()]
  elif damage == "cut":
    file.write_bytes(file.read_bytes()[:100])
  elif damage == "no state":
    (file.parent / "state.json").unlink()
  with pytest.raises(train.RunError, match=r"huggingface|set") as refused:
    runs.read_source("huggingface", path=str(tmp_path / "set"))
  assert "\n" not in str(refused.value)

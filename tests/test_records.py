"""Every number with an interval on a page comes from a record, and every table is the one of its record."""

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy import stats

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]  # as `python -m benchmarks` has it

command = importlib.import_module("benchmarks.__main__")
records = importlib.import_module("_records")


def where(page):
  return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", command.PAGES, ids=where)
def test_a_page_shows_its_records(page):
  text = page.read_text()
  results = json.loads(command.RESULTS.read_text())
  assert records.missing(text) == set(), "records that this page needs are not in benchmarks/records"
  made = {table for found in results.values() for table in found["tables"]}
  assert {name for _, name, *_ in command.TABLE.findall(text)} <= made
  again = records.render(command.render(text, results), command.up(page))
  assert again == text, "`python -m benchmarks --render` makes it again"


def test_every_measurement_is_on_a_page():
  texts = "".join(page.read_text() for page in command.PAGES)
  shown = {name for _, name, *_ in command.TABLE.findall(texts)}
  whole = {name for _, name, _ in command.TABLES.findall(texts)}
  for measurement, found in json.loads(command.RESULTS.read_text()).items():
    assert measurement in whole or set(found["tables"]) <= shown, measurement


def test_the_cells_of_steps_and_products_follow_from_the_kept_numbers():
  steps, products = map(importlib.import_module, ("steps", "products"))
  results = json.loads(command.RESULTS.read_text())
  kept, table = (results["steps"][part]["steps"] for part in ("numbers", "tables"))
  for task in {row[0] for row in table["rows"]}:
    rows = {row[1]: row[2:5] for row in table["rows"] if row[0] == task}
    times, shares = ({name: kept[f"{task}, {name}"][part] for name in rows} for part in (0, 1))
    assert steps.shown(times, shares) == rows
  kept, table = (results["products"][part]["products"] for part in ("numbers", "tables"))
  for network, name, *cells in table["rows"]:
    assert products.shown(*kept[f"{network}, {name}"], kept[f"{network}, PyTorch"][0]) == cells


def test_the_fastest_form_of_pytorch_is_that_of_each_run():
  steps = importlib.import_module("steps")
  shares = {"PyTorch": [1.0, 1.0], "PyTorch, default": [0.5, 2.0], "jaxreg": [1.0, 3.0]}
  cells = steps.shown({name: [0.1, 0.3] for name in shares}, shares)
  assert cells["jaxreg"] == ["200.0 (100.0 to 300.0)", "2.00 (1.00 to 3.00)", "2.50 (2.00 to 3.00)"]
  alone = steps.shown({"jaxreg": [0.1]}, {"jaxreg": [1.0]})
  assert alone["jaxreg"][2] == "1.00 (1.00 to 1.00)", "without PyTorch the first contestant takes its place"


def test_a_page_chooses_rows_and_columns_of_a_table():
  table = {"columns": ["network", "load (1.5)", "ms"], "rows": [["MLP", "a", "1"], ["LeNet", "b", "2"]]}
  assert command.chosen(table, {}) == table
  chosen = command.chosen(table, {"network": "LeNet; ResNet", "columns": "ms; load"})
  assert chosen == {"columns": ["ms", "load (1.5)"], "rows": [["2", "b"]]}


@pytest.mark.parametrize("page", command.PAGES, ids=where)
def test_no_number_with_an_interval_is_typed(page):
  text = page.read_text()
  assert records.missing(text) == set()
  assert records.unrecorded(text) == [], "give them a record: benchmarks/_records.py says how"


def test_the_table_of_the_toolbox_has_the_errors_of_its_record():
  toolbox = importlib.import_module("toolbox")
  found = json.loads(toolbox.RECORD.read_text())["rows"]
  (table,) = json.loads(command.RESULTS.read_text())["toolbox"]["tables"].values()
  assert table["rows"]
  for number, (label, *cells, _) in enumerate(table["rows"]):
    assert cells == toolbox.cells(found[label], first=number == 0), label


VALUES = {"softmax": np.array([0.05, 0.04, 0.06]), "dropmax": np.array([0.03, 0.035, 0.04])}


def half(values):
  return stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)


@pytest.fixture
def kept(tmp_path, monkeypatch):
  """A comparison and the same runs as rows of `seeds.py`, in a folder of their own."""
  rows = {
    label: {
      "setting": {"optimizer.rate": 0.1},
      "runs": {"test/error": list(values), "test/nll": [0.1, 0.2, 0.3]},
    }
    for label, values in VALUES.items()
  }
  (tmp_path / "one.json").write_text(json.dumps({"seeds": 3, "rows": rows}))
  runs = [
    {"method": label, "seed": seed, "test/error": values[seed], "versions": {}}
    for label, values in VALUES.items()
    for seed in (2, 0, 1)
  ]
  (tmp_path / "two.json").write_text(json.dumps({"runs": "two", "rows": runs}))
  monkeypatch.setattr(records, "FOLDER", tmp_path)
  records.read.cache_clear()
  yield tmp_path
  records.read.cache_clear()


def test_a_table_has_means_intervals_and_paired_differences(kept):
  page = records.render(
    "a\n<!-- record one\ncolumns: test/error; less test/error; sd test/nll; setting\n"
    "paper: DropMax 5 %\n-->\nold\n<!-- end -->\nb\n"
  )
  softmax, dropmax = 100 * VALUES["softmax"], 100 * VALUES["dropmax"]
  assert page.splitlines()[5:9] == [
    "| 3 seeds | test error, % | error less softmax's, % | NLL, standard deviation | chosen | paper |",
    "| --- | --- | --- | --- | --- | --- |",
    f"| softmax | 5.00 ± {half(softmax):.2f} |  | 0.100 | rate 0.1 |  |",
    f"| DropMax | 3.50 ± {half(dropmax):.2f} | -1.50 ± {half(dropmax - softmax):.2f} "
    "| 0.100 | rate 0.1 | 5 % |",
  ]
  assert page.startswith("a\n<!-- record one\n")
  assert page.endswith("of the runs in [one](benchmarks/records/one.json).\n<!-- end -->\nb\n")
  assert records.render(page) == page
  assert records.unrecorded(page) == []


def test_rows_of_several_records_make_one_table(kept):
  block = "<!-- record one\ncolumns: test/error\nrows: a = softmax; b = two/dropmax\n-->\n<!-- end -->\n"
  page = records.render(block, "../")
  assert [line.split(" ± ")[0] for line in page.splitlines()[6:8]] == ["| a | 5.00", "| b | 3.50"]
  assert "[one](../benchmarks/records/one.json) and [two](../benchmarks/records/two.json)" in page
  assert records.missing(block) == set()
  assert records.missing(block.replace("two/", "three/")) == {"three"}


@pytest.mark.parametrize(
  ("title", "want"),
  [
    ("softmax: test/error", f"5.00 ± {100 * half(VALUES['softmax']):.2f} %"),
    (
      "dropmax: test/error less softmax",
      f"-1.50 ± {100 * half(VALUES['dropmax'] - VALUES['softmax']):.2f} %",
    ),
    ("dropmax: mean test/error, 1 digits", "3.5 %"),
    ("softmax: sd test/error", "1.00 %"),
  ],
)
@pytest.mark.parametrize("name", ["one", "two"])
def test_a_number_is_filled_from_its_record(kept, name, title, want):
  page = f'so [9 ± 9 %](../benchmarks/records/{name}.json "{title}") here'
  assert records.render(page) == f'so [{want}](../benchmarks/records/{name}.json "{title}") here'


def test_an_interval_beyond_what_an_error_can_be_ends_there(kept):
  rows = {"a": {"runs": {"test/error": [0.0, 0.2]}}}
  (kept / "wide.json").write_text(json.dumps({"seeds": 2, "rows": rows}))
  page = '[?](benchmarks/records/wide.json "a: test/error")'
  page = records.render(page)
  assert page == '[10.00 [0.00, 100.00]](benchmarks/records/wide.json "a: test/error")'
  assert records.render(page) == page
  assert records.unrecorded(page) == []


def test_what_a_record_has_not_is_named(kept):
  with pytest.raises(ValueError, match="the record one has no row 'sparsemax', it has softmax, dropmax"):
    records.link("one", "sparsemax: test/error")
  with pytest.raises(ValueError, match="no quantity 'test/ece', it has test/error, test/nll"):
    records.link("one", "softmax: test/ece")
  gone = '[1 ± 2](benchmarks/records/gone.json "a: b")'
  assert records.render(gone) == gone
  assert records.missing(gone) == {"gone"}


def test_a_typed_number_is_seen():
  table = "| a | 4.54 ± 0.28 % |\n"
  assert records.unrecorded(table) == ["4.54 ± 0.28"]
  assert records.unrecorded("so 0.66 [-0.63, 0.70] and 3 more") == ["0.66 [-0.63, 0.70]"]
  assert records.unrecorded(f"```\n{table}```\n") == []


def test_what_a_script_found_is_a_record(kept):
  found = records.Found()
  found.add("a", "steps", [10, 12, 20], 1)
  found.add("a", "size", 3.0, 0)
  found.write("three", "python x.py")
  assert json.loads((kept / "three.json").read_text())["command"] == "python x.py"
  assert records.link("three", "a: steps").startswith(f"[14.0 ± {half([10, 12, 20]):.1f}](")
  assert records.link("three", "a: size").startswith("[3](")


@pytest.mark.thorough
def test_figures_of_comparisons_are_those_of_their_records(tmp_path):
  for made in records.draw(tmp_path):
    kept = ROOT / "docs/figures" / made.name
    # The fonts are Matplotlib's own; another version of it may move an edge by a pixel.
    again, stored = (np.asarray(Image.open(file).convert("L"), float) for file in (made, kept))
    assert again.shape == stored.shape, f"`python -m benchmarks --render` draws {made.name} again"
    assert np.abs(again - stored).mean() < 1, f"`python -m benchmarks --render` draws {made.name} again"


# Figures of hours of training, from before they were made narrow: only a new run draws them again.
WIDE = {
  "flatness_fnn_mnist_alignment",
  "flatness_fnn_mnist_profile",
  "flatness_resnet20_cifar10_profile",
  "flatness_resnet20_cifar10_projected_variance",
  "flatness_resnet20_cifar10_variance_flatness",
  "flatness_transformer_multi30k_profile",
  "flatness_transformer_multi30k_projected_variance",
  "flatness_transformer_multi30k_variance_flatness",
  "flatness_vgg9_cifar10_profile",
  "group_softmax_cifar10",
  "group_softmax_mnist1k",
  "group_softmax_mnist5k",
}


def test_figures_of_the_pages_are_legible_on_a_telephone():
  """Small text, 8.33 points, has 7 of 390 pixels if a figure is at most 6.2 inches wide."""
  wide = set()
  for file in sorted((ROOT / "docs/figures").glob("*.png")):
    image = Image.open(file)
    assert image.height <= 1600, file
    if image.width / image.info.get("dpi", (100,))[0] > 6.25:
      wide.add(file.stem)
  assert wide == WIDE


@pytest.mark.parametrize("name", ["compiled_configs", "compiled_vit"])
def test_a_compiled_step_has_its_bytes_and_times_or_a_line(name):
  """The bytes of the parts make the total, and the shortest time is at most the longest."""
  rows = json.loads((records.FOLDER / f"{name}.json").read_text())["rows"]
  configs = {path.stem for path in (ROOT / "configs").glob("[!_]*.py")}
  assert name != "compiled_configs" or set(rows) <= configs
  for row, found in rows.items():
    runs = {quantity: values[0] for quantity, values in found["runs"].items()}
    if not runs:
      assert found["setting"]["line"], row
      continue
    parts = sum(runs[f"{part}, MiB"] for part in ("parameters", "optimizer", "data", "activations"))
    assert parts <= runs["total, MiB"] * (1 + 1e-6), row
    assert 0 < runs["ms, at least"] <= runs["ms, at most"]
    assert runs["GFLOP"] > 0

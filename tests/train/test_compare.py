"""One table of methods and seeds: what is searched, what is reported, and that nothing is run twice."""

import importlib
import json
import warnings

import numpy as np
import pytest
import runs
from scipy import stats

from jaxreg import train
from jaxreg.train.config.choices import flatten
from jaxreg.train.config.rows import compared_rows
from jaxreg.train.data import batches
from jaxreg.train.jobs import train as training
from jaxreg.train.jobs.compare import row_config

pytestmark = pytest.mark.usefixtures("light_module")

FIELDS = {
  "job": "compare",
  "epochs": 2,
  "compare.rows": ("softmax", "small: method.name=softmax model.MLP.widths=(2,)"),
  "compare.grid": ("small: optimizer.learning_rate=1e-6,0.03",),
  "compare.seeds": 3,
}


@pytest.fixture(scope="module")
def compared(tmp_path_factory, light_module):
  workdir = tmp_path_factory.mktemp("compared") / "run"
  train.compare(runs.make_config(FIELDS), workdir)
  return workdir


def read(folder, name="results.json"):
  return runs.table(folder / name)


def test_a_remark_is_told_once_and_one_that_is_ignored_never(monkeypatch, tmp_path):
  compare = importlib.import_module("jaxreg.train.jobs.compare")

  def remark(config, workdir):
    for text in ("about the data", "about the cache") * 2:
      warnings.warn(text, stacklevel=1)

  monkeypatch.setattr(compare, "_compare", remark)
  with warnings.catch_warnings(record=True) as told:
    warnings.resetwarnings()
    warnings.filterwarnings("ignore", "about the cache")
    compare.compare(runs.make_config(FIELDS), tmp_path)
  assert [str(each.message) for each in told] == ["about the data"]


@pytest.mark.thorough
def test_the_setting_is_chosen_on_the_validation_split(compared):
  table = read(compared, "compare.json")["rows"]
  assert table["softmax"]["setting"] == {}
  assert table["softmax"]["search"] == []
  small = table["small"]
  rates = [entry["setting"]["optimizer.learning_rate"] for entry in small["search"]]
  assert rates == [1e-6, 0.03]
  errors = [entry["val/error"] for entry in small["search"]]
  assert errors[0] > errors[1]
  assert small["setting"] == {"optimizer.learning_rate": 0.03}
  # The search is told nothing of the test split.
  assert all(name.startswith(("setting", "val/")) for entry in small["search"] for name in entry)
  # From one seed each, and the chosen one from all.
  assert len(list((compared / "search").iterdir())) == 2
  for folder in (compared / "search").iterdir():
    assert read(folder, "config.json")["replicas"] == 1
  for folder in (compared / "rows").iterdir():
    assert read(folder, "config.json")["replicas"] == 3


@pytest.mark.thorough
def test_means_intervals_and_paired_differences(compared):
  table = read(compared, "compare.json")["rows"]
  (softmax,) = (compared / "rows").glob("softmax-*")
  (small,) = (compared / "rows").glob("small-*")
  for name in ("test/error", "test/nll", "test/ece"):
    ours, reference = (np.array(read(folder)["replicas"][name]) for folder in (small, softmax))
    np.testing.assert_allclose(table["small"]["mean"][name], ours.mean())
    quantile = stats.t(2).ppf(0.975)
    half = quantile * stats.sem(ours)
    np.testing.assert_allclose(table["small"]["mean"][f"{name}_ci95"], half)
    paired = ours - reference
    np.testing.assert_allclose(table["small"]["difference"][name], paired.mean())
    half = quantile * stats.sem(paired)
    np.testing.assert_allclose(table["small"]["difference"][f"{name}_ci95"], half, atol=1e-12)
    assert table["softmax"]["difference"][name] == 0
  lines = (compared / "compare.md").read_text().splitlines()
  assert len(lines) == 4
  mean, half = (100 * table["small"]["mean"][name] for name in ("test/error", "test/error_ci95"))
  # The runs are few: their interval may reach beyond 0 to 100 %, where it is cut.
  low, high = max(mean - half, 0), min(mean + half, 100)
  whole = (low, high) == (mean - half, mean + half)
  written = f"{mean:.2f} ± {half:.2f}" if whole else f"{mean:.2f} [{low:.2f}, {high:.2f}]"
  cells = [cell.strip() for cell in lines[3].strip("|").split("|")]
  assert (cells[0], cells[1], cells[-1]) == ("small", written, "learning_rate 0.03")
  assert len({len(line) for line in lines}) == 1
  for figure in ("comparison.png", "convergence.png", "reliability.png"):
    assert (compared / "figures" / figure).stat().st_size > 5000


@pytest.mark.thorough
def test_what_is_finished_is_not_run_again(compared, monkeypatch, capsys):
  before = {path: path.stat().st_mtime_ns for path in compared.rglob("results.json")}
  assert len(before) == 4
  monkeypatch.setattr(training, "make_run", lambda *_: pytest.fail("nothing is left to run"))
  again = train.compare(runs.make_config(FIELDS), compared)
  assert json.loads(json.dumps(again)) == read(compared, "compare.json")
  assert before == {path: path.stat().st_mtime_ns for path in compared.rglob("results.json")}
  assert "compare: run 4 of 4: small, 3 seeds" in capsys.readouterr().err


@pytest.mark.slow
def test_interrupted_in_a_run_it_goes_on_to_the_same_table(compared, tmp_path, monkeypatch):
  workdir = tmp_path / "run"
  original, calls = batches.batch_indices, []

  def stop(seed, step, **options):
    calls.append(step)
    if len(calls) == 30:
      raise KeyboardInterrupt
    return original(seed, step, **options)

  monkeypatch.setattr(batches, "batch_indices", stop)
  with pytest.raises(KeyboardInterrupt):
    train.compare(runs.make_config(FIELDS), workdir)
  assert not (workdir / "compare.json").exists()
  assert 0 < len(list(workdir.rglob("results.json"))) < 4
  train.compare(runs.make_config(FIELDS), workdir)
  assert read(workdir, "compare.json") == read(compared, "compare.json")
  assert (workdir / "compare.md").read_text() == (compared / "compare.md").read_text()


def test_what_one_row_sets_is_nothing_to_the_next():
  config = runs.make_config({"compare.rows": ("small: optimizer.learning_rate=0.5", "plain: epochs=3")})
  before = flatten(config)
  cells = [row_config(config, row, {}, seeds=2) for row in compared_rows(config)]
  assert [cell.optimizer.learning_rate for cell in cells] == [0.5, config.optimizer.learning_rate]
  assert [cell.epochs for cell in cells] == [config.epochs, 3]
  assert flatten(config) == before


def test_rows_as_values_and_as_the_texts_of_a_flag():
  texts = {
    "compare.rows": ("softmax", "a, 0.5: model.MLP.widths=(8,) optimizer.clip_norm=1", "none:"),
    "compare.grid": ("seed=1,2", "none: model.name=MLP,LeNet"),
  }
  values = {
    "compare.rows": {
      "softmax": {"method.name": "softmax"},
      "a, 0.5": {"model.MLP.widths": (8,), "optimizer.clip_norm": 1},
      "none": {},
    },
    "compare.grid": {"seed": (1, 2), "none": {"model.name": ("MLP", "LeNet")}},
  }
  assert compared_rows(runs.make_config(texts)) == compared_rows(runs.make_config(values))


def test_a_grid_of_one_row_counts_more_than_that_of_all():
  fields = {"compare.rows": ("softmax", "a:"), "compare.grid": ("seed=1,2", "a: seed=3")}
  assert [row.grid for row in compared_rows(runs.make_config(fields))] == [
    [{"seed": 1}, {"seed": 2}],
    [{"seed": 3}],
  ]


def test_rows_and_grid():
  config = runs.make_config(
    {
      "compare.rows": ("dropmax", "wide: model.MLP.widths=(64,32) method.name=softmax"),
      "compare.grid": (
        "optimizer.weight_decay.rate=0,1e-4",
        "dropmax: method.dropmax.loss.temperature=0.1,1",
      ),
    }
  )
  dropmax, wide = compared_rows(config)
  assert dropmax.fields == {"method.name": "dropmax"}
  assert wide.fields == {"model.MLP.widths": (64, 32), "method.name": "softmax"}
  assert wide.grid == [{"optimizer.weight_decay.rate": rate} for rate in (0.0, 1e-4)]
  names = ("optimizer.weight_decay.rate", "method.dropmax.loss.temperature")
  assert dropmax.grid == [
    dict(zip(names, point, strict=True)) for point in ((0.0, 0.1), (0.0, 1.0), (1e-4, 0.1), (1e-4, 1.0))
  ]


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    ({"compare.rows": ()}, r"^compare\.rows: give at least one"),
    ({"compare.rows": ("sofmax",)}, r"^compare\.rows: got 'sofmax'; a row is a method"),
    ({"compare.rows": ("a: seed=1", "a: seed=2")}, r"^compare\.rows: the label 'a' appears twice"),
    ({"compare.rows": ("a: seed=1 seed=2",)}, r"^compare\.rows: 'a' sets seed twice$"),
    ({"compare.grid": ("seed=1,1",)}, r"^compare\.grid: seed has a value twice, got \(1, 1\)$"),
    ({"compare.grid": ("seed=1", "seed=2")}, r"^compare\.grid: seed is given twice for all rows$"),
    ({"compare.rows": ("a/b: seed=1",)}, r"^compare\.rows: the label 'a/b'"),
    ({"compare.rows": ("a: sed=1",)}, r"^compare\.rows, 'a': there is no field sed; did you mean seed\?$"),
    ({"compare.rows": ("a: seed",)}, r"^compare\.rows: got 'seed'; give field=value$"),
    (
      {"compare.rows": ("a: epochs=1.5",)},
      r"^compare\.rows, 'a': epochs must be an integer, got '1\.5'",
    ),
    ({"compare.grid": ("b: seed=1",)}, r"^compare\.grid: got the row 'b'; the rows are"),
    ({"compare.rows": ("a: replicas=3",)}, r"^replicas: is the same in all rows; leave it out of 'a'"),
    ({"compare.grid": ("seed=",)}, r"^compare\.grid: got 'seed='; give field=value$"),
    ({"compare.grid": ("model.name=MLP,VGX",)}, r"^compare, row 'softmax' with model\.name=VGX: model\.name"),
    ({"compare.rows": ("a: method.name=nothing",)}, r"^compare, row 'a': method\.name: got 'nothing'"),
    (
      {"compare.rows": ("a: model.MLP.dropout_rate=1.5",)},
      r"^compare, row 'a': model\.MLP\.dropout_rate: must be at least 0 and at most 1",
    ),
    (
      {"compare.rows": {"a": {"method.name": 3}}},
      r"^compare\.rows, 'a': method\.name must be a text, got 3",
    ),
    (
      {"compare.rows": {"a": "softmax"}},
      r"^compare\.rows: 'a' needs a table of fields and values, got 'softm",
    ),
    ({"compare.rows": {3: {}}}, r"^compare\.rows: the label 3 must have letters"),
    ({"compare.grid": {"seed": 1}}, r"^compare\.grid: seed needs a tuple of values, got 1$"),
    ({"checkpoint.best": "test/error"}, r"^checkpoint\.best: got 'test/error', allowed are auto, val/"),
    ({"compare.seeds": 0}, r"^compare\.seeds: must be at least 1"),
    ({"replicas": 3}, r"replicas: job=compare sets them itself; leave it out, got 3$"),
  ],
)
def test_a_mistake_is_told_before_anything_is_trained(tmp_path, monkeypatch, fields, message):
  # The package's attribute of that name is the function.
  module = importlib.import_module("jaxreg.train.jobs.compare")
  monkeypatch.setattr(module, "train", lambda *_: pytest.fail("nothing is to be trained"))
  with pytest.raises(train.RunError, match=message) as told:
    train.compare(runs.make_config({**FIELDS, "compare.grid": (), **fields}), tmp_path / "run")
  assert "\n" not in str(told.value)
  assert not (tmp_path / "run").exists()

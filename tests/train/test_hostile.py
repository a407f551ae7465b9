"""A work directory of other people: whatever is in its files, one line says what is wrong."""

import numpy as np
import pytest
import runs

from jaxreg import train
from jaxreg.train import cli
from jaxreg.train.config.choices import base_config, flatten
from jaxreg.train.config.values import fits, kind_of
from jaxreg.train.run import manifest

MOST = 1000  # characters of a message


def change(file, **fields):
  """Changes a table, whose checksum is then right: the people who passed it on can do so, too."""
  runs.reseal(file, {**runs.table(file), **fields})


def is_refused(call, *words):
  with pytest.raises(train.RunError) as refused:
    call()
  message = str(refused.value)
  assert "\n" not in message
  assert len(message) < MOST
  assert all(word in message for word in words), message


ODD = {
  "augment.names": ([1], [["evil:X"]], [None], [[[1]]], ["evil:X"], "evil:X", {"a": 1}, None, 3),
  "compare.rows": ([1], "softmax"),
  "regularizers.names": ([1], [["evil:X"]]),
  "optimizer.constraints.names": ([[1]],),
  "evaluate.measures": ([1],),
  "optimizer.nothing.inner": (["evil:X"],),
  "method.name": (1, ["dropmax"], "x" * 10**4, "evil:X"),
  "model.MLP.widths": (["x"], [["x"]], [[8]], [10**400], 8),
  "seed": ("x", 1e400, [1], -1, {}),
  "data.name": ("evil:X", [1]),
}


@pytest.mark.thorough
@pytest.mark.parametrize(("field", "value"), [(field, value) for field in ODD for value in ODD[field]])
def test_odd_fields_of_a_configuration(finished_copy, field, value):
  change(finished_copy / "config.json", **{field: value})
  is_refused(lambda: train.load(finished_copy), "workdir")
  is_refused(lambda: cli.parse(["evaluate", "--workdir", str(finished_copy)], runs.ROOT / "configs"))


@pytest.mark.thorough
def test_options_that_nothing_reads_do_not_matter(finished_copy):
  change(finished_copy / "config.json", **{"optimizer.nothing.inner": [1], "augment.nothing.x": [["evil:X"]]})
  assert train.load(finished_copy).step == 24


def test_every_tuple_of_texts_is_known_as_one():
  """Oracle: the defaults of the fields that have any, and what the ranges of numbers speak of."""
  holds_texts = lambda field: fits(["a"], kind_of(field, tuples)) and not fits([1], kind_of(field, tuples))
  tuples = {field: value for field, value in flatten(base_config()).items() if isinstance(value, list)}
  assert len(tuples) > 20
  for field, value in tuples.items():
    if value:
      assert holds_texts(field) == all(isinstance(item, str) for item in value), field
  named = {field for field in tuples if holds_texts(field)}
  assert {"augment.names", "noise.names", "evaluate.ood"} <= named
  assert not named & {"augment.mean", "augment.std", "model.MLP.dropout_rates", "data.stream.sides"}


DATA = {
  "sizes": ({}, {"train": 0}, {"train": "x"}, {"test": 3}, 3, [1]),
  "input_shape": (["a"], [-1], [0], [[8]], 8, [2**40]),
  "input_dtype": ("float99", "O", "", 3, "complex64"),
  "scale": (0, -1, 1e400, "x", True),
  "num_classes": (-1, 2**60, 2.5, True),
  "model": ({"a": "x"}, 3),
  "label_shape": (["x"], 3),
  "class_names": ([1], 3),
}


@pytest.mark.thorough
@pytest.mark.parametrize(("field", "value"), [(field, value) for field in DATA for value in DATA[field]])
def test_odd_fields_of_the_description_of_the_data(finished_copy, field, value):
  change(finished_copy / "data.json", **{field: value})
  is_refused(lambda: train.load(finished_copy), "data.json", f"its {field} is wrong")


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["²", "٣", "007", "-1", "1e3", "3 "])
def test_a_folder_that_is_named_almost_as_a_step(finished_copy, name):
  (finished_copy / "checkpoints" / name).mkdir()
  assert max(manifest.good_steps(finished_copy)) == 24
  assert train.load(finished_copy).step == 24


@pytest.mark.thorough
@pytest.mark.parametrize("metrics", [{}, {"val/nll": 0.5}, {"x": 1}])
def test_a_manifest_without_the_metric_that_chooses(finished_copy, light_runs, metrics):
  steps = manifest.good_steps(finished_copy)
  first, *others = sorted(steps)
  for step in others:
    change(finished_copy / "manifests" / f"{step}.json", metrics=metrics)
  assert train.load(finished_copy, checkpoint="best").step == first
  config = runs.make_config({"job": "evaluate", "evaluate.checkpoint": "best"})
  assert train.evaluate(config, finished_copy)["step"] == first
  change(finished_copy / "manifests" / f"{first}.json", metrics=metrics)
  is_refused(lambda: train.evaluate(config, finished_copy), "no checkpoint yet that was measured")


@pytest.mark.thorough
def test_a_checkpoint_of_another_shape(finished_copy):
  change(finished_copy / "config.json", **{"model.MLP.widths": [9, 9, 9]})
  is_refused(lambda: train.load(finished_copy), "does not fit this configuration")


@pytest.mark.thorough
def test_many_fields_that_differ_are_not_all_listed(finished_copy, light_runs):
  fields = {field: value for field, value in flatten(runs.make_config()).items() if type(value) is float}
  change(finished_copy / "config.json", **{field: value + 0.125 for field, value in fields.items()})
  is_refused(lambda: train.evaluate(runs.make_config({"job": "evaluate"}), finished_copy), "more differ")


@pytest.mark.thorough
def test_files_that_are_removed_under_a_run(tmp_path, light_runs, monkeypatch, capsys):
  """Without them, nothing could read the checkpoints."""
  workdir = tmp_path / "run"
  from jaxreg.train.run import loop

  flush = loop.Recorder.flush

  def remove(recorder):
    for name in ("config.json", "data.json", "metrics.jsonl"):
      (workdir / name).unlink(missing_ok=True)
    monkeypatch.setattr(loop.Recorder, "flush", flush)
    flush(recorder)

  monkeypatch.setattr(loop.Recorder, "flush", remove)
  results = train.train(runs.make_config({"epochs": 2}), workdir)
  said = capsys.readouterr().err
  assert "warning: data.json, config.json had been removed under this run, and is written again" in said
  assert f"warning: {workdir}/metrics.jsonl was removed or replaced under this run" in said
  assert {path.name for path in workdir.iterdir()} >= {"config.json", "data.json", "metrics.jsonl"}
  log_probs = np.asarray(train.load(workdir)(np.zeros((1, 8, 8, 1), np.uint8)))
  assert np.isfinite(log_probs).all()
  assert results["step"] == 8

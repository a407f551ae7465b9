"""A work directory of other people runs no code; what is missing there is said in one line."""

import numpy as np
import pytest
import runs

from jaxreg import train
from jaxreg.train import cli
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


NAMED = {
  "augment.names": (["evil:X"], [["evil:X"]], "evil:X"),
  "regularizers.names": ([["evil:X"]],),
  "method.name": ("evil:X",),
  "data.name": ("evil:X",),
}


@pytest.mark.thorough
@pytest.mark.parametrize(("field", "value"), [(field, value) for field in NAMED for value in NAMED[field]])
def test_a_module_that_a_configuration_names_does_not_run(finished_copy, field, value, monkeypatch):
  (finished_copy.parent / "evil.py").write_text("raise SystemExit('it has run')")
  monkeypatch.syspath_prepend(finished_copy.parent)
  change(finished_copy / "config.json", **{field: value})
  is_refused(lambda: train.load(finished_copy), "workdir")
  is_refused(lambda: cli.parse(["evaluate", "--workdir", str(finished_copy)], runs.ROOT / "configs"))


@pytest.mark.thorough
def test_options_that_nothing_reads_do_not_matter(finished_copy):
  change(finished_copy / "config.json", **{"optimizer.nothing.inner": [1], "augment.nothing.x": [["evil:X"]]})
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
  assert [record["step"] for record in runs.records(workdir) if "train/loss" in record] == [*range(1, 9)]
  assert {path.name for path in workdir.iterdir()} >= {"config.json", "data.json", "metrics.jsonl"}
  log_probs = np.asarray(train.load(workdir)(np.zeros((1, 8, 8, 1), np.uint8)))
  assert np.isfinite(log_probs).all()
  assert results["step"] == 8

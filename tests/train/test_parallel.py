"""`pmap` and `jit` are wrappings of one step: what no noise couples, they train alike."""

import chex
import jax
import numpy as np
import pytest
import runs

from jaxreg import train

PLAIN = {"method.name": "softmax", "model.MLP.dropout_rate": 0.0, "optimizer.name": "sgd"}


@pytest.mark.thorough
@pytest.mark.usefixtures("no_figures")
def test_pmap_trains_as_jit_does_without_noise(tmp_path):
  assert jax.device_count() == 8
  jit, pmap = (
    train.train(runs.make_config({**PLAIN, "epochs": 2, "parallel": parallel}), tmp_path / parallel)
    for parallel in ("jit", "pmap")
  )
  assert jit["step"] == pmap["step"] == 8
  params = [runs.final_state(tmp_path / parallel)["params"] for parallel in ("jit", "pmap")]
  chex.assert_trees_all_close(*params, rtol=1e-5, atol=1e-6)
  assert abs(jit["test/nll"] - pmap["test/nll"]) < 1e-5


@pytest.mark.thorough
@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize(
  ("wrappings", "fields"),
  [(("jit", "jit", "jit"), {}), pytest.param(("pmap", "jit", "pmap"), PLAIN, marks=pytest.mark.slow)],
  ids=["jit", "pmap"],
)
def test_saved_on_four_devices_it_goes_on_on_two_and_on_eight(
  finished_run, tmp_path, monkeypatch, capsys, wrappings, fields
):
  """With noise under `jit`, and what is not coupled by any under both in turn: it ends as on eight alone."""
  whole = tmp_path / "whole" if fields else finished_run
  expected = train.train(runs.make_config(fields), whole)
  workdir = tmp_path / "run"
  parts = list(zip((4, 2, 8), (5, 14, None), wrappings, strict=True))
  for devices, stop, wrapping in parts:
    runs.on_devices(monkeypatch, devices)
    config = runs.make_config({**fields, "parallel": wrapping})
    if stop is None:
      break
    undo = runs.interrupt_at(monkeypatch, stop)
    with pytest.raises(train.Interrupted, match=f"stopped at step {stop} and saved"):
      train.train(config, workdir)
    undo()
  capsys.readouterr()
  results = train.train(config, workdir)
  said = capsys.readouterr().err
  assert "resuming at step 14 of 24" in said
  assert ("continuing under the new wrapping: parallel was 'jit', is 'pmap'" in said) == bool(fields)
  assert runs.table(workdir / "config.json")["parallel"] == wrappings[-1]
  assert results.keys() == expected.keys()
  for name, value in expected.items():
    np.testing.assert_allclose(results[name], value, rtol=0, atol=1e-5, err_msg=name)
  ours, theirs = (runs.final_state(folder)["params"] for folder in (workdir, whole))
  chex.assert_trees_all_close(ours, theirs, rtol=1e-4, atol=1e-5)
  # Each step saw the same examples and drew the same masks.
  losses = [
    [record["train/loss"] for record in runs.records(folder) if "train/loss" in record]
    for folder in (workdir, whole)
  ]
  assert len(losses[0]) == 24
  np.testing.assert_allclose(*losses, rtol=1e-4)


@pytest.mark.thorough
@pytest.mark.usefixtures("no_figures")
def test_the_wrapping_of_a_finished_run_stays(finished_copy):
  with pytest.raises(train.RunError, match="belongs to a finished run: parallel was 'jit', is 'pmap'"):
    train.train(runs.make_config({"parallel": "pmap"}), finished_copy)

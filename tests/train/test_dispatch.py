"""Several steps in one dispatch, and data that stay on the host, change nothing."""

import dataclasses

import chex
import jax
import numpy as np
import pytest
import runs

from jaxreg import train
from jaxreg.train.assemble.load_data import is_resident, load_data
from jaxreg.train.assemble.run_parts import steps_per_dispatch
from jaxreg.train.jobs import train as training
from jaxreg.train.run import manifest, recorder
from jaxreg.train.run.loop import dispatches

pytestmark = pytest.mark.usefixtures("no_figures")

FIELDS = {"epochs": 3, "optimizer.name": "sgd", "optimizer.learning_rate": 0.1}


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
@pytest.mark.parametrize("marks", [(4,), (6, 4), (1,), (1000,)])
@pytest.mark.parametrize("total", [1, 24, 25])
def test_every_step_once_and_no_mark_is_passed(size, marks, total):
  chunks = list(dispatches(0, total, size, marks))
  assert [step for steps in chunks for step in steps] == list(range(1, total + 1))
  assert {len(steps) for steps in chunks} <= {1, size}
  for steps in chunks:
    assert not any(step % mark == 0 for step in steps[:-1] for mark in marks)
  # A run that was saved at any of these moments makes the same dispatches.
  for number, steps in enumerate(chunks):
    assert list(dispatches(steps[-1], total, size, marks)) == chunks[number + 1 :]


def test_whole_ones_are_made():
  assert [len(steps) for steps in dispatches(0, 11, 3, (8,))] == [3, 3, 1, 1, 1, 1, 1]
  assert [len(steps) for steps in dispatches(0, 12, 4, (4,))] == [4, 4, 4]
  assert [len(steps) for steps in dispatches(2, 9, 3, (100,))] == [1, 3, 3]


@pytest.fixture
def dispatched(monkeypatch):
  """How many steps each dispatch made."""
  made, original = [], recorder.Recorder.add

  def add(self, steps, metrics):
    made.append(len(steps))
    original(self, steps, metrics)

  monkeypatch.setattr(recorder.Recorder, "add", add)
  return made


@pytest.mark.slow
@pytest.mark.parametrize("form", ["loop", "vmap"])
def test_several_steps_in_one_dispatch_are_the_same_steps(tmp_path, capsys, dispatched, form, monkeypatch):
  """Three, in epochs of four steps: whole dispatches and single steps take turns."""
  runs.in_form(monkeypatch, form)
  fields = {**FIELDS, "replicas": 2}
  one = train.train(runs.make_config({**fields, "steps_per_dispatch": 1}), tmp_path / "one")
  assert dispatched == [1] * 12
  dispatched.clear()
  several = train.train(runs.make_config({**fields, "steps_per_dispatch": 3}), tmp_path / "several")
  assert dispatched == [3, 1, 1, 1, 1, 1, 1, 3]
  ours, theirs = runs.records(tmp_path / "several"), runs.records(tmp_path / "one")
  assert [r["step"] for r in ours] == [r["step"] for r in theirs]
  assert sum("train/loss" in r for r in ours) == 12
  for mine, other in zip(ours, theirs, strict=True):
    assert mine.keys() == other.keys()
    for name, value in other.items():
      # Errors are multiples of 1/128.
      np.testing.assert_allclose(mine[name], value, atol=1e-5, rtol=1e-4, err_msg=name)
  np.testing.assert_allclose(several["replicas"]["test/nll"], one["replicas"]["test/nll"], atol=1e-5)

  workdir = tmp_path / "resumed"
  config = runs.make_config({**fields, "steps_per_dispatch": 3})
  assert train.train(config, workdir) == several
  (workdir / "results.json").unlink()
  for step in manifest.good_steps(workdir):
    if step > 8:
      (workdir / "manifests" / f"{step}.json").unlink()
  capsys.readouterr()
  dispatched.clear()
  assert train.train(config, workdir) == several
  assert "resuming at step 8 of 12" in capsys.readouterr().err
  assert dispatched == [1, 3]
  runs.assert_bitwise(runs.final_state(workdir), runs.final_state(tmp_path / "several"))


@pytest.mark.thorough
def test_a_step_that_fails_within_a_dispatch_is_named(tmp_path, monkeypatch, light_runs):
  original = recorder.to_host

  def spoil(metrics):
    metrics = original(metrics)
    total, count = metrics["loss"]
    if total.ndim == 2:
      total = np.where(np.arange(total.shape[1]) == 1, np.inf, total)
    return {**metrics, "loss": (total, count)}

  monkeypatch.setattr(recorder, "to_host", spoil)
  config = runs.make_config({**FIELDS, "steps_per_dispatch": 4})
  with pytest.raises(train.RunError, match=r"^step 2: loss = inf; stopped"):
    train.train(config, tmp_path / "run")


@pytest.mark.thorough
def test_how_many_steps_a_dispatch_makes(monkeypatch):
  assert steps_per_dispatch(runs.make_config()) == 1
  assert steps_per_dispatch(runs.make_config({"steps_per_dispatch": 5})) == 5
  monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
  assert steps_per_dispatch(runs.make_config()) == 8
  assert steps_per_dispatch(runs.make_config({"parallel": "pmap"})) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
  ("devices", "fields"),
  [
    (8, {}),
    (1, {}),
    (8, {"parallel": "pmap"}),
    (8, {"replicas": 2, "steps_per_dispatch": 4}),
  ],
  ids=str,
)
def test_data_on_the_host_give_the_same_bits(tmp_path, monkeypatch, devices, fields):
  """A set that is larger than `data.resident_gib`."""
  runs.on_devices(monkeypatch, devices)
  fields = {**FIELDS, **fields}
  config = runs.make_config({**fields, "data.resident_gib": 0.0})
  assert not is_resident(config, load_data(config))
  assert is_resident(runs.make_config(fields), load_data(config))
  on_host = train.train(config, tmp_path / "host")
  resident = train.train(runs.make_config(fields), tmp_path / "device")
  assert on_host == resident
  runs.assert_bitwise(runs.final_state(tmp_path / "host"), runs.final_state(tmp_path / "device"))
  assert runs.records(tmp_path / "host") == runs.records(tmp_path / "device")
  config = runs.make_config({**fields, "data.resident_gib": 0.0, "job": "evaluate"})
  evaluated = train.evaluate(config, tmp_path / "host")
  assert evaluated["test/nll"] == resident["test/nll"]


@pytest.mark.thorough
def test_a_run_traces_its_step_once(tmp_path, monkeypatch):
  """Over several dispatches, evaluations and saves: a second trace of a large model takes minutes."""
  chex.clear_trace_counter()
  make_run = training.make_run

  def traced_once(config, dataset, program, replicas):
    step, evaluation = (chex.assert_max_traces(f, n=1) for f in (program.train_step, program.eval_step))
    program = dataclasses.replace(program, train_step=step, eval_step=evaluation)
    return make_run(config, dataset, program, replicas)

  monkeypatch.setattr(training, "make_run", traced_once)
  train.train(runs.make_config({"epochs": 3}), tmp_path / "run")

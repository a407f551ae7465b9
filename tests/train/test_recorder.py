"""Metrics are read one step late, and a loss that is not finite stops the run."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import runs

from jaxreg import train
from jaxreg.train.run import manifest
from jaxreg.train.run.health import check_finite, largest_parts
from jaxreg.train.run.metrics_file import read_records
from jaxreg.train.run.recorder import Recorder
from jaxreg.train.step.metrics import averaged
from jaxreg.train.step.state import TrainState


class FakeLog:
  def __init__(self):
    self.records, self.shown, self.steps = [], [], 0

  def step(self):
    self.steps += 1

  def write(self, step, values):
    self.records.append((step, averaged(values)))

  def show(self, step, values):
    self.shown.append((step, averaged(values)))


def metrics(loss, count=2.0):
  """Those of one replica."""
  return {"loss": (jnp.float32([loss * count]), jnp.float32([count]))}


def test_means_over_intervals_one_step_late():
  log = FakeLog()
  recorder = Recorder(log, every=2, examples=4)
  seen = []
  for step in range(1, 6):
    recorder.add(range(step, step + 1), metrics(step))
    seen.append((log.steps, [at for at, _ in log.records]))
  assert seen == [(0, []), (1, []), (2, [2]), (3, [2]), (4, [2, 4])]
  recorder.flush()
  recorder.flush()
  assert log.steps == 5
  recorder.write(5)
  recorder.write(5)
  assert [(step, values["train/loss"]) for step, values in log.records] == [(2, 1.5), (4, 3.5), (5, 5.0)]
  assert all(values["train/examples_per_second"] > 0 for _, values in log.records)


def test_what_people_see_at_an_evaluation_is_a_mean_over_as_many_steps_as_a_record_has():
  """At step 6 the mean of the steps 3 to 6, although the last record is of step 4."""
  log = FakeLog()
  recorder = Recorder(log, every=4, examples=4)
  for step in range(1, 7):
    recorder.add(range(step, step + 1), metrics(step))
  recorder.flush()
  recorder.show(6)
  assert [(step, values["train/loss"]) for step, values in log.shown] == [(6, 4.5)]


def test_the_speed_is_that_of_the_steps_alone(monkeypatch):
  now = [0.0]
  monkeypatch.setattr(time, "monotonic", lambda: now[0])
  log = FakeLog()
  recorder = Recorder(log, every=3, examples=4)
  for step in range(1, 10):
    # A step takes a second, the compiler a minute before the first, an evaluation a minute after the fifth.
    now[0] += 61.0 if step == 1 else 1.0
    recorder.add(range(step, step + 1), metrics(1.0))
    if step == 5:
      now[0] += 1.0
      recorder.flush()
      now[0] += 60.0
      recorder.restart_timing()
      now[0] -= 1.0  # the step that follows was not dispatched ahead
  now[0] += 1.0
  recorder.flush()
  assert [values["train/examples_per_second"] for _, values in log.records] == [4.0, 4.0, 4.0]


def test_the_steps_of_one_dispatch_have_its_speed(monkeypatch):
  now = [0.0]
  monkeypatch.setattr(time, "monotonic", lambda: now[0])
  log = FakeLog()
  recorder = Recorder(log, every=1, examples=4)
  recorder.restart_timing()
  values = (jnp.ones((1, 3)), jnp.ones((1, 3)))
  recorder.add(range(1, 4), {"loss": values})
  now[0] += 6.0
  recorder.flush()
  assert [record["train/examples_per_second"] for _, record in log.records] == [2.0] * 3


def test_means_are_weighted_by_their_counts():
  log = FakeLog()
  recorder = Recorder(log, every=2, examples=4)
  recorder.add(range(1, 2), metrics(1.0, count=3.0))
  recorder.add(range(2, 3), metrics(5.0, count=1.0))
  recorder.flush()
  assert log.records[0][1]["train/loss"] == 2.0


def test_replicas_have_an_interval_beside_their_mean():
  log = FakeLog()
  recorder = Recorder(log, every=1, examples=4)
  recorder.add(range(1, 2), {"loss": (jnp.float32([2.0, 6.0]), jnp.float32([2.0, 2.0]))})
  recorder.flush()
  # Of 1 and 3: Student's t with one degree of freedom, 12.7062 times the standard error, which is 1.
  assert log.records[0][1]["train/loss"] == 2.0
  assert log.records[0][1]["train/loss_ci95"] == pytest.approx(12.706204736)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_named_with_its_step(value):
  recorder = Recorder(FakeLog(), every=1, examples=4)
  recorder.add(range(7, 8), {**metrics(1.0), "nll": metrics(value)["loss"], "kl": metrics(2.0)["loss"]})
  with pytest.raises(train.RunError, match=rf"^step 7: nll = {value}; stopped") as refused:
    recorder.add(range(8, 9), metrics(1.0))
  assert "kl" not in str(refused.value)
  assert "\n" not in str(refused.value)


def test_check_finite():
  check_finite(1, {"loss": 1e38, "zero": 0.0})
  with pytest.raises(train.RunError, match=r"step 3: a = nan, c = -inf; stopped"):
    check_finite(3, {"a": float("nan"), "b": 1.0, "c": -float("inf")})


@pytest.mark.parametrize(("value", "expected"), [(-7.0, 7.0), (np.nan, np.nan), (-np.inf, np.inf)])
def test_the_largest_value_of_each_part(value, expected):
  tree = {"a": jnp.array([1.0, 2.0]), "b": {"c": jnp.array([[value, 0.0]]), "count": jnp.int32(3)}}
  state = TrainState(jnp.int32(1), jax.random.key(0), tree, {}, {"empty": jnp.zeros((0, 3))})
  found = largest_parts((state, state))
  np.testing.assert_equal(found["params"], [expected, expected])
  np.testing.assert_equal(found["model_state"], [0, 0])
  np.testing.assert_equal(found["opt_state"], [0, 0])


@pytest.mark.thorough
def test_a_run_whose_loss_explodes_stops_and_keeps_its_last_good_checkpoint(tmp_path, light_runs):
  """One epoch at a rate of 0.1, a step at 1e8, then 1e17."""
  config = runs.make_config(
    {
      "optimizer.name": "sgd",
      "optimizer.learning_rate": 0.1,
      "optimizer.schedule.name": "step",
      "optimizer.schedule.step.boundaries": (1.0, 1.25),
      "optimizer.schedule.step.factor": 1e9,
      "method.name": "softmax",
    }
  )
  workdir = tmp_path / "run"
  for _ in range(2):  # The same command again: the same end.
    with pytest.raises(train.RunError, match=r"^step (6|7): .*(loss|nll) = (nan|inf)") as refused:
      train.train(config, workdir)
    assert "learning_rate" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert list(manifest.good_steps(workdir)) == [4]
    assert not (workdir / "results.json").exists()
  # Nothing that is not a number was written.
  assert [r["step"] for r in read_records(workdir) if "train/loss" in r][:4] == [1, 2, 3, 4]
  assert all(np.isfinite(v) for record in read_records(workdir) for v in record.values())
  log_probs = train.load(workdir)(np.full((3, 8, 8, 1), 7, np.uint8))
  assert np.isfinite(log_probs).all()
  assert np.allclose(np.exp(log_probs).sum(-1), 1, atol=1e-6)


@pytest.mark.thorough
def test_parameters_that_are_not_finite_are_not_saved(tmp_path, light_runs):
  """The loss of the last step is that of the parameters before it: an update that overflows is seen here."""
  rng, arrays = np.random.default_rng(0), {}
  for part in ("train", "val", "test"):
    arrays[f"x_{part}"] = 1e12 * rng.normal(size=(48, 5)).astype(np.float32)
    arrays[f"y_{part}"] = np.arange(48) % 3
  np.savez(tmp_path / "a.npz", **arrays)
  fields = {"optimizer.name": "sgd", "optimizer.learning_rate": 1e30, "method.name": "softmax", "epochs": 1}
  fields |= {"data.name": "npz", "data.npz.path": str(tmp_path / "a.npz"), "batch_size": 48}
  with pytest.raises(train.RunError, match=r"^step 1: params = (nan|inf); stopped"):
    train.train(runs.make_config(fields), tmp_path / "run")
  assert manifest.good_steps(tmp_path / "run") == {}

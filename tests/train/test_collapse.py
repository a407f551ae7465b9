"""A run that does not learn is told so, once, and goes on."""

import numpy as np
import pytest
import runs

from jaxreg import train
from jaxreg.train.run.health import CollapseGuard


def warnings(*seen, steps=100, clipped=False):
  said = []
  guard = CollapseGuard(said.append, steps=steps, num_classes=10, clipped=clipped)
  for values in seen:
    guard.observe(50, {f"train/{name}": np.atleast_1d(value) for name, value in values.items()})
  return said


def test_accuracy_near_chance_for_the_whole_stretch():
  [said] = warnings({"accuracy": 0.11}, {"accuracy": 0.149}, {"accuracy": 0.10}, {"accuracy": 0.10})
  assert "for 100 steps" in said
  assert "14.9%" in said
  assert "a guess reaches 10.0%" in said
  assert "optimizer.clip_norm" in said


@pytest.mark.parametrize("seen", [[0.11], [0.11, 0.16, 0.11], [0.5] * 9])
def test_no_warning_while_it_learns(seen):
  assert not warnings(*({"accuracy": x} for x in seen))


def test_one_collapsed_replica_of_three_is_enough():
  [said] = warnings(*[{"accuracy": [0.5, 0.1, 0.6]}] * 2)
  assert "10.0%" in said


def test_retain_probabilities_that_stay_equal():
  """The collapsed run of the measurements, and a healthy one."""
  alike = {"accuracy": 0.2, "retain_target": 0.345, "retain_nontarget": 0.341}
  [said] = warnings(alike, alike, alike)
  assert "(0.34)" in said
  assert "DropMax" in said
  assert not warnings(*[{"accuracy": 0.2, "retain_target": 0.495, "retain_nontarget": 0.304}] * 3)


def test_the_advice_depends_on_what_is_done_already():
  [said] = warnings({"accuracy": 0.1}, {"accuracy": 0.1}, clipped=True)
  assert "clip_norm" not in said
  assert "optimizer.learning_rate" in said


def test_none_where_none_is_wanted():
  assert not warnings(*[{"accuracy": 0.1}] * 9, steps=0)


@pytest.mark.parametrize(
  ("losses", "told"),
  [([22.0, 22.0], 0), ([24.0, 2.0, 24.0, 2.0], 0), ([2.0, 24.0], 1), ([24.0, 25.0, 8794.0], 1)],
)
def test_an_exploded_validation_loss_is_told_once(losses, told):
  """A guess among 10 classes has log 10 = 2.303, and ten times that is 23.03."""
  said = []
  guard = CollapseGuard(said.append, steps=100, num_classes=10, clipped=False)
  for number, loss in enumerate(losses, 1):
    guard.observe_evaluation(np.array([1.0, loss]), last=number == len(losses))
  assert len(said) == told
  for line in said:
    assert "the validation loss is 2" in line
    assert "where a guess has 2.303" in line
    assert "optimizer.learning_rate" in line


@pytest.mark.thorough
def test_a_run_whose_validation_loss_explodes_is_told(tmp_path, capfd, light_runs):
  fields = {"method.name": "softmax", "optimizer.name": "sgd", "optimizer.learning_rate": 300.0, "epochs": 1}
  train.train(runs.make_config(fields), tmp_path)
  [said] = [line for line in capfd.readouterr().err.splitlines() if "validation loss" in line]
  assert "where a guess has 2.303" in said


@pytest.mark.thorough
def test_a_run_that_cannot_learn_is_told_and_ends(tmp_path, capfd, light_runs):
  """A rate of 1e-9 learns nothing: one line, and the run goes on to its end."""
  fields = {"optimizer.learning_rate": 1e-9, "watch.steps": 10}
  train.train(runs.make_config(fields), tmp_path)
  said = [line for line in capfd.readouterr().err.splitlines() if "warning" in line]
  assert any("retains target" in line for line in said)
  assert len(said) <= 2
  assert (tmp_path / "results.json").is_file()

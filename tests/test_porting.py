"""The recipes of docs/porting.md: each change applies and trains."""

import importlib.util

import jax
import numpy as np
import optax
import pytest
from test_readme import ROOT

SPEC = importlib.util.spec_from_file_location("measure", ROOT / "examples/porting/measure.py")
assert SPEC
assert SPEC.loader
measure = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(measure)
CHANGES = measure.changes()


def test_each_script_has_a_change():
  scripts = {script.stem for script in (ROOT / "examples/porting").glob("*_mnist.py")}
  assert {script for script, _ in CHANGES} == scripts


def test_a_hunk_that_does_not_fit_is_refused():
  with pytest.raises(ValueError, match="0 times in the script"):
    measure.changed("a\n", "@@ here\n-b\n+c\n")
  assert measure.changed("a\nb\n\nc\n", "@@ here\n b\n \n-c\n+d\n") == "a\nb\n\nd\n"


@pytest.mark.thorough
@pytest.mark.parametrize(("script", "name"), CHANGES)
def test_a_change_trains(script, name):
  """The test NLL falls below a guess's; DropMax's loss falls below 0, which no softmax loss does."""
  train, test = measure.digits()
  module = measure.load(script, CHANGES[script, name])
  steps, above = (600, 0.0) if name == "group softmax" else (60, 0.5)  # it begins slowly, as the page says
  if (script, name) == ("equinox_mnist", "DropMax"):  # at the rate of the example it takes a thousand steps
    module.optimizer, steps = optax.adamw(3e-3), 200
  with jax.numpy_rank_promotion("allow"):
    [(first, *_), (loss, nll, accuracy)] = module.run(0, measure.batches_of(train, 0), test, [5, steps])
  assert accuracy > above
  assert 0 < nll < np.log(10)
  assert loss < first
  assert (loss < 0) == (name == "DropMax")


@pytest.mark.thorough
def test_mnist_is_read(data_dir):
  train, test = measure.mnist(data_dir / "mnist")
  assert [train["image"].shape, test["image"].shape] == [(60000, 28, 28, 1), (10000, 28, 28, 1)]
  assert (test["label"][:5] == [7, 2, 1, 0, 4]).all()
  assert test["image"].max() == 1

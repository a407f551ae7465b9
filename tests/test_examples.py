"""The scripts of `examples/` run and do what they show."""

import importlib.util
from pathlib import Path

import jax
import numpy as np
import pytest

FOLDER = Path(__file__).resolve().parent.parent / "examples"


def load(name):
  spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
  assert spec
  assert spec.loader
  module = importlib.util.module_from_spec(spec)
  with jax.numpy_rank_promotion("allow"):  # as a reader runs them
    spec.loader.exec_module(module)
  return module


@pytest.mark.parametrize("library", ["linen", "flax_nnx", "equinox"])
@jax.numpy_rank_promotion("allow")
def test_batch_norm_keeps_the_statistics_of_clean_inputs(library, monkeypatch):
  """The first layer's input is the data: after n steps its mean is `1 - 0.9^n` times that of the data."""
  example = load("batch_norm")
  train = example.train
  monkeypatch.setattr(example, "train", lambda *args: train(*args, num_steps=2))
  first, _ = getattr(example, library)()
  monkeypatch.setattr(example, "train", lambda *args: train(*args, num_steps=10))
  loss, stats = getattr(example, library)()
  assert loss < first
  mean = np.asarray(example.INPUTS, np.float64).mean(0)
  found = [leaf for leaf in jax.tree.leaves(stats) if leaf.shape == mean.shape]
  errors = [np.abs(leaf - (1 - 0.9**10) * mean).max() for leaf in found]
  assert min(errors) < 1e-4


def test_the_training_step_of_ones_own_learns():
  example = load("training_step")
  assert example.accuracy > 0.7
  assert set(example.metrics) >= {"nll", "kl", "neg_entropy", "auxiliary", "l2"}

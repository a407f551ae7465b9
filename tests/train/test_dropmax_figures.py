"""The figures of the DropMax paper from a trained run."""

import sys

import jax
import numpy as np
import oracles
import pytest
import runs

from jaxreg import train
from jaxreg.train.dropmax_figures import KEEP_PROBS, SAMPLES, sampled_probs

pytestmark = pytest.mark.thorough


@pytest.mark.slow
def test_all_are_drawn_from_a_finished_run(finished_copy):
  config = runs.make_config({"job": "dropmax_figures"})
  results = train.dropmax_figures(config, finished_copy)
  assert results["step"] == 6 * runs.STEPS_PER_EPOCH
  for name in ("equilibrium", "monte_carlo", "predictive", "contours", "gradients"):
    assert (finished_copy / "figures" / f"{name}.png").stat().st_size > 5000
  assert KEEP_PROBS[0] == 1


@pytest.mark.slow
def test_with_too_many_classes_to_enumerate_the_others_are_drawn(finished_copy, monkeypatch):
  # The name of the module is that of its function, too.
  monkeypatch.setattr(sys.modules["jaxreg.train.dropmax_figures"], "MAX_CLASSES", 9)
  train.dropmax_figures(runs.make_config({"job": "dropmax_figures"}), finished_copy)
  assert (finished_copy / "figures" / "contours.png").exists()
  assert not (finished_copy / "figures" / "gradients.png").exists()


def test_another_method_is_refused(tmp_path):
  config = runs.make_config({"job": "dropmax_figures", "method.name": "softmax"})
  with pytest.raises(train.RunError, match=r"^method\.name: these are figures of 'dropmax', got 'softmax'$"):
    train.dropmax_figures(config, tmp_path / "run")
  assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("label", [None, 1])
def test_sampled_probabilities_average_to_the_enumeration(label):
  logits, retain = np.array([1.0, 0.5, -0.5], np.float32), np.array([0.3, 1.0, -1.0], np.float32)
  labels = None if label is None else np.array([label])
  probs = sampled_probs(jax.random.key(0), logits[None], retain[None], labels)
  assert probs.shape == (SAMPLES, 1, 3)
  keep = oracles.sigmoid(retain)
  masks = oracles.all_masks(3)
  chances = oracles.mask_probabilities(masks, keep)
  if label is not None:
    masks[:, label] = keep[label]
  expected = (chances[:, None] * oracles.masked_softmax(logits, masks)).sum(0)
  spread = 4 * probs[:, 0].std(0) / np.sqrt(SAMPLES)
  assert (np.abs(probs[:, 0].mean(0) - expected) <= spread).all()

"""The figures of the DropMax paper from a trained run."""

import image_files
import jax
import numpy as np
import oracles
import pytest
import runs
from matplotlib.text import Text

from jaxreg import train
from jaxreg.train.jobs import dropmax_figures
from jaxreg.train.jobs.dropmax_contours import KEEP_PROBS
from jaxreg.train.jobs.dropmax_figures import SAMPLES, sampled_probs

pytestmark = pytest.mark.thorough


@pytest.mark.slow
def test_all_are_drawn_from_a_finished_run(finished_copy):
  config = runs.make_config({"job": "dropmax_figures"})
  results = train.dropmax_figures(config, finished_copy)
  assert f"{finished_copy}/figures/equilibrium.png" in train.report(results, config, finished_copy)
  assert results["step"] == 6 * runs.STEPS_PER_EPOCH
  for name in ("equilibrium", "monte_carlo", "predictive", "contours", "gradients"):
    assert (finished_copy / "figures" / f"{name}.png").stat().st_size > 5000
  assert KEEP_PROBS[0] == 1


@pytest.mark.slow
def test_with_too_many_classes_to_enumerate_the_others_are_drawn(finished_copy, monkeypatch):
  monkeypatch.setattr(dropmax_figures, "MAX_CLASSES", 9)
  train.dropmax_figures(runs.make_config({"job": "dropmax_figures"}), finished_copy)
  assert (finished_copy / "figures" / "contours.png").exists()
  assert not (finished_copy / "figures" / "gradients.png").exists()


def test_another_method_is_refused(tmp_path):
  config = runs.make_config({"job": "dropmax_figures", "method.name": "softmax"})
  with pytest.raises(train.RunError, match=r"^method\.name: these are figures of 'dropmax', got 'softmax'$"):
    train.dropmax_figures(config, tmp_path / "run")
  assert not (tmp_path / "run").exists()


def test_what_are_no_images_in_one_array_is_refused(tmp_path):
  images = image_files.make_folder(tmp_path / "images", splits={"train": 40, "val": 6})
  stream = {"data.name": "image_folder", "data.image_folder.path": str(images)}
  stream |= {"data.stream.size": 8, "data.stream.resize": 8}
  x, y = np.zeros((60, 4), np.float32), np.arange(60) % 3
  np.savez(tmp_path / "vectors.npz", x_train=x, y_train=y, x_test=x[:30], y_test=y[:30])
  vectors = {"data.name": "npz", "data.npz.path": str(tmp_path / "vectors.npz")}
  for fields, message in ((stream, "are decoded batch by batch"), (vectors, r"got inputs of shape \(4,\)")):
    with pytest.raises(train.RunError, match=message):
      train.dropmax_figures(runs.make_config({"job": "dropmax_figures", **fields}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("labels", "shown"), [([0, 1, 2, 1], 1), ([0, 2, 2, 0], 2), ([2, 2, 2, 2], 2)])
def test_a_class_that_occurs_is_shown(labels, shown):
  rng = np.random.default_rng(0)
  head = lambda x: {name: rng.normal(size=(len(x), 3)) for name in ("logits", "retain_logits")}
  inputs = rng.integers(0, 16, (4, 8, 8, 1)).astype(np.uint8)
  figure = dropmax_figures._monte_carlo(head, head(inputs), inputs, np.array(labels))
  texts = {text.get_text() for text in figure.findobj(Text)}
  assert f"noise on a {shown}, part of the largest pixel" in texts


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

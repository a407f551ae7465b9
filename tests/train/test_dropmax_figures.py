"""The figures of the DropMax paper from a trained run."""

import jax
import numpy as np
import oracles
import pytest
import runs
from matplotlib.text import Text

from jaxreg import train
from papers.dropmax import figures
from papers.dropmax.figures import SAMPLES, sampled_probs

pytestmark = pytest.mark.thorough


@pytest.mark.slow
def test_all_are_drawn_from_a_finished_run(finished_copy, monkeypatch, capsys):
  monkeypatch.setattr("sys.argv", ["figures", str(finished_copy)])
  figures.main()
  names = ("equilibrium", "monte_carlo", "predictive", "contours", "gradients")
  assert capsys.readouterr().out.split() == [f"{finished_copy}/figures/{name}.png" for name in names]
  for name in names:
    assert (finished_copy / "figures" / f"{name}.png").stat().st_size > 5000


@pytest.mark.slow
def test_with_too_many_classes_to_enumerate_the_others_are_drawn(finished_copy, monkeypatch):
  monkeypatch.setattr(figures, "MAX_CLASSES", 9)
  assert {*figures.draw(finished_copy)} == {"equilibrium", "monte_carlo", "predictive", "contours"}


def test_what_cannot_be_drawn_is_refused_in_one_line(finished_copy, tmp_path, monkeypatch, capsys):
  x, y = np.zeros((60, 4), np.float32), np.arange(60) % 3
  np.savez(tmp_path / "vectors.npz", x_train=x, y_train=y, x_test=x[:30], y_test=y[:30])
  vectors = {"data.name": "npz", "data.npz.path": str(tmp_path / "vectors.npz")}
  monkeypatch.setattr("sys.argv", ["figures", str(finished_copy)])
  for fields, message in (
    ({"method.name": "softmax"}, "these are figures of 'dropmax', got 'softmax'"),
    (vectors, "the figures need images in one array, got the data 'npz'"),
  ):
    monkeypatch.setattr(figures, "restore_config", lambda *_, fields=fields: runs.make_config(fields))
    with pytest.raises(SystemExit, match="1"):
      figures.main()
    assert capsys.readouterr().err == f"{finished_copy}: {message}\n"
  monkeypatch.undo()
  with pytest.raises(train.RunError, match="nothing"):
    figures.draw(tmp_path / "none")


@pytest.mark.parametrize(("labels", "shown"), [([0, 1, 2, 1], 1), ([0, 2, 2, 0], 2), ([2, 2, 2, 2], 2)])
def test_a_class_that_occurs_is_shown(labels, shown):
  rng = np.random.default_rng(0)
  head = lambda x: {name: rng.normal(size=(len(x), 3)) for name in ("logits", "retain_logits")}
  inputs = rng.integers(0, 16, (4, 8, 8, 1)).astype(np.uint8)
  figure = figures._monte_carlo(head, head(inputs), inputs, np.array(labels), "digits")
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

"""The measurements of `papers/flatness` on small trainings: what is written, and what it agrees with."""

import dataclasses
import json

import jax
import numpy as np
import pytest
import runs

from jaxreg import flatness, train
from papers.flatness import __main__ as command
from papers.flatness import _analyses as analyses
from papers.flatness._settings import SETTINGS, Row, Setting

FIELDS = {
  "method.name": "softmax",
  "model.MLP.widths": (8, 6),
  "model.MLP.dropout_rate": 0.0,
  "epochs": 2,
  "checkpoint.keep": 2,
}
DROPOUT = {"model.MLP.dropout_rates": (0.0, 0.2)}
SETTING = Setting(
  "",
  "digits",
  rows={
    "dropout": Row(DROPOUT, ("profile", "variance_flatness", "projected_variance")),
    "plain": Row({}, ("profile", "alignment")),
  },
  mask=("backbone/Dense_1/*",),
  points=5,
  samples=30,
  curvature_samples=20,
  directions=6,
  noises={"keep 0.8": DROPOUT},
)


def train_here(config, fields, folder, flags):
  """Trains in this process, where the trainings of the tests share what is compiled."""
  train.train(runs.make_config({**FIELDS, **fields}), folder)


@pytest.fixture(scope="module")
def measured(tmp_path_factory, light_module):
  out = tmp_path_factory.mktemp("measured") / "out"
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(command, "_train", train_here)
    command.measure(SETTING, out, [])
  return out


def network_of(out, row, **changes):
  return analyses.Network(train.load(out / "rows" / row), dataclasses.replace(SETTING, **changes))


@pytest.mark.thorough
def test_what_is_written(measured):
  results = json.loads((measured / "flatness.json").read_text())
  names = ("profile", "variance_flatness", "spectra", "projected_variance", "alignment")
  assert {path.name for path in (measured / "figures").iterdir()} == {f"{name}.png" for name in names}
  assert results["dropout"]["parameters"] == 8 * 6 + 6
  assert set(results["dropout"]["variance_flatness"]) == {"trajectory", "gradients", "isotropic control"}
  fit = results["dropout"]["variance_flatness"]["gradients"]["fit"]
  assert "slope" in fit or "slopes" in fit
  assert results["plain"]["profile"]["0.5"]["flatter_than"]["of"] == 5
  assert results["plain"]["alignment"]["keep 0.8"]["points"] == 2


@pytest.mark.thorough
def test_what_is_kept_is_not_computed_again(measured, monkeypatch, capsys):
  before = (measured / "flatness.json").read_text()
  monkeypatch.setattr(command, "_train", train_here)
  for name in ("sample_gradients", "interval_flatness", "gauss_newton_matrix", "loss_profile"):
    monkeypatch.setattr(flatness, name, None)
  command.measure(SETTING, measured, [])
  assert (measured / "flatness.json").read_text() == before
  printed = capsys.readouterr().out
  assert "computing" not in printed
  assert "20 samples of 54 parameters: their principal components have a bias" in printed


@pytest.mark.thorough
def test_the_loss_is_that_of_the_predictions(measured):
  network = network_of(measured, "dropout")
  data = network.run.dataset.train
  log_probs = np.asarray(network.run(data.inputs))
  expected = -log_probs[np.arange(len(data)), data.labels].mean()
  assert network.loss() == pytest.approx(expected, rel=1e-5)


@pytest.mark.thorough
def test_the_hessian_of_the_layer_is_that_of_jax(measured):
  network = network_of(measured, "dropout")
  part = flatness.subset(network.params, network.mask)
  loss = lambda flat: network.loss_fn(part.merge(flat), network.batch, key=None)
  expected = jax.hessian(loss)(part.flat)
  scale = float(np.abs(expected).max())
  np.testing.assert_allclose(network.hessian(network.params), expected, atol=1e-5 * scale)


@pytest.mark.thorough
def test_the_noise_of_parts_is_that_of_their_examples(measured):
  """Without layers that couple examples, parts are an estimate of the same covariance."""
  network = network_of(measured, "dropout", parts=8)
  samples = np.asarray(analyses._gradients(network, 1000))
  assert samples.shape == (8 * 126, network.size)
  expected = np.asarray(
    analyses._covariance(network, network.loss_fn, network.params, jax.random.key(1), 200)
  )
  covariance = samples.T @ samples / len(samples)
  assert np.trace(covariance) == pytest.approx(np.trace(expected), rel=0.1)
  assert np.linalg.norm(covariance - expected) < 0.2 * np.linalg.norm(expected)
  assert list(analyses._spectra(network, samples)) == ["336 gradients", "1008 gradients"]


@pytest.mark.thorough
def test_added_noise_is_the_only_change_of_the_loss(measured):
  network = network_of(measured, "plain")
  noisy = analyses.noisy_loss_fn(network.run, DROPOUT)
  arguments, key = (network.params, network.batch), jax.random.key(0)
  assert float(noisy(*arguments, key=None)) == pytest.approx(network.loss(), rel=1e-6)
  assert float(noisy(*arguments, key=key)) != pytest.approx(network.loss(), rel=1e-4)


@pytest.mark.thorough
def test_the_trajectory_goes_on_as_the_training_would(measured, tmp_path):
  """Its samples are the parameters of a longer run of the same thing."""
  longer = runs.make_config({**FIELDS, **DROPOUT, "epochs": 3, "checkpoint.every": 1})
  train.train(longer, tmp_path / "run")
  expected = flatness.subset(train.load(tmp_path / "run").state.params, SETTING.mask).flat
  (file,) = (measured / "rows/dropout/flatness").glob("*/trajectory-30.npz")
  with np.load(file) as saved:
    sample = saved["samples"][runs.STEPS_PER_EPOCH - 1]
  np.testing.assert_allclose(sample, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"mask": ("Conv_0/*",)}, r"plain: mask: 'Conv_0/\*' selects no parameter; there are backbone"),
    ({"rows": {"plain": Row({}, ("projected_variance",))}}, "the gradients are the same in all 20 samples"),
  ],
)
def test_what_cannot_be_measured_is_told_in_one_line(measured, monkeypatch, changes, message):
  monkeypatch.setattr(command, "_train", train_here)
  setting = dataclasses.replace(SETTING, **{"rows": {"plain": SETTING.rows["plain"]}, **changes})
  with pytest.raises(train.RunError, match=message) as error:
    command.measure(setting, measured, [])
  assert "\n" not in str(error.value)


@pytest.mark.slow
def test_resnet20_on_a_cifar100_of_noise(tmp_path):
  """The setting that no test data exist for, whole, on random images of its shape."""
  rng = np.random.default_rng(0)
  arrays = {}
  for split, size in (("train", 128), ("val", 64), ("test", 64)):
    arrays[f"x_{split}"] = rng.integers(0, 256, (size, 32, 32, 3), dtype=np.uint8)
    arrays[f"y_{split}"] = np.arange(size) % 100
  np.savez(tmp_path / "noise.npz", **arrays)
  small = {"examples": 8, "points": 3, "samples": 6, "directions": 4, "curvature_samples": 4, "eigenpairs": 3}
  fields = {"data.name": "npz", "data.npz.path": tmp_path / "noise.npz", "batch_size": 64, "accumulate": 2}
  fields |= {"steps": 2, "eval_batch_size": 64}
  setting = dataclasses.replace(SETTINGS["resnet20_cifar100"][""], **small)
  command.measure(setting, tmp_path / "out", [f"--config.{name}={value}" for name, value in fields.items()])
  rows = json.loads((tmp_path / "out" / "flatness.json").read_text())
  assert list(rows) == ["no dropout", "keep 0.8"]
  for row in rows.values():
    # The first convolution of the first block: 3x3, 16 channels to 16.
    assert (row["step"], row["parameters"]) == (2, 3 * 3 * 16 * 16)
    assert row["profile"]["1"]["mean"] > 0
  assert 1 <= rows["keep 0.8"]["projected_variance"]["eigenvalues"] <= 3
  assert 1 <= rows["keep 0.8"]["variance_flatness"]["gradients"]["directions"] <= 4
  figures = {path.name for path in (tmp_path / "out" / "figures").iterdir()}
  assert figures == {"profile.png", "variance_flatness.png", "spectra.png", "projected_variance.png"}

"""The numbers of the flatness paper's tables, from arrays with known answers."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zips

from jaxreg import flatness, losses
from papers.flatness import __main__ as command
from papers.flatness import _analyses as analyses
from papers.flatness._figures import compare_profiles, lines, recorded
from papers.flatness._settings import SETTINGS, Setting

PLAIN = Setting("", "", rows={}, mask=("first",))


def _profile(*curvatures):
  """Returns losses 2 + c a^2 on both sides."""
  alphas = np.linspace(-1, 1, 5)
  return {"alphas": alphas, "losses": 2 + np.outer(curvatures, alphas**2)}


def test_rises_are_above_the_loss_at_the_parameters():
  rises = analyses.rises(_profile(4.0, 8.0))
  np.testing.assert_allclose(rises["0.5"], [1, 2])
  np.testing.assert_allclose(rises["1"], [4, 8])


def test_lower_along_counts_directions_of_lower_rise():
  """The second row rises less along two of three directions at either distance."""
  compared = compare_profiles({"no dropout": _profile(4.0, 4.0, 4.0), "keep 0.8": _profile(1.0, 2.0, 9.0)})
  counted = {"row": "no dropout", "directions": 2, "of": 3}
  assert compared["keep 0.8"]["1"]["flatter_than"] == counted
  assert "flatter_than" not in compared["no dropout"]["1"]
  row = {"step": 1, "train/loss": 2.0, "profile": compared["keep 0.8"]}
  assert "rise at ±1: 4 ± 4.4; lower than no dropout along 2 of 3" in lines({"keep 0.8": row})


def test_seeds_are_the_runs_of_a_record():
  def row(number):
    fit = {"fit": {"correlation": -number / 10}}
    ratios = {"least_ratio": 15.0 + number, "last_ratio": 60.0}
    return {"variance_flatness": {"gradients": fit}, "alignment": {"keep 0.9": ratios}}

  rows = recorded({f"lr 0.5, seed {number}": row(number) for number in range(3)}).rows
  assert rows["lr 0.5, gradients"]["runs"] == {"correlation with flatness": [0.0, -0.1, -0.2]}
  assert rows["lr 0.5, keep 0.9"]["runs"] == {"least ratio": [15.0, 16.0, 17.0], "last ratio": [60.0] * 3}
  assert [*recorded({"seed 4": row(4)}).rows] == ["gradients", "keep 0.9"]


def test_the_isotropic_control_has_the_total_variance_of_the_samples():
  like = np.random.default_rng(0).normal(size=(4000, 3)) * np.array([0.1, 1, 10])
  control = analyses.isotropic_like(like)
  # Each estimate of a variance has a relative standard error of sqrt(2 / 4000).
  np.testing.assert_allclose(control.var(axis=0), like.var(axis=0).sum() / 3, rtol=4 * np.sqrt(2 / 4000) * 2)
  assert abs(np.corrcoef(control.T) - np.eye(3)).max() < 4 / np.sqrt(4000)


def _recorded(arrays):
  """A network whose arrays are already kept."""
  return SimpleNamespace(setting=PLAIN, kept=lambda name, compute: arrays)


@pytest.mark.thorough
@pytest.mark.parametrize("analysis", ["variance_flatness", "projected_variance"])
def test_fits_leave_out_rounding_errors(monkeypatch, analysis):
  """Six points on a power law, and four below the tolerance that are far from it."""
  x = np.geomspace(1, 32, 6)
  x, y = np.concatenate([x, np.full(4, 1e3)]), np.concatenate([x**-2 / 32, np.full(4, 1e-12)])
  monkeypatch.setattr(analyses, "draw_samples", lambda network, number: {"gradients": np.stack([x, x])})
  if analysis == "projected_variance":
    pairs = {"values": y, "vectors": np.eye(10), "residuals": np.zeros(10)}
    monkeypatch.setattr(flatness, "projected_variance", lambda samples, vectors: samples[0])
    _, summary = analyses.projected_variance(_recorded(pairs))
    fit, slope = summary["fits"]["gradients"], -0.5
  else:
    intervals = {"width": x, "evaluations": np.ones(10), "crossed": np.ones((10, 2), bool)}
    monkeypatch.setattr(analyses, "_components", lambda samples, number: (np.eye(10), y))
    monkeypatch.setattr(analyses, "_spectra", lambda network, samples: {})
    _, summary = analyses.variance_flatness(_recorded(intervals))
    fit, slope = summary["gradients"]["fit"], -2
  assert fit["num_points"] == 6
  assert fit["slope"] == pytest.approx(slope)


def test_equal_samples_are_refused():
  with pytest.raises(analyses.RunError, match=r"the gradients are the same in all 5 samples; .* dropout"):
    analyses._check_vary("gradients", np.ones((5, 3)))


@pytest.mark.thorough
def test_jacobians_give_the_hessian_of_a_layer_of_a_relu_network():
  """The first of two layers, used at two positions; checked against JAX's own."""
  rng = np.random.default_rng(0)
  params = {"first": jnp.asarray(rng.normal(size=(3, 2)), jnp.float32), "last": jnp.eye(2, 3)}
  batch = {
    "inputs": jnp.asarray(rng.normal(size=(6, 2, 3)), jnp.float32),
    "labels": jnp.arange(6) % 3,
    "weights": jnp.array([2.0, 1, 1, 1, 1, 0]),
  }

  def apply_fn(params, state, inputs, *, key, train):
    return {"logits": jax.nn.relu(inputs @ params["first"]).mean(axis=1) @ params["last"]}, state

  program = SimpleNamespace(apply_fn=apply_fn, examples=lambda batch: SimpleNamespace(inputs=batch["inputs"]))
  run = SimpleNamespace(program=program, state=SimpleNamespace(model_state={}))
  network = SimpleNamespace(run=run, batch=batch, mask=("first",))
  network.logits = lambda *given, **named: analyses.Network.logits(network, *given, **named)
  part = flatness.subset(params, "first")

  def loss(flat):
    logits = apply_fn(part.merge(flat), {}, batch["inputs"], key=None, train=False)[0]["logits"]
    return (losses.softmax_cross_entropy(logits, batch["labels"]) * batch["weights"]).mean()

  expected = jax.hessian(loss)(part.flat)
  found = analyses.Network.hessian(network, params)
  np.testing.assert_allclose(found, expected, atol=1e-5 * float(np.abs(expected).max()))


def test_kept_arrays_are_not_computed_again_and_damaged_ones_are(tmp_path):
  network = SimpleNamespace(folder=tmp_path)
  keep = lambda compute: analyses.Network.kept(network, "numbers", compute)["x"]
  np.testing.assert_array_equal(keep(lambda: {"x": np.arange(3)}), np.arange(3))
  np.testing.assert_array_equal(keep(dict), np.arange(3))
  file = tmp_path / "numbers.npz"
  for damaged in (file.read_bytes()[:100], b"", b"PK" * 9, zips.encrypted(file.read_bytes())):
    file.write_bytes(damaged)
    np.testing.assert_array_equal(keep(lambda: {"x": np.arange(4)}), np.arange(4))
  assert [path.name for path in tmp_path.iterdir()] == ["numbers.npz"]


@pytest.mark.parametrize(
  ("argv", "message"),
  [
    ([], "the following arguments are required: setting"),
    (["lenet"], "argument setting: invalid choice: 'lenet'"),
    (["fnn_mnist", "--profil"], "unexpected argument '--profil'"),
    (["vgg9_cifar10", "--profile"], "unexpected argument '--profile'"),
    (["fnn_mnist", "--profile", "--alignment"], "not allowed with argument"),
  ],
)
def test_a_wrong_command_is_refused(capsys, argv, message):
  with pytest.raises(SystemExit) as ended:
    command.main(argv)
  assert ended.value.code == 2
  assert message in capsys.readouterr().err.splitlines()[-1]


def test_every_variant_has_a_flag(monkeypatch):
  asked = []
  monkeypatch.setattr(command, "measure", lambda *given: asked.append(given))
  for name, variants in SETTINGS.items():
    for variant, setting in variants.items():
      flags = [f"--{variant.replace('_', '-')}"] * bool(variant)
      command.main([name, *flags, "--config.epochs=1"])
      out = "_".join(filter(None, ("flatness", name, variant)))
      assert asked.pop() == (setting, Path("runs") / out, ["--config.epochs=1"])


@pytest.mark.thorough
def test_a_training_that_fails_ends_the_command_with_its_status(tmp_path, capfd):
  setting = dataclasses.replace(SETTINGS["fnn_mnist"][""], config="softmax_digits.py")
  with pytest.raises(SystemExit) as ended:
    command.measure(setting, tmp_path / "out", ["--config.epochs=0"])
  assert ended.value.code == 1
  assert "epochs: must be at least 1" in capfd.readouterr().err

"""Calibration against other libraries' results from equal logits, by `benchmarks/calibration_peers.py`."""

import functools
import importlib
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.isotonic import IsotonicRegression

from jaxreg import calibration

PEERS = json.loads((Path(__file__).parent / "peers.json").read_text())
BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
K = 10


@functools.cache
def digits(folder):
  """Returns minus the squared distances to the class means of 500 digits, and labels, for 1290 others."""
  x, labels = load_digits(return_X_y=True)
  x = x / 16
  means = np.stack([x[:500][labels[:500] == k].mean(axis=0) for k in range(K)])
  return -np.square(x[:, None] - means).sum(axis=-1)[500:1790], labels[500:1790], 600


@functools.cache
def mnist(folder):
  """Returns the logits of a robust network of other people, and labels, for the first 3000 test images."""
  study = importlib.import_module("others_networks").Study("abc_mnist_cnn_a_adv", folder, Path())
  data = study.test(3000)
  with jax.numpy_rank_promotion("allow"):
    logits = jax.jit(study.predict)(study.params, data["inputs"])
  return np.asarray(logits, np.float64), data["labels"], 1500


@pytest.fixture(
  params=[digits, pytest.param(mnist, marks=pytest.mark.thorough)], ids=lambda make: make.__name__
)
def examples(request, monkeypatch, x64):
  """The examples to fit to, those to measure, and what the others computed."""
  monkeypatch.syspath_prepend(BENCHMARKS)
  make = request.param
  logits, labels, number = make(None if make is digits else request.getfixturevalue("data_dir"))
  return (logits[:number], labels[:number]), (logits[number:], labels[number:]), PEERS[make.__name__]


def nll(log_probs, labels):
  total, count = calibration.nll(log_probs, labels)
  return float(total / count)


def test_temperature(examples):
  fit, _, peers = examples
  got = calibration.fit_temperature(*fit)
  np.testing.assert_allclose(got, peers["temperature"]["probmetrics"], rtol=1e-6)
  for want in peers["temperature"].values():
    np.testing.assert_allclose(got, want, rtol=1e-3)


@pytest.mark.parametrize(
  ("kind", "weight", "atol"), [("vector", 1, 2e-3), ("matrix", 1, 2e-3), ("dirichlet", 0.02, 1e-4)]
)
def test_maps(kind, weight, atol, examples):
  """By the solvers of probmetrics, which stop early, and by the Newton steps of dirichletcal."""
  fit, test, peers = examples
  got = calibration.fit_temperature(*fit, kind=kind, weight=weight)
  scale = 1 if kind == "dirichlet" else calibration.fit_temperature(*fit)
  np.testing.assert_allclose(got.kernel * scale, peers[kind]["kernel"], atol=atol)
  np.testing.assert_allclose(got.bias, peers[kind]["bias"], atol=atol)
  if kind == "dirichlet":
    np.testing.assert_allclose(
      nll(calibration.temper(test[0], temperature=got), test[1]), peers[kind]["nll"], rtol=1e-5
    )


@pytest.mark.parametrize(("kind", "name"), [("vector", "svs"), ("matrix", "sms")])
def test_whole_calibrators_of_probmetrics(kind, name, examples):
  """They mix the tempered probabilities with the uniform distribution before they fit a map."""
  fit, test, peers = examples
  temperature, share = calibration.fit_temperature(*fit), 1 / (len(fit[1]) + 1)

  def mixed(logits):
    return jnp.log((1 - share) * jnp.exp(calibration.temper(logits, temperature=temperature)) + share / K)

  scaling = calibration.fit_temperature(mixed(fit[0]), fit[1], kind=kind)
  got = nll(calibration.temper(mixed(test[0]), temperature=scaling), test[1])
  np.testing.assert_allclose(got, peers["end to end"][name], rtol=2e-3)


def test_isotonic_regression_of_the_guide(examples):
  """scikit-learn's for each class, divided by their sum, is the isotonic calibrator of probmetrics."""
  fit, test, peers = examples
  val_probs, probs = (np.array(jax.nn.softmax(logits)) for logits in (fit[0], test[0]))
  for k in range(K):
    isotonic = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(val_probs[:, k], fit[1] == k)
    probs[:, k] = isotonic.predict(probs[:, k])
  probs = np.maximum(probs / probs.sum(axis=1, keepdims=True), 1e-6)
  np.testing.assert_allclose(nll(np.log(probs), test[1]), peers["end to end"]["isotonic"], rtol=1e-4)


def test_calibration_errors(examples):
  """By netcal, uncertainty-calibration and relplot, whose width has steps of 1 / 1024."""
  _, (logits, labels), peers = examples
  log_probs, errors = jax.nn.log_softmax(logits), peers["errors"]
  for kind in ("width", "mass"):
    bins = calibration.ece_bins(log_probs, labels, kind=kind)
    np.testing.assert_allclose(calibration.ece(bins), errors[kind], rtol=1e-5)
    got = calibration.ece(bins, norm="l2", debiased=True)
    np.testing.assert_allclose(got, errors[f"debiased, {kind}"], rtol=1e-5)
  np.testing.assert_allclose(calibration.smooth_ece(log_probs, labels), errors["smooth"], atol=1e-3)


def test_areas_of_risk_and_coverage(examples):
  """torch-uncertainty's trapezoids begin at the surest example, and are divided by 1 - 1 / n."""
  _, (logits, labels), peers = examples
  curve, n, errors = (
    calibration.risk_coverage(jax.nn.log_softmax(logits), labels),
    len(labels),
    peers["errors"],
  )
  first, last = curve.risk[0], curve.risk[-1]
  want = errors["aurc"] * (1 - 1 / n) + (first + last) / (2 * n)  # ours is a sum of rectangles
  np.testing.assert_allclose(curve.aurc, want, rtol=1e-6)
  want = errors["augrc"] * (1 - 1 / n) + first / (2 * n**2)  # ours has the first trapezoid, too
  np.testing.assert_allclose(curve.augrc, want, rtol=1e-6)

"""MCE, adaptive and classwise bins and temperature, against NumPy, scipy and by hand."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
import scipy.optimize
from contract import jit

from jaxreg import calibration

K, M = 3, 4


def predictions(n=40, seed=0):
  rng = np.random.default_rng(seed)
  logits = rng.normal(size=(n, K)) * 2
  return np.log(oracles.softmax(logits)), rng.integers(0, K, n), rng.uniform(0.2, 2.0, n)


@jax.jit
def everything(log_probs, labels, weights):
  adaptive = calibration.adaptive_bins(log_probs, labels, num_bins=M, weights=weights)
  classwise = calibration.classwise_bins(log_probs, labels, num_bins=M, weights=weights)
  bins = calibration.ece_bins(log_probs, labels, num_bins=M, weights=weights)
  return {
    "adaptive": adaptive,
    "adaptive ece": calibration.ece(adaptive),
    "classwise": classwise,
    "classwise ece": calibration.ece(classwise).mean(),
    "mce": calibration.mce(bins),
    "temperature": calibration.fit_temperature(log_probs, labels, weights=weights),
    "tempered": calibration.temper(log_probs, temperature=2.0),
  }


def adaptive_oracle(log_probs, labels, weights):
  """One example after the other, from the least confident."""
  probs = np.exp(log_probs)
  bins, before = np.zeros((3, M)), 0.0
  for i in np.argsort(probs.max(-1), kind="stable"):
    index = int(M * (before + weights[i] / 2) / weights.sum())
    bins[:, index] += weights[i] * np.array([probs[i].max(), probs[i].argmax() == labels[i], 1])
    before += weights[i]
  return calibration.Bins(*bins)


def classwise_oracle(log_probs, labels, weights):
  """Two-class bins of each class by itself, whose confidence is that class's probability."""
  out = {"confidence": [], "correct": [], "count": []}
  for k, p in enumerate(np.exp(log_probs).T):
    edges = np.ceil(p * M) - 1
    for name, x in (("confidence", p), ("correct", labels == k), ("count", 1.0)):
      out[name].append([(weights * x * (edges == m)).sum() for m in range(M)])
  return calibration.Bins(**{name: np.array(rows) for name, rows in out.items()})


def nll(beta, log_probs, labels, weights):
  return oracles.nll(np.log(oracles.softmax(beta * log_probs)), labels, weights)[0]


@pytest.mark.parametrize("weighted", [False, True])
def test_against_numpy(weighted):
  log_probs, labels, weights = predictions()
  if not weighted:
    weights = np.ones_like(weights)
  with jax.enable_x64(True):
    got = jax.tree.map(np.asarray, everything(log_probs, labels, weights))
  want = adaptive_oracle(log_probs, labels, weights)
  chex.assert_trees_all_close(got["adaptive"], want, rtol=1e-11, atol=1e-12)
  np.testing.assert_allclose(got["adaptive ece"], oracles.ece(want), rtol=1e-11)
  if not weighted:
    np.testing.assert_array_equal(got["adaptive"].count, 10)  # of equal mass
  want = classwise_oracle(log_probs, labels, weights)
  chex.assert_trees_all_close(got["classwise"], want, rtol=1e-11, atol=1e-12)
  each = [oracles.ece(calibration.Bins(*(sums[k] for sums in want))) for k in range(K)]
  np.testing.assert_allclose(got["classwise ece"], np.mean(each), rtol=1e-11)
  bins = oracles.ece_bins(log_probs, labels, weights, M)
  some = bins.count > 0
  accuracy, confidence = (sums[some] / bins.count[some] for sums in (bins.correct, bins.confidence))
  np.testing.assert_allclose(got["mce"], np.abs(accuracy - confidence).max(), rtol=1e-11)
  # Convex in 1 / T, so a bracketed minimum is the minimum.
  arguments = (log_probs, labels, weights)
  found = scipy.optimize.minimize_scalar(nll, (0.01, 0.1), args=arguments, tol=1e-10).x
  np.testing.assert_allclose(got["temperature"], 1 / found, rtol=1e-6)
  best = nll(1 / got["temperature"], *arguments)
  assert all(best < nll(factor / got["temperature"], *arguments) for factor in (0.99, 1.01))
  np.testing.assert_allclose(np.exp(got["tempered"]), oracles.softmax(log_probs / 2), rtol=1e-11)


@pytest.mark.thorough
def test_float32_padding_and_narrow_inputs():
  """One size of batch, two of its examples padding of weight 0; leading axes are pooled."""
  log_probs, labels, weights = (np.copy(x) for x in predictions(40, seed=1))
  whole = [x[:38] for x in (log_probs, labels, weights)]
  want = adaptive_oracle(*whole)
  log_probs[38:], labels[38:], weights[38:] = np.nan, K + 3, 0
  fold = lambda x, dtype: np.asarray(x, dtype).reshape(2, 20, *x.shape[1:])
  arguments = fold(log_probs, np.float32), fold(labels, np.int32), fold(weights, np.float32)
  got = everything(*arguments)
  chex.assert_trees_all_close(got["adaptive"], want, rtol=1e-4)
  np.testing.assert_allclose(got["classwise"].count.sum(-1), whole[2].sum(), rtol=1e-5)
  found = scipy.optimize.minimize_scalar(nll, (0.01, 0.1), args=tuple(whole), tol=1e-10).x
  np.testing.assert_allclose(got["temperature"], 1 / found, rtol=1e-3)
  shapes = jax.eval_shape(everything, jnp.bfloat16(arguments[0]), *arguments[1:])
  assert {x.dtype for x in jax.tree.leaves(shapes)} == {np.dtype(np.float32)}
  nothing = everything(*arguments[:2], np.zeros_like(arguments[2]))
  assert np.isnan([nothing["mce"], nothing["adaptive ece"], nothing["classwise ece"]]).all()


def test_classwise_sums_merge_and_adaptive_ones_do_not():
  log_probs, labels, weights = (x.astype(np.float32) for x in predictions(80, seed=2))
  labels = labels.astype(np.int32)
  parts = [everything(log_probs[s], labels[s], weights[s]) for s in (slice(40), slice(40, None))]
  with jax.enable_x64(True):
    classwise = classwise_oracle(np.float64(log_probs), labels, np.float64(weights))
    adaptive = adaptive_oracle(np.float64(log_probs), labels, np.float64(weights))
  merge = lambda name: jax.tree.map(lambda a, b: np.asarray(a + b), parts[0][name], parts[1][name])
  chex.assert_trees_all_close(merge("classwise"), classwise, rtol=1e-4, atol=1e-5)
  assert np.abs(merge("adaptive").confidence - adaptive.confidence).max() > 0.01


def fit(logit, right, n=10):
  """The temperature of `n` two-class examples with the same logit, the first `right` of them right."""
  logits = np.tile(np.float32([logit, 0]), (n, 1))
  return fit_jit(logits, (np.arange(n) >= right).astype(np.int32))


fit_jit = jax.jit(calibration.fit_temperature)


def test_temperature_in_closed_form_and_at_its_bounds():
  """sigmoid(a / T) is the share of the right: T = a / logit(q)."""
  for logit, right in ((3.0, 8), (0.5, 9), (1e4, 10), (2.0, 7)):
    share = right / 10
    want = logit / np.log(share / (1 - share)) if share < 1 else 0.01
    np.testing.assert_allclose(fit(logit, right), np.clip(want, 0.01, 100), rtol=1e-5)
  # Worse than guessing: as unsure as it may be. NaN stays NaN, a label out of range is NaN.
  np.testing.assert_allclose(fit(2.0, 4), 100, rtol=1e-5)
  assert np.isnan(fit(np.nan, 4))
  with pytest.raises(ValueError, match=r"labels must lie in \[0, 2\), got 2"):
    calibration.fit_temperature(np.zeros((10, 2), np.float32), np.full(10, 2))
  assert np.isnan(fit_jit(np.zeros((10, 2), np.float32), np.full(10, 2, np.int32)))
  # A probability of 0 for another class does not matter; extremes neither.
  logits = np.tile(np.float32([3.0, 0.0]), (10, 1))
  more = np.concatenate([logits, np.full((10, 1), -np.inf, np.float32)], axis=1)
  labels = (np.arange(10) >= 8).astype(np.int32)
  np.testing.assert_allclose(fit_jit(more, labels), 3 / np.log(4), rtol=1e-5)


def test_what_does_not_fit_is_refused():
  log_probs, labels = jnp.zeros((2, 3)), jnp.zeros(2, int)
  for function in (calibration.adaptive_bins, calibration.classwise_bins, calibration.fit_temperature):
    with pytest.raises(TypeError, match="must be floating"):
      function(jnp.zeros((2, 3), int), labels)
    with pytest.raises(TypeError, match="labels must be integers"):
      function(log_probs, jnp.zeros(2))
    with pytest.raises(ValueError, match="labels must have the shape"):
      function(log_probs, labels[:1])
    with pytest.raises(ValueError, match="weights must have the shape"):
      function(log_probs, labels, weights=jnp.ones(3))
  for function in (calibration.adaptive_bins, calibration.classwise_bins):
    with pytest.raises(ValueError, match="num_bins"):
      function(log_probs, labels, num_bins=0)
  with pytest.raises(ValueError, match="high"):
    calibration.fit_temperature(log_probs, labels, low=2.0, high=1.0)
  for temperature in (0.0, jnp.ones(2)):
    with pytest.raises(ValueError, match="temperature"):
      calibration.temper(log_probs, temperature=temperature)
  for function in (calibration.ece, calibration.mce):
    with pytest.raises(TypeError, match="confidence must be floating"):
      function(calibration.Bins(*[jnp.ones(2, int)] * 3))


@pytest.mark.parametrize("temperature", [0.3, 0.7, 3.0, 7.0])
def test_tempered_logits_of_1e8_are_log_probabilities_in_a_compiled_function_too(temperature):
  logits = np.float32([[1e8, 0.0, -3e7], [9.1e8, 9.1e8, 1.0], [2e38, 3e38, 3e38]])
  want = np.float64(logits) - logits.max(axis=-1, keepdims=True)
  want /= np.float64(np.float32(temperature))
  want = want - np.logaddexp.reduce(want, axis=-1, keepdims=True)
  temper = lambda z: calibration.temper(z, temperature=temperature)
  for function in (temper, jit(temper)):
    got = function(logits)
    assert (got <= 0).all()
    finite = np.abs(want) < 3e38
    np.testing.assert_allclose(np.asarray(got)[finite], want[finite], rtol=1e-6)

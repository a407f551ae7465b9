"""Norms of the ECE, bins, SmoothECE, temperature and affine maps, against NumPy, scipy and scikit-learn."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
import scipy.optimize
import scipy.stats
import sklearn.linear_model
import sklearn.metrics
from contract import jit

from jaxreg import calibration

K, M = 3, 4


def predictions(n=40, seed=0):
  rng = np.random.default_rng(seed)
  logits = rng.normal(size=(n, K)) * 2
  return np.log(oracles.softmax(logits)), rng.integers(0, K, n), rng.uniform(0.2, 2.0, n)


@jax.jit
def everything(log_probs, labels, weights):
  adaptive = calibration.ece_bins(log_probs, labels, num_bins=M, kind="mass", weights=weights)
  classwise = calibration.ece_bins(log_probs, labels, num_bins=M, kind="classwise", weights=weights)
  bins = calibration.ece_bins(log_probs, labels, num_bins=M, weights=weights)
  return {
    "adaptive": adaptive,
    "adaptive ece": calibration.ece(adaptive),
    "classwise": classwise,
    "classwise ece": calibration.ece(classwise).mean(),
    "mce": calibration.ece(bins, norm="max"),
    "l2": calibration.ece(bins, norm="l2"),
    "debiased": calibration.ece(bins, norm="l2", debiased=True),
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
  count = bins.count[some]
  squares = (accuracy - confidence) ** 2
  np.testing.assert_allclose(got["l2"], np.sqrt((count * squares).sum() / count.sum()), rtol=1e-11)
  debiased = np.where(count > 1, squares - accuracy * (1 - accuracy) / np.maximum(count - 1, 1e-9), 0)
  want = np.sqrt(max((count * debiased).sum() / count.sum(), 0))
  np.testing.assert_allclose(got["debiased"], want, rtol=1e-11)
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
  for function in (calibration.ece_bins, calibration.smooth_ece, calibration.fit_temperature):
    with pytest.raises(TypeError, match="must be floating"):
      function(jnp.zeros((2, 3), int), labels)
    with pytest.raises(TypeError, match="labels must be integers"):
      function(log_probs, jnp.zeros(2))
    with pytest.raises(ValueError, match="labels must have the shape"):
      function(log_probs, labels[:1])
    with pytest.raises(ValueError, match="weights must have shape"):
      function(log_probs, labels, weights=jnp.ones(3))
  for kind in ("mass", "classwise"):
    with pytest.raises(ValueError, match="num_bins"):
      calibration.ece_bins(log_probs, labels, kind=kind, num_bins=0)
  with pytest.raises(ValueError, match="kind must be one of width, mass, classwise, got 'equal'"):
    calibration.ece_bins(log_probs, labels, kind="equal")  # pyright: ignore
  with pytest.raises(ValueError, match="kind must be one of scalar, vector, matrix, dirichlet, got 'affine'"):
    calibration.fit_temperature(log_probs, labels, kind="affine")  # pyright: ignore
  with pytest.raises(ValueError, match="high"):
    calibration.fit_temperature(log_probs, labels, low=2.0, high=1.0)
  for end in ("low", "high"):
    with pytest.raises(ValueError, match=rf"{end} must be a scalar, got shape \(2,\)"):
      calibration.fit_temperature(log_probs, labels, **{end: jnp.array([0.1, 0.2])})
  for temperature in (0.0, jnp.ones(2)):
    with pytest.raises(ValueError, match="temperature"):
      calibration.temper(log_probs, temperature=temperature)
  with pytest.raises(TypeError, match="confidence must be floating"):
    calibration.ece(calibration.Bins(*[jnp.ones(2, int)] * 3))
  bins = calibration.Bins(*[jnp.ones(2)] * 3)
  with pytest.raises(ValueError, match="norm must be one of l1, l2, max, got 'l3'"):
    calibration.ece(bins, norm="l3")  # pyright: ignore
  with pytest.raises(ValueError, match="debiased: needs norm='l2', got norm='l1'"):
    calibration.ece(bins, debiased=True)


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


def confident(n=800, classes=4, seed=3):
  """Overconfident logits with a bias, whose labels come from other probabilities."""
  rng = np.random.default_rng(seed)
  truth = rng.normal(size=(n, classes)) * 2
  labels = (oracles.softmax(truth).cumsum(-1) < rng.random((n, 1))).sum(-1)
  return truth * 1.8 + rng.normal(size=truth.shape) + np.linspace(-1, 1, classes), labels


def smooth_ece_oracle(confidence, correct):
  """Finds the width by its definition: a sum of kernels on a fine grid, with 5 images on either side."""
  t = (np.arange(4000) + 0.5)[:, None] / 4000
  images = np.concatenate(
    [confidence + 2 * k for k in range(-5, 6)] + [-confidence + 2 * k for k in range(-5, 6)]
  )
  residuals = np.tile(correct - confidence, 22) / len(confidence)

  def error(width):
    return np.abs((residuals * scipy.stats.norm.pdf(t, images, width)).sum(-1)).mean()

  return scipy.optimize.brentq(lambda width: error(width) - width, 1e-4, 1, xtol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("scale", [0.3, 1.0])
def test_smooth_ece_is_the_fixed_width_of_its_definition(scale):
  logits, labels = confident(150)
  log_probs = np.log(oracles.softmax(scale * logits))
  want = smooth_ece_oracle(np.exp(log_probs.max(-1)), log_probs.argmax(-1) == labels)
  np.testing.assert_allclose(jit(calibration.smooth_ece)(np.float32(log_probs), labels), want, rtol=1e-3)
  weights = np.r_[np.ones(150), np.zeros(10)].astype(np.float32)
  padded = np.r_[log_probs, np.full((10, 4), np.nan)].astype(np.float32), np.r_[labels, np.full(10, 9)]
  np.testing.assert_allclose(jit(calibration.smooth_ece)(*padded, weights=weights), want, rtol=1e-3)
  assert np.isnan(jit(calibration.smooth_ece)(*padded, weights=0 * weights))


def test_smooth_ece_of_one_confidence_is_its_gap():
  """Smoothing keeps the sum of residuals of one sign; 0 where all answers are certain and right."""
  log_probs = np.log(np.tile(np.float32([0.9, 0.1]), (100, 1)))
  labels = (np.arange(100) >= 60).astype(np.int32)
  np.testing.assert_allclose(calibration.smooth_ece(log_probs, labels), 0.3, rtol=1e-3)
  certain = np.tile(np.float32([0, -np.inf]), (10, 1))
  assert calibration.smooth_ece(certain, np.zeros(10, int)) < 1e-5


@pytest.mark.thorough
def test_debiased_squares_are_right_on_average():
  """Over many draws of labels the mean of the squares is the squared gap of the probabilities."""
  rng = np.random.default_rng(0)
  truth, confidence, n = np.array([0.6, 0.8]), np.array([0.7, 0.75]), 20
  correct = rng.binomial(n, truth, (20000, 2)).astype(np.float32)
  counts = np.full_like(correct, n)
  bins = calibration.Bins(np.float32(confidence) * counts, correct, counts)
  plain = np.square(calibration.ece(bins, norm="l2"))
  want = ((truth - confidence) ** 2).mean()
  chance = (truth * (1 - truth) / n).mean()
  np.testing.assert_allclose(plain.mean(), want + chance, rtol=0.03)
  # One bin at a time, where the gap is large enough that the square is never cut at 0.
  apart = calibration.Bins(0.1 * counts[:, :1], correct[:, :1], counts[:, :1])
  debiased = np.square(calibration.ece(apart, norm="l2", debiased=True))
  np.testing.assert_allclose(debiased.mean(), 0.5**2, rtol=0.01)


@pytest.mark.thorough
def test_a_map_without_penalty_is_scikit_learn_s_logistic_regression():
  logits, labels = confident()
  log_probs = np.log(oracles.softmax(logits))
  model = sklearn.linear_model.LogisticRegression(C=np.inf, max_iter=5000, tol=1e-12).fit(log_probs, labels)
  want = model.predict_log_proba(log_probs)
  for kind in ("matrix", "dirichlet"):
    with jax.enable_x64(True):
      wide = calibration.fit_temperature(logits, labels, kind=kind, weight=0.0)
      got = calibration.temper(logits, temperature=wide)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
  narrow = calibration.fit_temperature(np.float32(log_probs), labels, kind="matrix", weight=0.0)
  got = calibration.temper(np.float32(log_probs), temperature=narrow)
  np.testing.assert_allclose(np.exp(got), np.exp(want), atol=5e-3)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["vector", "matrix", "dirichlet"])
def test_maps_minimise_the_printed_objective(kind):
  """Against scipy's minimum of the objective in NumPy, with weights, from another start."""
  logits, labels = confident(300, 3)
  weights = np.random.default_rng(1).uniform(0.2, 2, 300)
  log_probs, n, classes = np.log(oracles.softmax(logits)), weights.sum(), 3
  nll_at = lambda beta: nll(beta, log_probs, labels, weights)
  temperature = (
    1 if kind == "dirichlet" else 1 / scipy.optimize.minimize_scalar(nll_at, (0.01, 0.1), tol=1e-12).x
  )
  own = np.eye(classes) > 0

  def objective(x):
    kernel, bias = (np.diag(x[:3]), x[3:]) if kind == "vector" else (x[:9].reshape(3, 3), x[9:])
    loss = (
      oracles.nll(np.log(oracles.softmax(log_probs / temperature @ kernel + bias)), labels, weights)[0] / n
    )
    off = (kernel[~own] ** 2).sum()
    if kind == "dirichlet":
      return loss + 0.7 * (off / (classes * (classes - 1)) + (bias**2).sum() / classes)
    diagonal = ((kernel[own] - 1) ** 2).sum()
    return loss + 0.7 * classes / n * ((bias**2).sum() + diagonal + (classes - 1) * off)

  best = scipy.optimize.minimize(objective, np.full(6 if kind == "vector" else 12, 0.1), tol=1e-12)
  kernel, bias = (best.x[:3], best.x[3:]) if kind == "vector" else (best.x[:9].reshape(3, 3), best.x[9:])
  with jax.enable_x64(True):
    got = calibration.fit_temperature(logits, labels, kind=kind, weight=0.7, weights=weights)
  np.testing.assert_allclose(got.kernel, kernel / temperature, atol=2e-4)
  np.testing.assert_allclose(got.bias, bias, atol=2e-4)
  narrow = calibration.fit_temperature(
    np.float32(logits), labels, kind=kind, weight=0.7, weights=np.float32(weights)
  )
  np.testing.assert_allclose(narrow.kernel, kernel / temperature, atol=2e-3)


@pytest.mark.parametrize("size", [1e38, 1.2e-38, 1.0])
def test_weights_of_any_scale_have_one_optimum(size):
  """The sums of the raw weights over- or underflow in float32. So many examples leave no shrinkage."""
  logits, labels = confident(100, 3)
  relative = np.random.default_rng(1).integers(1, 4, 100)
  weights = np.float32(size) * np.float32(relative)
  log_probs = np.log(oracles.softmax(logits))
  beta = scipy.optimize.minimize_scalar(nll, (0.01, 0.1), args=(log_probs, labels, relative), tol=1e-10).x
  got = fit_jit(np.float32(logits), labels, weights=weights)
  np.testing.assert_allclose(got, 1 / beta, rtol=1e-3)
  if size == 1e38:
    model = sklearn.linear_model.LogisticRegression(C=np.inf, max_iter=5000, tol=1e-12)
    want = model.fit(log_probs, labels, sample_weight=relative).predict_proba(log_probs)
    scaling = calibration.fit_temperature(np.float32(logits), labels, kind="matrix", weights=weights)
    got = calibration.temper(np.float32(logits), temperature=scaling)
    np.testing.assert_allclose(np.exp(got), want, atol=5e-3)


@pytest.mark.parametrize(("kind", "kernel"), [("vector", np.ones(8)), ("matrix", np.eye(8))])
def test_hardly_any_weight_leaves_the_temperature(kind, kernel):
  """Two classes of eight count, and 3 of 4 examples are right: T = 2 / log 3."""
  logits = np.tile(np.float32([2, 0, *[-np.inf] * 6]), (4, 1))
  weights = np.full(4, 1.2e-38, np.float32)
  got = calibration.fit_temperature(logits, np.array([0, 0, 0, 1]), kind=kind, weights=weights)
  np.testing.assert_allclose(got.kernel, kernel * np.log(3) / 2, atol=1e-6)
  np.testing.assert_allclose(got.bias, 0, atol=1e-6)


def test_maps_of_excluded_classes_and_unknown_labels():
  logits, labels = confident(60, 3)
  excluded = np.concatenate([np.float32(logits), np.full((60, 1), -np.inf, np.float32)], axis=1)
  for kind in ("vector", "matrix", "dirichlet"):
    scaling = calibration.fit_temperature(excluded, labels, kind=kind)
    assert np.isfinite(calibration.temper(excluded, temperature=scaling)[:, :3]).all()
    nothing = calibration.fit_temperature(excluded, labels, kind=kind, weights=np.zeros(60, np.float32))
    assert all(np.isnan(x).all() for x in nothing)


def test_augrc_is_what_its_paper_says_of_auroc_and_accuracy():
  """AUGRC = (1 - AUROC) acc (1 - acc) + (1 - acc)^2 / 2, also with ties."""
  logits, labels = confident()
  log_probs = np.log(oracles.softmax(logits))
  for rows in (np.arange(800), np.random.default_rng(0).integers(0, 12, 800)):  # the second has equal rows
    chosen = log_probs[rows]
    right, accuracy = chosen.argmax(-1) == labels, (chosen.argmax(-1) == labels).mean()
    auroc = sklearn.metrics.roc_auc_score(~right, -chosen.max(-1))
    want = (1 - auroc) * accuracy * (1 - accuracy) + (1 - accuracy) ** 2 / 2
    with jax.enable_x64(True):
      got = calibration.risk_coverage(chosen, labels).augrc
    np.testing.assert_allclose(got, want, rtol=1e-10)

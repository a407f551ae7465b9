"""Calibration sums against NumPy and scikit-learn; merging is exact, and weight 0 is absence."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest

from jaxreg import calibration

K = 4


def predictions(n=60, seed=0, scale=2.0):
  rng = np.random.default_rng(seed)
  log_probs = np.asarray(jax.nn.log_softmax(rng.normal(size=(n, K)).astype(np.float32) * scale))
  return log_probs, rng.integers(0, K, n), rng.uniform(0.2, 2.0, n).astype(np.float32)


@functools.partial(jax.jit, static_argnames="num_bins")
def all_sums(log_probs, labels, weights=None, num_bins=15):
  return {
    "nll": calibration.nll(log_probs, labels, weights=weights),
    "brier": calibration.brier(log_probs, labels, weights=weights),
    "bins": calibration.ece_bins(log_probs, labels, num_bins=num_bins, weights=weights),
  }


def assert_close(got, want, rtol=1e-5, atol=1e-6):
  assert jax.tree.structure(got) == jax.tree.structure(want)
  chex.assert_trees_all_close(got, want, rtol=rtol, atol=atol)


def test_sums_without_weights_against_numpy():
  log_probs, labels, _ = predictions()
  used = np.ones(len(labels))
  got = all_sums(log_probs, labels)
  assert_close(got["nll"], oracles.nll(log_probs, labels, used))
  assert_close(got["brier"], oracles.brier(log_probs, labels, used))
  bins = oracles.ece_bins(log_probs, labels, used, 15)
  assert_close(got["bins"], bins)
  np.testing.assert_allclose(calibration.ece(got["bins"]), oracles.ece(bins), rtol=1e-4)


@pytest.mark.thorough
@pytest.mark.parametrize("sizes", [(60,), (1, 59), (17, 3, 40), (20, 20, 20)])
def test_merged_batches_equal_the_pooled_set(sizes):
  arrays = predictions(seed=2)
  pooled = all_sums(*arrays)
  cuts = np.cumsum(sizes)[:-1]
  batches = [all_sums(*batch) for batch in zip(*(np.split(a, cuts) for a in arrays))]
  merged = jax.tree.map(lambda *xs: sum(xs[1:], xs[0]), *batches)
  assert_close(merged, pooled)
  np.testing.assert_allclose(calibration.ece(merged["bins"]), calibration.ece(pooled["bins"]), rtol=1e-5)


@pytest.mark.parametrize("content", [np.nan, np.inf, -np.inf, 0.0])
def test_weight_zero_is_absence(content):
  log_probs, labels, weights = predictions(seed=4)
  padded = np.concatenate([log_probs, np.full((5, K), content, np.float32)])
  padding = np.zeros(5, np.float32)
  no_class = np.full(5, K + 3)  # a label past the end, which alone would give NaN
  got = all_sums(padded, np.r_[labels, no_class], np.r_[weights, padding])
  assert_close(got, all_sums(log_probs, labels, weights))


@pytest.mark.parametrize("function", [calibration.nll, calibration.brier], ids=lambda f: f.__name__)
def test_weight_zero_leaves_no_gradient(function):
  log_probs, labels, weights = predictions(6, seed=4)
  log_probs, weights = log_probs.copy(), weights.copy()
  log_probs[:2], weights[:2] = np.nan, 0
  gradient = jax.jit(jax.grad(lambda x: function(x, labels, weights=weights)[0]))(log_probs)
  np.testing.assert_array_equal(gradient[:2], 0)
  assert np.isfinite(gradient[2:]).all()
  assert (gradient[2:] != 0).any()


def test_no_examples_have_sums_of_0_and_no_measures():
  log_probs, labels, _ = predictions()
  got = all_sums(log_probs, labels, np.zeros(len(labels), np.float32))
  assert all((x == 0).all() for x in jax.tree.leaves(got))
  assert np.isnan([calibration.ece(got["bins"]), calibration.ece(got["bins"], norm="max")]).all()
  for examples in ((log_probs[:0], labels[:0], None), (log_probs, labels, np.zeros(len(labels)))):
    assert np.isnan(calibration.fit_temperature(*examples[:2], weights=examples[2]))
    assert np.isnan(calibration.risk_coverage(*examples[:2], weights=examples[2]).aurc)


def test_confidence_orders_saturated_predictions():
  """The probabilities of the last two round to 1; a wrong answer with a small margin comes last."""
  log_probs = jax.nn.log_softmax(jnp.array([[30.0, 0], [0, 200], [300, 0], [0, 150]]))
  got = calibration.risk_coverage(log_probs, jnp.array([1, 1, 0, 0]))
  np.testing.assert_allclose(got.risk, [0, 0, 1 / 3, 2 / 4])


@pytest.mark.thorough
def test_pooled_ece_is_not_the_mean_of_batch_eces():
  """A perfectly calibrated predictor: small batches look miscalibrated, by a lot."""
  rng = np.random.default_rng(5)
  n, batches = 2000, 20
  p = rng.uniform(0.5, 1.0, n)
  labels = (rng.uniform(size=n) > p).astype(np.int32)
  log_probs = np.log(np.stack([p, 1 - p], -1)).astype(np.float32)
  eces, merged = [], None
  for x, y in zip(np.split(log_probs, batches), np.split(labels, batches)):
    bins = calibration.ece_bins(x, y)
    eces.append(float(calibration.ece(bins)))
    merged = bins if merged is None else jax.tree.map(jnp.add, merged, bins)
  pooled = float(calibration.ece(merged))
  want = oracles.ece(oracles.ece_bins(log_probs, labels, np.ones(n), 15))
  np.testing.assert_allclose(pooled, want, rtol=1e-4)
  assert pooled < 0.05
  assert np.mean(eces) > 2 * pooled


def two_class(confidence):
  with np.errstate(divide="ignore"):
    return np.log(np.array([[confidence, 1 - confidence]], np.float32))


@pytest.mark.thorough
@pytest.mark.parametrize(
  ("confidence", "bin_index"), [(0.5, 1), (0.53125, 2), (0.75, 2), (0.78125, 3), (1.0, 3), (0.99, 3)]
)
def test_bin_edges_are_closed_on_the_right(confidence, bin_index):
  """Of 4 bins; a confidence of exactly 1 falls in the last."""
  bins = calibration.ece_bins(two_class(confidence), np.array([0]), num_bins=4)
  np.testing.assert_array_equal(bins.count, np.arange(4) == bin_index)
  np.testing.assert_array_equal(bins.correct, np.arange(4) == bin_index)
  np.testing.assert_allclose(bins.confidence, (np.arange(4) == bin_index) * confidence, rtol=1e-6)


@pytest.mark.thorough
def test_default_is_fifteen_bins():
  log_probs, labels, _ = predictions()
  assert calibration.ece_bins(log_probs, labels).count.shape == (15,)


@pytest.mark.thorough
def test_float32_stays_float32(x64):
  log_probs = np.log(np.full((2, 3), 1 / 3, np.float32))
  for function in (calibration.nll, calibration.brier):
    assert {value.dtype for value in function(log_probs, np.zeros(2, int))} == {jnp.dtype("float32")}


def test_brier_bounds():
  """0 for certain and right, 2 for certain and wrong."""
  log_probs = np.log(np.array([[1.0, 1e-30], [1.0, 1e-30]], np.float32))
  np.testing.assert_allclose(calibration.brier(log_probs[:1], np.array([0]))[0], 0, atol=1e-12)
  np.testing.assert_allclose(calibration.brier(log_probs[:1], np.array([1]))[0], 2, rtol=1e-6)


def test_nll_of_an_impossible_label_is_infinite():
  assert calibration.nll(two_class(1.0), np.array([1]))[0] == np.inf


@pytest.mark.parametrize("function", [calibration.nll, calibration.brier, calibration.ece_bins])
def test_misfits_are_refused(function):
  log_probs, labels, weights = predictions()
  with pytest.raises(ValueError, match="weights"):
    function(log_probs, labels, weights=weights[1:])
  with pytest.raises(ValueError, match="labels"):
    function(log_probs, labels[1:])
  with pytest.raises(TypeError, match="log_probs"):
    function(np.ones((3, K), int), np.zeros(3, int))


@pytest.mark.thorough
@pytest.mark.parametrize("function", ["nll", "brier", "ece_bins", "smooth_ece"])
def test_probabilities_and_logits_are_no_log_probabilities(function):
  function = getattr(calibration, function)
  probs, labels = jnp.array([[0.7, 0.3], [0.2, 0.8]]), jnp.array([0, 1])
  for x in (probs, 5 * probs, -5 * probs):
    with pytest.raises(ValueError, match=r"log_probs must be .* got a sum of (3\.36|37\.59|0\.253)"):
      function(x, labels)
  function(jnp.log(probs) + 1e-4, labels)  # rounding
  function(probs, labels, weights=jnp.zeros(2))  # padding may be anything
  jax.jit(function)(probs, labels)  # whose values are not known


def summary(name):
  """The one number that users read of a function's sums."""
  if name in ("width", "mass", "classwise"):
    return lambda *args, **options: calibration.ece(calibration.ece_bins(*args, kind=name, **options)).mean()
  if name in ("vector", "matrix", "dirichlet"):
    return lambda *args, **options: calibration.fit_temperature(*args, kind=name, **options).bias[0]
  function = getattr(calibration, name)
  read = lambda value: value[0] if name in ("nll", "brier") else value
  return lambda *args, **options: read(function(*args, **options))


WITH_LABELS = [
  "nll",
  "brier",
  "width",
  "mass",
  "classwise",
  "smooth_ece",
  "fit_temperature",
  "vector",
  "matrix",
]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", WITH_LABELS)
def test_a_label_out_of_range_is_refused_or_nan(name, weighted):
  """A known label is refused; the values of a traced one are not known, and the result is NaN."""
  log_probs, labels, weights = predictions(12)
  options = {"weights": weights} if weighted else {}
  compiled = jax.jit(summary(name))
  assert np.isfinite(compiled(log_probs, labels, **options))
  for label in (-1, K, 255):
    wrong = np.r_[labels[:-1], label]
    with pytest.raises(ValueError, match=rf"labels must lie in \[0, {K}\), got {label}"):
      summary(name)(log_probs, wrong, **options)
    with pytest.raises(ValueError, match="labels must lie in"):
      summary(name)(log_probs, jnp.asarray(wrong), **options)
    assert np.isnan(compiled(log_probs, wrong, **options))
    if weighted:  # padding needs no label
      padding = np.r_[weights[:-1], 0].astype(np.float32)
      assert compiled(log_probs, wrong, weights=padding) == compiled(log_probs, labels, weights=padding)


@pytest.mark.thorough
@pytest.mark.parametrize("name", WITH_LABELS)
def test_nan_is_no_number_in_compiled_code(name):
  """On a CPU, compiled code takes exp(NaN) for a number, and drops NaN from a maximum."""
  log_probs, labels, _ = predictions(12)
  log_probs = log_probs.copy()
  log_probs[3, (labels[3] + 1) % K] = np.nan
  assert np.isnan(jax.jit(summary(name))(log_probs, labels))
  assert np.isnan(summary(name)(log_probs, labels))


def test_the_largest_gap_of_a_broken_bin_is_nan():
  mce = jax.jit(lambda x, labels: calibration.ece(calibration.ece_bins(x, labels), norm="max"))
  log_probs, labels, _ = predictions(12)
  for place in range(12):
    wrong = labels.copy()
    wrong[place] = K
    assert np.isnan(mce(log_probs, wrong))


def test_bins_below_one_are_refused():
  log_probs, labels, _ = predictions()
  with pytest.raises(ValueError, match="num_bins"):
    calibration.ece_bins(log_probs, labels, num_bins=0)

"""Scores of examples from elsewhere, against NumPy and scikit-learn."""

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from contract import jit
from sklearn import metrics

from jaxreg import calibration
from jaxreg._log_odds import log_entropy

rng = np.random.default_rng(0)
LOGITS = rng.normal(size=(9, 4)) * 4


@pytest.mark.thorough
def test_scores_are_as_printed():
  probs = oracles.softmax(LOGITS)
  scores = jit(calibration.least_confidence)(np.float32(np.log(probs)))
  np.testing.assert_allclose(scores, 1 - probs.max(1), rtol=1e-5, atol=1e-7)
  energy = jit(calibration.energy)(np.float32(LOGITS), temperature=2.5)
  np.testing.assert_allclose(energy, -2.5 * np.log(np.exp(LOGITS / 2.5).sum(1)), rtol=1e-5)
  assert calibration.energy(jnp.array([1e4, -1e4])) == -1e4


@pytest.mark.thorough
def test_the_least_confidence_of_confident_predictions_keeps_its_digits():
  """In float32, the logarithm of a probability above 1 - 6e-8 is 0."""
  gaps = np.linspace(5, 80, 50)
  log_probs = jax.nn.log_softmax(np.stack([gaps, np.zeros(50), np.ones(50)], 1).astype(np.float32))
  other = np.exp(-np.float32(gaps).astype(np.float64)) * (1 + np.e)
  for function in (calibration.least_confidence, jit(calibration.least_confidence)):
    np.testing.assert_allclose(function(log_probs), other / (1 + other), rtol=2e-5)


@pytest.mark.parametrize("function", [log_entropy, jit(log_entropy)])
def test_the_logarithm_of_an_entropy_orders_predictions_whose_entropy_underflows(function):
  gaps = np.float64([0, 0.5, 3, 15, 19, 22, 60, 86, 95, 101, 1000])
  log_probs = jax.nn.log_softmax(np.stack([gaps, 0 * gaps, 0 * gaps - 1], 1).astype(np.float32))
  others = np.logaddexp(0, -1) - gaps  # log-odds
  cost = np.where(others < -30, others, np.log(np.log1p(np.exp(np.maximum(others, -40)))))
  log_sum = np.logaddexp(0, others)
  each = np.stack([cost, *(x + np.log(log_sum - x) for x in (-gaps, -1 - gaps))])
  np.testing.assert_allclose(function(log_probs), np.logaddexp.reduce(each - log_sum), rtol=1e-5, atol=1e-6)
  usual, other = (
    jax.nn.log_softmax(jnp.stack([x, 0 * x], 1)) for x in (100 + jnp.arange(3.0), 95 + jnp.arange(3.0))
  )
  assert calibration.auroc(function(usual), function(other)) == 1
  certain = jnp.log(jnp.float32([[1, 0, 0], [0.5, 0.5, 0]]))
  np.testing.assert_allclose(function(certain), [-np.inf, np.log(np.log(2))], rtol=1e-5)
  assert jnp.isnan(function(jnp.array([jnp.nan, 0.0])))


# Few values, so that many scores are equal; then all different.
@pytest.mark.parametrize("values", [4, 10**6])
@pytest.mark.parametrize("tpr", [0.95, 0.5, 1.0])
def test_rates_are_those_of_scikit_learn(values, tpr):
  usual, other = rng.integers(0, values, 41), rng.integers(0, values, 23) + values // 4
  positive, scores = np.repeat([1, 0], [41, 23]), -np.concatenate([usual, other])
  pair = np.float32(usual), np.float32(other)
  want = metrics.roc_auc_score(positive, scores)
  assert jit(calibration.auroc)(*pair) == pytest.approx(want, abs=1e-6)
  passed, found, _ = metrics.roc_curve(positive, scores, drop_intermediate=False)
  want = passed[np.argmax(found >= tpr)]
  got = jit(lambda *pair: calibration.fpr_at_tpr(*pair, tpr=tpr))(*pair)
  assert got == pytest.approx(want, abs=1e-6)


@pytest.mark.thorough
def test_nan_and_nothing_are_told():
  scores, broken = jnp.arange(3.0), jnp.array([1.0, jnp.nan])
  for rate in (calibration.auroc, calibration.fpr_at_tpr):
    assert jnp.isnan(rate(scores, broken))
    assert jnp.isnan(rate(broken, scores))
    with pytest.raises(ValueError, match="other_scores must have at least one"):
      rate(scores, jnp.zeros(0))


def test_true_counts_as_the_rate_1():
  for rate in (1, True, np.True_):
    assert calibration.fpr_at_tpr(jnp.arange(3.0), jnp.array([1.0, 5.0]), tpr=rate) == 0.5
    assert calibration.conformal_threshold(jnp.eye(3), jnp.arange(3), alpha=rate) == -jnp.inf


def test_equal_confidences_tie_whatever_the_other_classes_have():
  votes = np.float32([[3, 1, 1, 0], [3, 2, 0, 0]]) / 5
  with np.errstate(divide="ignore"):
    log_probs = jnp.asarray(np.log(votes))
  doubt = calibration.least_confidence(log_probs)
  assert doubt[0] == doubt[1]
  # One of the two is wrong, and neither is the surer one.
  for labels in ([0, 1], [1, 0]):
    assert calibration.risk_coverage(log_probs, jnp.array(labels)).augrc == 0.25

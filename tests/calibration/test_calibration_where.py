"""`where` in measures: what they give is that of the examples that count, whatever the others hold."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxreg import calibration, ensembles
from jaxreg.calibration._weights import at_number

RNG = np.random.default_rng(0)
WHERE = np.arange(12) % 3 != 1
LABELS = RNG.integers(0, 3, 12)
LOG_PROBS = np.float32(jax.nn.log_softmax(RNG.normal(size=(12, 3)) * 2))
REAL = np.float32(RNG.normal(size=(3, 12)))
BROKEN = np.where(WHERE[:, None], LOG_PROBS, RNG.choice([np.nan, np.inf, -np.inf, 7], (12, 3)))
BROKEN, NO_LABELS = np.float32(BROKEN), np.where(WHERE, LABELS, -1)
SPOILT = np.float32(np.where(WHERE, REAL, np.nan))
threshold = functools.partial(calibration.conformal_threshold, alpha=0.3)
risk_threshold = functools.partial(calibration.conformal_risk_threshold, alpha=0.3)
COSTS = np.exp(LOG_PROBS)
# The function, its arguments with nonsense, and the same without it.
ROWS = {
  **{
    name: (getattr(calibration, name), (BROKEN, NO_LABELS), (LOG_PROBS, LABELS))
    for name in ("nll", "brier", "ece_bins", "smooth_ece", "fit_temperature")
  },
  **{
    kind: (functools.partial(calibration.ece_bins, kind=kind), (BROKEN, NO_LABELS), (LOG_PROBS, LABELS))
    for kind in ("mass", "classwise")
  },
  "matrix": (
    lambda *given, **where: calibration.temper(
      LOG_PROBS, temperature=calibration.fit_temperature(*given, kind="matrix", **where)
    ),
    (BROKEN, NO_LABELS),
    (LOG_PROBS, LABELS),
  ),
  "risk_coverage": (
    lambda *given, **where: calibration.risk_coverage(*given, **where)[2:],
    (BROKEN, NO_LABELS),
    (LOG_PROBS, LABELS),
  ),
  "conformal_threshold": (threshold, (BROKEN, NO_LABELS), (LOG_PROBS, LABELS)),
  "conformal_threshold of scores": (threshold, (SPOILT[0],), (REAL[0],)),
  "conformal_risk_threshold": (risk_threshold, (-BROKEN, np.exp(BROKEN)), (-LOG_PROBS, COSTS)),
  "interval_coverage": (calibration.interval_coverage, tuple(SPOILT), tuple(REAL)),
  **{
    name: (functools.partial(getattr(calibration, name), other_scores=REAL[1]), (SPOILT[0],), (REAL[0],))
    for name in ("auroc", "fpr_at_tpr")
  },
}
EACH = ("conformal_scores", "least_confidence", "energy")


@pytest.mark.thorough
@pytest.mark.parametrize("name", ROWS)
def test_sums_are_those_of_the_examples_that_count(name):
  function, broken, whole = ROWS[name]
  alone = tuple(x[WHERE] for x in whole)
  want = jax.jit(function)(*alone)
  for call in (function, jax.jit(function)):
    jax.tree.map(
      functools.partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-6), call(*broken, where=WHERE), want
    )
  if name in ("nll", "brier"):
    total = lambda x: function(x, NO_LABELS, where=WHERE)[0]
    got = jax.grad(total)(jnp.asarray(BROKEN))
    assert not got[~WHERE].any()
    slope = jax.grad(lambda x: function(x, LABELS[WHERE])[0])(jnp.asarray(LOG_PROBS[WHERE]))
    np.testing.assert_allclose(got[WHERE], slope, rtol=1e-6, atol=1e-7)


@pytest.mark.thorough
def test_weights_and_where_go_together():
  weights = np.float32(RNG.uniform(size=12))
  got = calibration.nll(BROKEN, NO_LABELS, weights=weights, where=WHERE)
  want = calibration.nll(LOG_PROBS[WHERE], LABELS[WHERE], weights=weights[WHERE])
  np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("name", EACH)
def test_scores_of_examples_are_0_elsewhere(name):
  function = getattr(calibration, name)
  got = function(BROKEN, where=WHERE)
  np.testing.assert_allclose(got[WHERE], function(LOG_PROBS[WHERE]), rtol=1e-6)
  assert not got[~WHERE].any()


@pytest.mark.thorough
def test_random_scores_are_0_elsewhere():
  got = calibration.aps_scores(jax.random.key(0), BROKEN, where=WHERE)
  want = calibration.aps_scores(jax.random.key(0), LOG_PROBS)
  np.testing.assert_allclose(got[WHERE], want[WHERE], rtol=1e-6)
  assert not got[~WHERE].any()


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["auroc", "fpr_at_tpr"])
def test_where_of_both_kinds_of_scores(name):
  function = getattr(calibration, name)
  other = np.isfinite(SPOILT[1])
  scores = REAL[0].copy()
  scores[0] = np.inf  # counts, and is not one of those left out
  broken = np.where(WHERE, scores, np.nan)
  got = jax.jit(function)(broken, SPOILT[1], where=WHERE, other_where=other)
  np.testing.assert_allclose(got, function(scores[WHERE], REAL[1][other]), rtol=1e-6)
  none, nan = np.zeros(12, bool), np.where(WHERE, np.nan, scores)
  assert np.isnan(jax.jit(function)(scores, REAL[1], where=none))
  assert np.isnan(jax.jit(function)(scores, REAL[1], other_where=none))
  assert np.isnan(jax.jit(function)(nan, REAL[1], where=np.ones(12, bool)))
  with pytest.raises(ValueError, match="scores must have at least one score, got none that counts"):
    function(scores, REAL[1], where=np.zeros(12, bool))


@pytest.mark.thorough
@pytest.mark.parametrize("alpha", [0.0, 0.1, 0.3, 0.5, 1.0])
def test_thresholds_of_any_number_of_examples(alpha):
  scores = REAL[0]
  for number in range(13):
    where = np.arange(12) < number
    got = jax.jit(lambda where: calibration.conformal_threshold(scores, alpha=alpha, where=where))(where)
    np.testing.assert_array_equal(got, calibration.conformal_threshold(scores[:number], alpha=alpha))


@pytest.mark.parametrize("number", [3, jnp.int32(3), jnp.array([[2, 5]])])
def test_a_rule_is_applied_only_to_known_numbers(number):
  asked = []
  rule = lambda n: asked.append(n) or n / 4
  np.testing.assert_array_equal(at_number(rule, number, 1000), np.float32(number) / 4)
  assert asked == np.ravel(number).tolist()
  np.testing.assert_array_equal(jax.jit(lambda n: at_number(rule, n, 6))(number), np.float32(number) / 4)


@pytest.mark.thorough
def test_uncertainty_is_0_elsewhere():
  members = np.float32(jax.nn.log_softmax(RNG.normal(size=(4, 12, 3))))
  broken = np.where(WHERE[:, None], members, np.nan)
  got = jax.jit(ensembles.uncertainty)(broken, where=WHERE)
  for x, y in zip(got, ensembles.uncertainty(members[:, WHERE])):
    np.testing.assert_allclose(x[WHERE], y, rtol=1e-6, atol=1e-7)
    assert not x[~WHERE].any()
  slope = jax.grad(lambda x: ensembles.uncertainty(x, where=WHERE).entropy.sum())(jnp.asarray(broken))
  assert np.isfinite(slope).all()
  assert not slope[:, ~WHERE].any()


def test_a_label_that_counts_is_still_refused():
  with pytest.raises(ValueError, match=r"labels must lie in \[0, 3\), got -1"):
    calibration.nll(LOG_PROBS, NO_LABELS, where=~WHERE)
  with pytest.raises(ValueError, match=r"where must have shape \(12,\), got \(3,\)"):
    calibration.nll(LOG_PROBS, LABELS, where=WHERE[:3])

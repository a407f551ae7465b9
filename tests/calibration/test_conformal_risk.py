"""Conformal risk control: the threshold by search in exact fractions, and the bound on the expected loss."""

import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract import jit
from scipy.special import expit

from jaxreg import calibration


def false_negatives(labels):
  return labels / np.maximum(labels.sum(-1, keepdims=True), 1)


def searched(scores, costs, alpha, bound=1):
  """The definition: the least of all thresholds, in fractions."""
  level, number = Fraction(str(alpha)), len(scores)
  limit = level * (number + 1) - bound
  lost = lambda at: sum((c for s, c in zip(scores.ravel(), costs.ravel()) if s > at), Fraction())
  fits = [at for at in (-math.inf, *scores.ravel(), math.inf) if lost(at) <= limit]
  return min(fits, default=math.inf)


@pytest.mark.thorough
@pytest.mark.parametrize("alpha", [0.0, 0.05, 0.1, 0.2, 0.25, 0.5, 0.9, 1.0])
def test_the_threshold_is_the_least_that_fits(alpha):
  rng = np.random.default_rng(0)
  for number in (0, 1, 9, 19, 30):
    scores = rng.integers(0, 12, (number, 3)).astype(np.float32)  # with ties
    labels = rng.integers(0, 2, (number, 3))
    exact = np.array([[Fraction(int(y), max(int(row.sum()), 1)) for y in row] for row in labels], object)
    costs = false_negatives(labels).astype(np.float32)
    want = searched(scores, exact.reshape(number, 3), alpha)
    assert calibration.conformal_risk_threshold(scores, costs, alpha=alpha) == want
  scaled = jit(lambda s, c: calibration.conformal_risk_threshold(s, 2 * c, alpha=2 * alpha, bound=2))
  assert scaled(scores, costs) == want


@pytest.mark.thorough
@pytest.mark.parametrize("alpha", [0.0, 0.1, 0.125, 0.3, 0.5, 0.7, 1.0])
def test_costs_of_one_label_give_the_prediction_set(alpha):
  rng = np.random.default_rng(1)
  for number in (7, 9, 99):
    scores, labels = rng.normal(size=(number, 4)).astype(np.float32), rng.integers(0, 4, number)
    got = calibration.conformal_risk_threshold(scores, np.eye(4, dtype=np.float32)[labels], alpha=alpha)
    assert got == calibration.conformal_threshold(scores, labels, alpha=alpha)


@pytest.mark.thorough
@pytest.mark.parametrize("alpha", [0.1, 0.3])
def test_the_false_negative_rate_is_bounded_over_200_draws(alpha):
  """A model three times too sure, calibrated on 60 examples; within 4 standard errors of both bounds."""
  rng, number, new = np.random.default_rng(2), 60, 400
  rates = []
  threshold = jit(lambda s, c: calibration.conformal_risk_threshold(s, c, alpha=alpha))
  for _ in range(200):
    z = rng.normal(size=(number + new, 5)) + rng.normal(size=(number + new, 1))
    labels = (rng.uniform(size=z.shape) < expit(z)).astype(np.float32)
    scores = np.logaddexp(0, -3 * z).astype(np.float32)
    costs = false_negatives(labels)
    at = float(threshold(scores[:number], costs[:number]))
    rates.append((costs[number:] * (scores[number:] > at)).sum(-1).mean())
  error = np.std(rates, ddof=1) / np.sqrt(200)
  assert alpha - 2 / (number + 1) - 4 * error <= np.mean(rates) <= alpha + 4 * error
  assert error < alpha / 20


@pytest.mark.thorough
def test_without_the_correction_the_bound_would_fail():
  """Of 9 examples, the largest score of a label: with the level 0.1 of the mean alone, the second."""
  scores, costs = np.arange(9, dtype=np.float32)[:, None], np.ones((9, 1), np.float32)
  assert calibration.conformal_risk_threshold(scores, costs, alpha=0.1) == 8
  assert calibration.conformal_risk_threshold(scores, costs, alpha=0.2) == 7
  assert calibration.conformal_risk_threshold(scores, costs, alpha=0.099) == np.inf


@pytest.mark.parametrize("bad", ["score", "negative", "large"])
def test_traced_nonsense_gives_no_threshold(bad):
  scores, costs = np.ones((3, 2), np.float32), np.full((3, 2), 0.5, np.float32)
  if bad == "score":
    scores[1, 1] = np.nan
  else:
    costs[1] = {"negative": (-0.5, 1), "large": (0.5, 0.6)}[bad]
  threshold = jit(lambda s, c, where: calibration.conformal_risk_threshold(s, c, alpha=0.5, where=where))
  assert np.isnan(threshold(scores, costs, np.ones(3, bool)))
  assert threshold(scores, costs, np.arange(3) != 1) == 1


@pytest.mark.parametrize(
  ("call", "message"),
  [
    (lambda s: calibration.conformal_risk_threshold(s, s, alpha=-0.1), "alpha must lie in"),
    (lambda s: calibration.conformal_risk_threshold(s, s, alpha=0.1, bound=0), "bound must lie in"),
    (lambda s: calibration.conformal_risk_threshold(s, s[0], alpha=0.1), r"costs must have shape \(3, 2\)"),
    (lambda s: calibration.conformal_risk_threshold(s, -s, alpha=0.1), r"costs must lie in \[0, inf\)"),
    (lambda s: calibration.conformal_risk_threshold(s, s, alpha=0.1), "the sums of costs must lie in"),
    (lambda s: calibration.conformal_risk_threshold(s[0, 0], s, alpha=1), r"scores must be \[..., labels\]"),
    (
      lambda s: calibration.conformal_risk_threshold(s, s / 2, alpha=0.1, where=np.ones(2, bool)),
      r"where must have shape \(3,\)",
    ),
  ],
)
def test_refusals(call, message):
  with pytest.raises((TypeError, ValueError), match=message):
    call(jnp.ones((3, 2)))


@pytest.mark.thorough
def test_any_leading_axes():
  scores = jax.random.normal(jax.random.key(0), (4, 5, 3))
  costs = jnp.full((4, 5, 3), 1 / 3)
  flat = [x.reshape(20, 3) for x in (scores, costs)]
  got = calibration.conformal_risk_threshold(scores, costs, alpha=0.2)
  assert got == calibration.conformal_risk_threshold(*flat, alpha=0.2)

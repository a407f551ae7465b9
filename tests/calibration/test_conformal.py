"""Conformal sets: their coverage, exactly by enumeration and by simulation, and the scores themselves."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract import jit

from jaxreg import calibration

LABELS = np.zeros(7, int)


@pytest.mark.parametrize(
  ("alpha", "covered"), [(0.0, 8), (0.1, 8), (0.125, 7), (0.25, 6), (0.3, 6), (0.5, 4), (0.875, 1), (1.0, 0)]
)
def test_the_coverage_is_that_of_the_ranks(alpha, covered):
  """Of 8 exchangeable scores each is as often the new one: ceil(8 (1 - alpha)) of 8 are covered."""
  scores = np.random.default_rng(0).permutation(8).astype(np.float32)
  threshold = jit(lambda s: calibration.conformal_threshold(s[:, None], LABELS, alpha=alpha))
  inside = [scores[new] <= threshold(np.delete(scores, new)) for new in range(8)]
  assert sum(inside) == covered == math.ceil(8 * (1 - alpha))
  equal = np.float32([0, 1, 1, 1, 2, 2, 3, 3])
  assert sum(equal[new] <= threshold(np.delete(equal, new)) for new in range(8)) >= covered


def test_a_decimal_is_taken_as_it_is_written():
  """In floats, 10 * (1 - 0.7) is more than 3 and its ceiling 4."""
  assert math.ceil(10 * (1 - 0.7)) == 4
  scores = np.arange(9, dtype=np.float32)[:, None]
  assert calibration.conformal_threshold(scores, np.zeros(9, int), alpha=0.7) == 2


def drawn(seed, number):
  """Probabilities of 6 classes, and labels drawn from them."""
  rng = np.random.default_rng(seed)
  probs = rng.dirichlet(np.full(6, 0.4), number).clip(1e-7)
  labels = np.array([rng.choice(6, p=p / p.sum()) for p in probs])
  return np.log(probs / probs.sum(1, keepdims=True)).astype(np.float32), labels


def test_sets_of_a_wrong_model_cover_by_simulation():
  """The model is three times too sure; the coverage of 4000 new labels is 0.9 within 4 deviations."""
  log_probs, labels = drawn(1, 5000)
  tempered = np.asarray(jax.nn.log_softmax(3 * log_probs))
  first, second = jax.random.split(jax.random.key(2))
  seen, new = tempered[:1000], tempered[1000:]
  for scores, new_scores in (
    (calibration.conformal_scores(seen), calibration.conformal_scores(new)),
    (calibration.aps_scores(first, seen), calibration.aps_scores(second, new)),
  ):
    sets = new_scores <= calibration.conformal_threshold(scores, labels[:1000], alpha=0.1)
    covered = np.take_along_axis(np.asarray(sets), labels[1000:, None], 1).mean()
    assert covered == pytest.approx(0.9, abs=4 * np.sqrt(0.09 * (1 / 1000 + 1 / 4000)))
    assert 0 < sets.sum(1).mean() < 6


def test_scores_of_labels_are_uniform_if_the_probabilities_are_right():
  """The Kolmogorov-Smirnov distance of 4000 draws; without a key the scores are larger."""
  log_probs, labels = drawn(3, 4000)
  picked = lambda scores: np.sort(np.take_along_axis(np.asarray(scores), labels[:, None], 1)[:, 0])
  uniform = picked(calibration.aps_scores(jax.random.key(4), log_probs))
  grid = (np.arange(4000) + 0.5) / 4000
  assert np.abs(uniform - grid).max() < 1.95 / np.sqrt(4000)  # of probability 0.001
  assert picked(calibration.aps_scores(None, log_probs)).mean() > 0.6


def test_scores_are_as_printed():
  log_probs, _ = drawn(5, 50)
  p = np.exp(np.float64(log_probs))
  key = jax.random.key(6)
  share = np.asarray(jax.random.uniform(jax.random.clone(key), (50, 1)), np.float64)
  larger = (p[:, None, :] * (p[:, None, :] > p[:, :, None])).sum(-1)
  np.testing.assert_allclose(calibration.aps_scores(key, log_probs), larger + share * p, atol=1e-6)
  np.testing.assert_allclose(calibration.aps_scores(None, log_probs), larger + p, atol=1e-6)
  np.testing.assert_allclose(calibration.conformal_scores(log_probs), 1 - p, atol=1e-6)
  assert calibration.conformal_scores(jnp.array([-1e-9])) == pytest.approx(1e-9)


@pytest.mark.parametrize(
  ("call", "message"),
  [
    (lambda: calibration.conformal_scores(jnp.array([0.5])), "log_probs must be log-probabilities"),
    (lambda: calibration.aps_scores(0, jnp.zeros(2)), "key must be a typed key"),
    (lambda: calibration.conformal_threshold(np.zeros((7, 1)), LABELS, alpha=1.1), "alpha must lie in"),
    (lambda: calibration.conformal_threshold(np.zeros((7, 1)), LABELS + 1, alpha=0.1), "labels must lie in"),
  ],
)
def test_refusals(call, message):
  with pytest.raises((TypeError, ValueError), match=message):
    call()

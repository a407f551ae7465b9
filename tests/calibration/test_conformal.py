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


@pytest.mark.thorough
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


@pytest.mark.thorough
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


@pytest.mark.thorough
def test_scores_of_labels_are_uniform_if_the_probabilities_are_right():
  """The Kolmogorov-Smirnov distance of 4000 masses; without a key they are larger."""
  log_probs, labels = drawn(3, 4000)
  mass = lambda scores: -np.expm1(-np.asarray(scores))
  picked = lambda scores: np.sort(np.take_along_axis(mass(scores), labels[:, None], 1)[:, 0])
  uniform = picked(calibration.aps_scores(jax.random.key(4), log_probs))
  grid = (np.arange(4000) + 0.5) / 4000
  assert np.abs(uniform - grid).max() < 1.95 / np.sqrt(4000)  # of probability 0.001
  assert picked(calibration.aps_scores(None, log_probs)).mean() > 0.6


@pytest.mark.thorough
def test_scores_are_as_printed():
  log_probs, _ = drawn(5, 50)
  p = np.exp(np.float64(log_probs))
  key = jax.random.key(6)
  share = np.asarray(jax.random.uniform(jax.random.clone(key), (50, 1)), np.float64)
  larger = (p[:, None, :] * (p[:, None, :] > p[:, :, None])).sum(-1)
  less = (p[:, None, :] * (p[:, None, :] < p[:, :, None])).sum(-1)
  scores = calibration.aps_scores(key, log_probs)
  np.testing.assert_allclose(scores, -np.log(less + (1 - share) * p), rtol=1e-5, atol=1e-6)
  np.testing.assert_allclose(-np.expm1(-scores), larger + share * p, atol=1e-6)
  with np.errstate(divide="ignore"):
    want = -np.log(less)  # infinite for the least probable class
  np.testing.assert_allclose(calibration.aps_scores(None, log_probs), want, rtol=1e-5, atol=1e-6)
  np.testing.assert_allclose(calibration.conformal_scores(log_probs), -np.log(p), rtol=1e-5, atol=1e-6)
  assert calibration.conformal_scores(jnp.array([-1e-9, np.log(1e-9)]))[0] == pytest.approx(1e-9)


def confident(number=4000, classes=10, gap=40.0):
  """Logits whose top class leads by about `gap`, and labels: the top class in 80 %, else the second."""
  rng = np.random.default_rng(7)
  logits = rng.normal(size=(number, classes)).astype(np.float32)
  order = rng.permuted(np.tile(np.arange(classes), (number, 1)), axis=1)
  rows = np.arange(number)
  logits[rows, order[:, 0]] += np.float32(gap + rng.uniform(0, 20, number))
  logits[rows, order[:, 1]] += np.float32(gap / 4)
  return logits, np.where(rng.uniform(size=number) < 0.8, order[:, 0], order[:, 1])


def exact_log_probs(logits):
  """In float64, with the digits of probabilities near 1: minus log1p of the sum of the other odds."""
  z = np.float64(logits)
  odds = [np.logaddexp.reduce(np.delete(z, k, axis=1), axis=1) - z[:, k] for k in range(z.shape[1])]
  return -np.logaddexp(0, np.stack(odds, axis=1))


@pytest.mark.thorough
@pytest.mark.parametrize("alpha", [0.1, 0.3, 0.5])
def test_a_confident_network_gets_the_sets_of_exact_probabilities(alpha):
  """In float32 1 - p is 1 for all classes but the first, so that every set had one class or all."""
  logits, labels = confident()
  log_probs = jax.nn.log_softmax(logits)
  assert np.mean(1 - np.exp(np.asarray(log_probs)) == 1) > 0.8  # what a score 1 - p cannot tell apart
  scores = np.asarray(jit(calibration.conformal_scores)(log_probs))
  exact = -exact_log_probs(logits)
  np.testing.assert_allclose(scores, exact, rtol=1e-5, atol=1e-30)
  threshold = calibration.conformal_threshold(scores[:2000], labels[:2000], alpha=alpha)
  rank = math.ceil(2001 * (1 - alpha))
  cut = np.sort(exact[np.arange(2000), labels[:2000]])[rank - 1]
  sets, want = scores[2000:] <= threshold, exact[2000:] <= cut
  assert (sets != want).mean() < 1e-3  # a score within rounding of the threshold
  assert sets.sum(1).mean() < 3
  covered = sets[np.arange(2000), labels[2000:]].mean()
  assert covered == pytest.approx(1 - alpha, abs=4 * np.sqrt(alpha * (1 - alpha) / 1000))


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [8, None])
def test_adaptive_sets_of_a_confident_network_are_those_of_exact_probabilities(seed):
  logits, labels = confident()
  key = None if seed is None else jax.random.key(seed)
  share = 1 if key is None else np.float64(jax.random.uniform(jax.random.clone(key), (4000, 1)))
  scores = np.asarray(calibration.aps_scores(key, jax.nn.log_softmax(logits)))
  exact = np.exp(exact_log_probs(logits))
  order = np.argsort(-exact, axis=1)
  assert (np.diff(np.take_along_axis(scores, order, 1), axis=1) > 0).all()
  less = (exact[:, None, :] * (exact[:, None, :] < exact[:, :, None])).sum(-1)
  with np.errstate(divide="ignore"):
    want = -np.log(less + (1 - share) * exact)
  cut = np.sort(want[np.arange(2000), labels[:2000]])[math.ceil(2001 * 0.9) - 1]
  sets = scores[2000:] <= calibration.conformal_threshold(scores[:2000], labels[:2000], alpha=0.1)
  assert (np.asarray(sets) != (want[2000:] <= cut)).mean() < 1e-3  # a score within rounding of the threshold
  covered = np.asarray(sets)[np.arange(2000), labels[2000:]].mean()
  assert covered == pytest.approx(0.9, abs=4 * np.sqrt(0.09 / 1000))


def test_a_traced_label_out_of_range_gives_no_threshold():
  threshold = jit(lambda scores, labels: calibration.conformal_threshold(scores, labels, alpha=0.5))
  scores = np.float32([[0.1, 0.2], [0.3, 0.4]])
  assert np.isfinite(threshold(scores, np.array([0, 1])))
  for label in (-1, 2):
    assert np.isnan(threshold(scores, np.array([0, label])))


@pytest.mark.parametrize(
  ("call", "message"),
  [
    (lambda: calibration.conformal_scores(jnp.array([0.5, 0.5])), "log_probs must be log-probabilities"),
    (lambda: calibration.aps_scores(0, jnp.log(jnp.full(2, 0.5))), "key must be a typed key"),
    (lambda: calibration.conformal_threshold(np.zeros((7, 1)), LABELS, alpha=1.1), "alpha must lie in"),
    (lambda: calibration.conformal_threshold(np.zeros((7, 1)), LABELS + 1, alpha=0.1), "labels must lie in"),
  ],
)
def test_refusals(call, message):
  with pytest.raises((TypeError, ValueError), match=message):
    call()

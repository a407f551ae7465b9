"""Wrong labels: the estimated matrix, limits of the losses, and refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from contract import jit

from jaxreg import losses

RNG = np.random.default_rng(0)
LOGITS, LABELS = RNG.normal(size=(8, 3)).astype(np.float32) * 2, RNG.integers(0, 3, 8)
TRANSITIONS = np.float32([[0.8, 0.1, 0.1], [0.0, 1.0, 0.0], [0.25, 0.0, 0.75]])


@pytest.mark.thorough
def test_a_certain_right_label_keeps_its_digits():
  """With the identity it is the cross-entropy, also where that is 1e-8."""
  logits = jnp.array([[18.0, 0.0, -3.0]])
  run = jit(jax.value_and_grad(lambda o, y: losses.forward_correction(o, y, jnp.eye(3)).sum()))
  for labels in (jnp.array([0]), jnp.array([[1.0, 0.0, 0.0]])):
    value, slope = run(logits, labels)
    np.testing.assert_allclose([value, -slope[0, 0]], np.exp(-18.0) + np.exp(-21.0), rtol=1e-5)


def test_the_minimum_over_wrong_labels_has_the_true_probabilities():
  """Trained on the observed labels, the softmax is that of the true ones."""
  truth = np.array([0.7, 0.2, 0.1])
  observed = np.float32(truth @ TRANSITIONS)
  slope = jax.grad(lambda o: losses.forward_correction(o, observed, TRANSITIONS))
  np.testing.assert_allclose(slope(jnp.log(np.float32(truth))), 0, atol=1e-6)
  assert np.abs(slope(jnp.log(observed))).max() > 0.01


@pytest.mark.parametrize("name", ["generalized_cross_entropy", "active_passive"])
def test_sums_over_all_labels_are_constant(name):
  """So a uniform change of labels moves no minimum."""
  options = {"q": 1.0} if name == "generalized_cross_entropy" else {}
  loss = lambda k: getattr(losses, name)(LOGITS, np.full(8, k), **options)
  total = sum(loss(k) for k in range(3))
  np.testing.assert_allclose(total, total[0], rtol=1e-5)


def test_limits_are_the_cross_entropy_and_poly_loss():
  plain = losses.softmax_cross_entropy(LOGITS, LABELS)
  np.testing.assert_allclose(losses.generalized_cross_entropy(LOGITS, LABELS, q=0.0), plain, rtol=1e-6)
  got = losses.active_passive(LOGITS, LABELS, passive_weight=0.0, normalized=False)
  np.testing.assert_allclose(got, plain, rtol=1e-6)
  got = losses.active_passive(LOGITS, LABELS, active_weight=0.1, normalized=False)
  np.testing.assert_allclose(got, 0.1 * losses.poly_loss(LOGITS, LABELS, epsilon=40.0), rtol=1e-5)


def test_anchors_give_the_matrix_of_the_labels():
  """Examples that surely have a class are observed with its row; a quantile leaves out an outlier."""
  truth = np.concatenate([np.eye(3), RNG.dirichlet(np.full(3, 0.5), 300)])
  transitions = np.float32([[0.8, 0.1, 0.1], [0.05, 0.9, 0.05], [0.25, 0.0, 0.75]])
  with np.errstate(divide="ignore"):
    log_probs = np.log(np.float32(truth @ transitions))
  np.testing.assert_allclose(losses.transition_matrix(log_probs), transitions, atol=1e-6)
  outlier = np.concatenate([log_probs, np.log(np.float32([[0.98, 0.01, 0.01]]))])
  assert losses.transition_matrix(outlier)[0, 0] > 0.97
  order = np.sort(np.exp(outlier[:, 0]))
  got = losses.transition_matrix(outlier, quantile=0.9)
  np.testing.assert_allclose(got[0, 0], order[round(0.9 * 303)], rtol=1e-6)
  np.testing.assert_allclose(got, oracles.transition_matrix(outlier.astype(np.float64), 0.9), rtol=1e-5)


def test_refusals():
  for wrong, problem in (
    (np.full((3, 3), 0.5, np.float32), "the sums of the rows of transitions must lie in"),
    (np.float32(np.eye(3) * 2 - 1 / 3), "transitions must lie in"),
    (np.eye(2, dtype=np.float32), "transitions must have shape"),
  ):
    with pytest.raises(ValueError, match=problem):
      losses.forward_correction(LOGITS, LABELS, wrong)
  with pytest.raises(ValueError, match=r"log_probs must be \[n, classes\] with n > 0"):
    losses.transition_matrix(np.log(np.float32([0.5, 0.5])))
  with pytest.raises(ValueError, match="must be log-probabilities"):
    losses.transition_matrix(oracles.softmax(LOGITS).astype(np.float32))
  with pytest.raises(ValueError, match=r"q must lie in \[0, 1\]"):
    losses.generalized_cross_entropy(LOGITS, LABELS, q=2.0)
  with pytest.raises(ValueError, match="active_weight"):
    losses.active_passive(LOGITS, LABELS, active_weight=-1.0)

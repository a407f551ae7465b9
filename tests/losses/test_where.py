"""`where`, which the contract checks for every loss: which functions have it, and what it refuses."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxreg import losses

# Predictions, scores, weights and figures: none is a loss of examples.
WITHOUT = {"class_weights", "dropmax_diagnostics", "dropmax_heads", "transition_matrix"}
LOGITS, LABELS = np.float32([[2, 0], [np.nan, np.inf], [0, 1]]), np.array([0, -1, 1])
WHERE = np.array([True, False, True])


def test_every_loss_has_it():
  lacks = {
    name for name in losses.__all__ if "where" not in inspect.signature(getattr(losses, name)).parameters
  }
  assert {name for name in lacks if not name.endswith("_log_probs")} == WITHOUT & set(losses.__all__)


@pytest.mark.thorough
def test_it_covers_options_of_examples():
  gamma = jnp.array([1.0, jnp.nan, 3.0])
  call = lambda x, gamma: losses.focal(x, LABELS, gamma=gamma, where=WHERE)
  alone = lambda x, gamma: losses.focal(x, LABELS[WHERE], gamma=gamma)
  np.testing.assert_allclose(call(LOGITS, gamma)[WHERE], alone(LOGITS[WHERE], gamma[WHERE]), rtol=1e-6)
  got = jax.grad(lambda gamma: call(LOGITS, gamma).sum())(gamma)
  want = jax.grad(lambda gamma: alone(LOGITS[WHERE], gamma).sum())(gamma[WHERE])
  assert got[1] == 0
  np.testing.assert_allclose(got[WHERE], want, rtol=1e-6)
  # An option that is refused in an example that counts.
  with pytest.raises(ValueError, match="gamma must lie in"):
    losses.focal(LOGITS, LABELS, gamma=np.float32([-1, 0, 0]), where=WHERE)


@pytest.mark.thorough
def test_it_takes_an_example_alone():
  one = jax.vmap(lambda x, y, w: losses.softmax_cross_entropy(x, y, where=w))
  got = one(LOGITS, LABELS, WHERE)
  np.testing.assert_array_equal(got, losses.softmax_cross_entropy(LOGITS, LABELS, where=WHERE))


@pytest.mark.thorough
def test_a_kernel_of_the_batch_s_shape_is_whole():
  """Three examples and three features: its rows belong to no example."""
  rng = np.random.default_rng(0)
  x, kernel = np.float32(rng.normal(size=(2, 3, 3)))
  got = losses.cosface(x, kernel, LABELS, where=WHERE)
  np.testing.assert_allclose(got[WHERE], losses.cosface(x[WHERE], kernel, LABELS[WHERE]), rtol=1e-6)


@pytest.mark.thorough
def test_the_parts_of_a_batch_are_counted_without_the_others():
  rng = np.random.default_rng(1)
  supervised, unsupervised = np.float32(rng.uniform(1, 2, (2, 6)))
  labels, where = np.array([2, -1, 0, -1, -1, 1]), np.array([1, 1, 1, 1, 0, 0], bool)
  broken = np.where(where, supervised, np.nan)
  got = losses.semi_supervised(broken, unsupervised, labels, where=where)
  want = losses.semi_supervised(supervised[where], unsupervised[where], labels[where])
  np.testing.assert_allclose(got[where], want, rtol=1e-6)
  assert not got[~where].any()


@pytest.mark.thorough
def test_unlabelled_examples_need_no_class():
  loss = lambda x: losses.semi_supervised(
    losses.softmax_cross_entropy(x, LABELS, where=LABELS >= 0), losses.entropy(x), LABELS
  ).sum()
  assert np.isfinite(jax.grad(loss)(np.where(np.isfinite(LOGITS), LOGITS, 0))).all()


@pytest.mark.parametrize(
  ("where", "error", "message"),
  [
    (WHERE.astype(np.float32), TypeError, "where must be bool, got float32"),
    (WHERE[:2], ValueError, r"where must have shape \(3,\), got \(2,\)"),
    (np.isfinite(LOGITS), ValueError, r"where must have shape \(3,\), got \(3, 2\)"),
    (~WHERE, ValueError, r"labels must lie in \[0, 2\), got -1"),
  ],
)
def test_it_refuses(where, error, message):
  with pytest.raises(error, match=message):
    losses.softmax_cross_entropy(LOGITS, LABELS, where=where)


def test_a_missing_argument_is_told_as_without_it():
  with pytest.raises(TypeError, match=r"softmax_cross_entropy\(\) missing a required argument: 'labels'"):
    losses.softmax_cross_entropy(LOGITS, where=WHERE)  # pyright: ignore


@pytest.mark.parametrize("labels", [np.full((3, 2), 5.0), np.float32([[0.5, 0.4]] * 3)])
def test_soft_labels_have_the_sum_1(labels):
  with pytest.raises(ValueError, match="labels must be probabilities with the sum 1, got a sum of"):
    losses.softmax_cross_entropy(np.zeros((3, 2), np.float32), labels)

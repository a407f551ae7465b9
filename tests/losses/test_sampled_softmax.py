"""Sampled softmax: what is sampled, its limits, and its expectation by enumeration."""

import jax
import numpy as np
import pytest

from jaxreg import losses


@pytest.mark.thorough
def test_all_classes_give_the_softmax():
  generator = np.random.default_rng(0)
  logits, labels = generator.normal(size=(16, 7)).astype(np.float32) * 3, generator.integers(0, 7, 16)
  for correct in (False, True):
    loss = losses.sampled_softmax(jax.random.key(0), logits, labels, rate=0.0, correct_proposal=correct)
    np.testing.assert_array_equal(loss, losses.softmax_cross_entropy(logits, labels))


@pytest.mark.thorough
@pytest.mark.parametrize(
  ("classes", "rate", "others"), [(10, 0.8, 2), (10, 0.6, 4), (10, 0.4, 6), (10, 0.99, 1), (3, 0.0, 2)]
)
@pytest.mark.claim("dropmax", "table 1", "baseline sampled softmax: the target and a uniform subset")
def test_the_target_and_a_uniform_subset_of_the_others(classes, rate, others):
  size = 4000
  labels = np.arange(size) % classes
  loss = lambda logits: losses.sampled_softmax(jax.random.key(1), logits, labels, rate=rate)
  values, pull = jax.vjp(jax.jit(loss), np.zeros((size, classes), np.float32))
  # At equal logits each class of the softmax, and no other, gets a gradient.
  kept = np.asarray(pull(np.ones(size, np.float32))[0]) != 0
  np.testing.assert_allclose(values, np.log(others + 1), rtol=1e-6)
  np.testing.assert_array_equal(kept.sum(-1), others + 1)
  assert kept[np.arange(size), labels].all()
  # Each other class is there as often as every other one, within four standard deviations.
  share = others / (classes - 1)
  number = size * (classes - 1) / classes
  tolerance = 4 * np.sqrt(share * (1 - share) / number)
  for k in range(classes):
    assert abs(kept[labels != k, k].mean() - share) <= tolerance


@pytest.mark.parametrize("rate", [-0.1, 1.1, float("nan")])
def test_a_rate_out_of_range_is_refused(rate):
  with pytest.raises(ValueError, match="rate"):
    losses.sampled_softmax(jax.random.key(0), np.zeros((1, 3), np.float32), np.array([0]), rate=rate)


@pytest.mark.parametrize("loss", [losses.random_dropmax, losses.sampled_softmax])
def test_a_label_that_is_no_class_gives_nan(loss):
  logits, labels = np.zeros((5, 5), np.float32), np.array([2, 5, -1, 0, 300])
  with pytest.raises(ValueError, match=r"labels must lie in \[0, 5\)"):
    loss(jax.random.key(0), logits, labels)
  values = jax.jit(loss)(jax.random.key(0), logits, labels)
  assert np.isnan(values).tolist() == [False, True, True, False, True]

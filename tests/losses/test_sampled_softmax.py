"""Sampled softmax: what is sampled, its limits, and its expectation by enumeration."""

import jax
import numpy as np
import pytest

from jaxreg import losses


def test_all_classes_give_the_softmax():
  generator = np.random.default_rng(0)
  logits, labels = generator.normal(size=(16, 7)).astype(np.float32) * 3, generator.integers(0, 7, 16)
  for correct in (False, True):
    loss = losses.sampled_softmax(jax.random.key(0), logits, labels, fraction=1.0, correct_proposal=correct)
    np.testing.assert_array_equal(loss, losses.softmax_cross_entropy(logits, labels))


@pytest.mark.parametrize(
  ("classes", "fraction", "others"), [(10, 0.2, 2), (10, 0.4, 4), (10, 0.6, 6), (10, 0.01, 1), (3, 1.0, 2)]
)
@pytest.mark.claim("dropmax", "table 1", "baseline sampled softmax: the target and a uniform subset")
def test_the_target_and_a_uniform_subset_of_the_others(classes, fraction, others):
  size = 4000
  labels = np.arange(size) % classes
  kept = np.asarray(losses.sample_classes(jax.random.key(1), labels, num_classes=classes, fraction=fraction))
  np.testing.assert_array_equal(kept.sum(-1), others + 1)
  assert kept[np.arange(size), labels].all()
  # Each other class is there as often as every other one, within four standard deviations.
  share = others / (classes - 1)
  number = size * (classes - 1) / classes
  tolerance = 4 * np.sqrt(share * (1 - share) / number)
  for k in range(classes):
    assert abs(kept[labels != k, k].mean() - share) <= tolerance


@pytest.mark.parametrize("fraction", [0.0, -0.1, 1.1, float("nan")])
def test_a_fraction_out_of_range_is_refused(fraction):
  with pytest.raises(ValueError, match="fraction"):
    losses.sampled_softmax(jax.random.key(0), np.zeros((1, 3), np.float32), np.array([0]), fraction=fraction)

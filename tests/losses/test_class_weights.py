"""Weights of classes, in closed form and against scikit-learn."""

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from sklearn.utils.class_weight import compute_class_weight

from jaxreg import losses

COUNTS = np.array([600, 300, 90, 9, 1])


@pytest.mark.thorough
def test_inverse_is_scikit_learns():
  labels = np.repeat(np.arange(5), COUNTS)
  want = compute_class_weight("balanced", classes=np.arange(5), y=labels)
  np.testing.assert_allclose(losses.class_weights(COUNTS), want, rtol=1e-6)
  np.testing.assert_allclose(jax.jit(losses.class_weights)(jnp.bincount(labels, length=5)), want, rtol=1e-6)


@pytest.mark.parametrize("counts", [np.array([2**32 + 1, 1]), np.array([1e39, 1e5])], ids=str)
def test_counts_beyond_32_bits_neither_wrap_nor_overflow(counts):
  want = counts.sum() / (2 * counts.astype(np.float64))
  np.testing.assert_allclose(losses.class_weights(counts), want, rtol=1e-6)


@pytest.mark.parametrize(
  "options",
  [
    {"scheme": "sqrt"},
    {"scheme": "effective"},
    {"scheme": "effective", "beta": 0.9},
    {"scheme": "effective", "beta": 0.0},
    {"limit": 10.0},
    {"limit": 1.0},
  ],
  ids=str,
)
def test_the_closed_form_with_the_mean_1_over_examples(options):
  got = losses.class_weights(COUNTS, **options)
  np.testing.assert_allclose(got, oracles.class_weights(COUNTS, **options), rtol=1e-6)
  np.testing.assert_allclose(np.average(got, weights=COUNTS), 1, rtol=1e-6)


def test_effective_goes_to_the_inverse():
  got = losses.class_weights(COUNTS, scheme="effective", beta=1 - 1e-9)
  np.testing.assert_allclose(got, losses.class_weights(COUNTS), rtol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("scheme", ["inverse", "sqrt", "effective"])
def test_a_class_without_examples_has_weight_0_and_changes_no_other(scheme):
  options = {"scheme": scheme, "limit": 5.0}
  got = losses.class_weights(np.array([0, 4, 2]), **options)
  assert got[0] == 0
  np.testing.assert_allclose(got[1:], losses.class_weights(np.array([4, 2]), **options), rtol=1e-6)
  assert not losses.class_weights(np.zeros(3, int), **options).any()


@pytest.mark.parametrize(
  ("counts", "options", "error", "message"),
  [
    (np.array([1, -1]), {}, ValueError, "counts must lie in"),
    (np.ones((2, 2)), {}, ValueError, r"counts must be \[classes\], got \(2, 2\)"),
    (np.ones(2, bool), {}, TypeError, "counts must be numbers, got bool"),
    (COUNTS, {"scheme": "log"}, ValueError, "scheme must be one of inverse, sqrt, effective"),
    (COUNTS, {"beta": 1.0}, ValueError, r"beta must lie in \[0, 1\)"),
    (COUNTS, {"limit": 0.5}, ValueError, "limit must lie in"),
  ],
)
def test_it_refuses(counts, options, error, message):
  with pytest.raises(error, match=message):
    losses.class_weights(counts, **options)

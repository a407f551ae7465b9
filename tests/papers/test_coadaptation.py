"""Co-adaptation: the mean absolute correlation of the pairs of units."""

import numpy as np
import pytest

from papers.adaptive_sgd._networks import correlations


@pytest.mark.claim(
  "adaptive_sgd",
  "effect on features",
  "co-adaptation, as the mean correlation of pairs of units: 0 for independent ones, 1 for copies",
)
def test_coadaptation_of_copies_and_of_orthogonal_units():
  """Of one signal and another orthogonal to it, copied: scales, signs and dead units have no effect."""
  one, other = np.array([1.0, -1, 1, -1]), np.array([1.0, 1, -1, -1])

  def of(*units):
    dead = [np.full(4, 0.1)] * (6 - len(units))
    return correlations(np.stack([*units, *dead], -1).astype(np.float32)).mean()

  np.testing.assert_allclose(of(one, 3 * one + 1, -1e4 * one), 1, rtol=1e-6)
  np.testing.assert_allclose(of(one, other), 0, atol=1e-6)
  # Of two of one kind and three of the other, 1 + 3 of 10 pairs.
  np.testing.assert_allclose(of(one, -one, other, other, 1e-30 * other), 0.4, rtol=1e-6)

"""The Jensen-Shannon divergence where views exclude classes, and at its bounds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxreg import losses


def test_excluded_classes_add_nothing_and_have_no_slope():
  """Classes that one view, or all, exclude."""
  p = np.array([[0.5, 0.5, 0.0, 0.0], [0.25, 0.0, 0.75, 0.0], [1.0, 0.0, 0.0, 0.0]])
  log_p = jnp.log(jnp.asarray(p))
  value, slope = jax.jit(jax.value_and_grad(losses.jensen_shannon))(log_p)
  ratio = np.divide(p, p.mean(0), out=np.ones_like(p), where=p > 0)
  np.testing.assert_allclose(value, (p * np.log(ratio)).sum(-1).mean(), rtol=1e-6)
  assert np.isfinite(slope).all()
  # The slope in log p of sum p log(p / m) / n is p log(p / m) / n: what m changes cancels. The softmax takes
  # its sum away.
  want = p * np.log(ratio) / 3
  np.testing.assert_allclose(slope, want - p * want.sum(-1, keepdims=True), atol=1e-6)


@pytest.mark.thorough
def test_it_is_zero_for_equal_and_largest_for_disjoint_views():
  same = jnp.log(jnp.tile(jnp.array([0.2, 0.3, 0.5]), (4, 1)))
  assert abs(losses.jensen_shannon(same)) < 1e-6
  np.testing.assert_allclose(losses.jensen_shannon(jnp.log(jnp.eye(5))), np.log(5), rtol=1e-6)
  with pytest.raises(ValueError, match=r"logits must be \[..., views, classes\], got \(3,\)"):
    losses.jensen_shannon(jnp.zeros(3))

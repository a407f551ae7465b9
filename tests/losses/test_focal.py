"""Focal loss: its limits, and slopes that stay finite where the loss is zero."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract import jit

from jaxreg import losses


def test_gamma_zero_is_the_cross_entropy():
  logits, labels = jnp.array([[3.0, -1.0, 0.5], [1e4, 0.0, 0.0]]), jnp.array([2, 0])
  run = lambda function: jit(jax.value_and_grad(lambda o: function(o, labels).sum()))(logits)
  got = run(lambda o, y: losses.focal(o, y, gamma=0.0))
  chex.assert_trees_all_equal(got, run(losses.softmax_cross_entropy))


def test_slopes_are_finite_and_right_where_the_loss_is_nearly_zero():
  """There the loss is c^(1 + gamma) for a cross-entropy of c, whose slope in the label's logit is -c."""
  slope = jit(jax.vmap(jax.grad(lambda o, g: losses.focal(o, jnp.array(0), gamma=g)), in_axes=(0, None)))
  logits = jnp.array([[18.0, 0.0], [1e4, 0.0], [-1e4, 0.0]])
  c = np.exp(-18.0)
  for gamma in (0.0, 0.5, 2.0):
    got = np.asarray(slope(logits, gamma))
    np.testing.assert_allclose(got[0, 0], -(1 + gamma) * c ** (1 + gamma), rtol=1e-4)
    np.testing.assert_allclose(got[1:], [[0, 0], [-1, 1]], atol=1e-30)


def test_refusals():
  with pytest.raises(ValueError, match="gamma must lie in"):
    losses.focal(jnp.zeros((1, 2)), jnp.array([0]), gamma=-1.0)

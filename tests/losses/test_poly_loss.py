"""Poly-1: Optax's values, small losses, excluded classes and refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from contract import jit

from jaxreg import losses


@pytest.mark.thorough
def test_values_are_those_of_optax():
  logits, labels = jnp.array([[3.0, -1.0, 0.5], [0.0, 2.0, 0.0]]), jnp.array([2, 0])
  one_hot = jax.nn.one_hot(labels, 3)
  for epsilon in (-1.0, 0.0, 2.0):
    theirs = optax.losses.poly_loss_cross_entropy(logits, one_hot, epsilon=epsilon)
    np.testing.assert_allclose(losses.poly_loss(logits, labels, epsilon=epsilon), theirs, rtol=1e-6)
    np.testing.assert_allclose(losses.poly_loss(logits, one_hot, epsilon=epsilon), theirs, rtol=1e-6)


@pytest.mark.thorough
def test_small_losses_keep_their_digits():
  """There the loss is (1 + epsilon) c for a cross-entropy of c, whose slope in the label's logit is -c."""
  run = jit(jax.value_and_grad(lambda o, y: losses.poly_loss(o, y, epsilon=0.5).sum()))
  for labels in (jnp.array([0]), jnp.array([[1.0, 0.0]])):
    value, slope = run(jnp.array([[18.0, 0.0]]), labels)
    np.testing.assert_allclose([value, -slope[0, 0]], 1.5 * np.exp(-18.0), rtol=1e-5)


@pytest.mark.thorough
def test_an_excluded_class_without_a_share_counts_nothing():
  run = jax.value_and_grad(lambda o: losses.poly_loss(o, jnp.array([[0.0, 1.0, 0.0]])).sum())
  value, slope = run(jnp.array([[-jnp.inf, 0.0, 0.0]]))
  np.testing.assert_allclose(value, np.log(2) + 1, rtol=1e-6)
  np.testing.assert_allclose(slope, [[0, -1, 1]], rtol=1e-6)


def test_refusals():
  with pytest.raises(ValueError, match=r"epsilon must lie in \[-1, inf\)"):
    losses.poly_loss(jnp.zeros((1, 2)), jnp.array([0]), epsilon=-1.5)

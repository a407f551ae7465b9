"""Dropout on the inputs of a linear regression, against all masks."""

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest

from papers import adaptive_sgd


def problem(outputs=()):
  rng = np.random.default_rng(0)
  return (
    rng.normal(size=(3, 3)) * [1.0, 3.0, 0.5],
    rng.normal(size=(3, *outputs)),
    rng.normal(size=(3, *outputs)),
  )


def over_masks(X, y, w, keep, inverted):
  """Mean loss and gradient over the 2^9 masks of the entries of X."""
  masks = oracles.all_masks(9)
  weights = oracles.mask_probabilities(masks, np.full(9, keep))
  noisy = masks.reshape(-1, 3, 3) * X / (keep if inverted else 1)
  residual = noisy @ w - y
  loss = weights @ (residual**2).reshape(len(masks), -1).sum(1)
  gradient = np.einsum("m,mef,me...->f...", weights, noisy, 2 * residual)
  return loss, gradient


@pytest.mark.thorough
@pytest.mark.parametrize("inverted", [False, True])
@pytest.mark.parametrize(("keep", "outputs"), [(0.5, ()), (0.8, (2,)), (1.0, ())])
@pytest.mark.claim(
  "adaptive_sgd",
  "effect on features",
  "dropout on a linear regression is ridge regression, with the strength p (1 - p) X_j^T X_j for feature j",
  size="enumeration",
)
def test_loss_and_gradient_are_the_means_over_all_masks(keep, outputs, inverted):
  X, y, w = problem(outputs)
  loss, gradient = over_masks(X, y, w, keep, inverted)
  with jax.enable_x64(True):
    closed = lambda w: adaptive_sgd.dropout_ridge_loss(w, X, y, keep_prob=keep, inverted=inverted)
    got, slope = jax.jit(jax.value_and_grad(closed))(w)
    np.testing.assert_allclose(got, loss, rtol=1e-12)
    np.testing.assert_allclose(slope, gradient, rtol=1e-11, atol=1e-12)
    # The minimiser: the enumerated gradient is 0 there.
    best = np.asarray(adaptive_sgd.dropout_ridge(X, y, keep_prob=keep, inverted=inverted))
  np.testing.assert_allclose(over_masks(X, y, best, keep, inverted)[1], 0, atol=1e-11)


def test_the_inverted_minimiser_is_the_scaled_one():
  X, y, _ = problem()
  with jax.enable_x64(True):
    plain = adaptive_sgd.dropout_ridge(X, y, keep_prob=0.7)
    inverted = adaptive_sgd.dropout_ridge(X, y, keep_prob=0.7, inverted=True)
    np.testing.assert_allclose(inverted, 0.7 * plain, rtol=1e-12)


@pytest.mark.thorough
def test_limits():
  X, y, _ = problem()
  with jax.enable_x64(True):
    np.testing.assert_allclose(
      adaptive_sgd.dropout_ridge(X, y, keep_prob=1.0), np.linalg.solve(X, y), rtol=1e-10
    )
    # More features than examples: the smallest of the minimisers. A dead feature: no weight.
    wide, w = np.hstack([X, X]), adaptive_sgd.dropout_ridge(np.hstack([X, X]), y, keep_prob=1.0)
    np.testing.assert_allclose(w, np.linalg.pinv(wide) @ y, rtol=1e-9)
    dead = adaptive_sgd.dropout_ridge(np.hstack([X, np.zeros((3, 1))]), y, keep_prob=0.5)
    np.testing.assert_allclose(dead[:3], adaptive_sgd.dropout_ridge(X, y, keep_prob=0.5), rtol=1e-10)
    assert dead[3] == 0
    # Standardised features: one strength for all, (1 - p) / p times their square.
    Q = np.linalg.qr(X)[0]
    equal = adaptive_sgd.dropout_ridge(Q, y, keep_prob=0.5, inverted=True)
    np.testing.assert_allclose(equal, Q.T @ y / 2, rtol=1e-10)


def test_what_does_not_fit_is_refused():
  X, y = jnp.ones((4, 2)), jnp.ones(4)
  for keep in (0.0, 1.1):
    with pytest.raises(ValueError, match="keep_prob"):
      adaptive_sgd.dropout_ridge(X, y, keep_prob=keep)
  with pytest.raises(ValueError, match="y must be"):
    adaptive_sgd.dropout_ridge(X, jnp.ones(3), keep_prob=0.5)
  with pytest.raises(ValueError, match="w must have shape"):
    adaptive_sgd.dropout_ridge_loss(jnp.ones(3), X, y, keep_prob=0.5)
  with pytest.raises(TypeError, match="X must be floating"):
    adaptive_sgd.dropout_ridge(jnp.ones((4, 2), int), y, keep_prob=0.5)

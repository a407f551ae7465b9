"""Early stopping as L2 regularisation: against the descent itself, and where the approximation ends."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract import jit

from papers import regularization

WHERE = "early stopping acts as a regularizer"
gd_filter, early_stopping_alpha, early_stopping_steps = (
  jit(getattr(regularization, name)) for name in ("gd_filter", "early_stopping_alpha", "early_stopping_steps")
)


@pytest.mark.claim(
  "regularization", WHERE, "after tau steps from 0 a component is at 1 - (1 - eps lambda)^tau of its minimum"
)
@pytest.mark.parametrize("steps", [0, 1, 7, 300])
def test_the_filter_is_the_trajectory(steps, x64):
  rng = np.random.default_rng(0)
  # At a rate of 0.5: from slow to alternating, and one that arrives in a step.
  eigvals = np.array([1e-6, 0.01, 0.9, 1.1, 2.0, 3.5])
  q = np.linalg.qr(rng.normal(size=(6, 6)))[0]
  h, w_star, w = q * eigvals @ q.T, rng.normal(size=6), np.zeros(6)
  for _ in range(steps):
    w = w - 0.5 * h @ (w - w_star)
  filtered = gd_filter(eigvals, learning_rate=0.5, steps=steps)
  np.testing.assert_allclose(q @ (np.asarray(filtered) * (q.T @ w_star)), w, atol=1e-12)


def test_small_eigenvalues_keep_their_digits():
  eigvals = np.float32([1e-9, 1e-7, 1e-4])
  want = -np.expm1(30 * np.log1p(-0.1 * eigvals.astype(np.float64)))
  np.testing.assert_allclose(gd_filter(eigvals, learning_rate=0.1, steps=30), want, rtol=1e-6)
  reached = jit(jax.grad(lambda x: gd_filter(x, learning_rate=0.5, steps=3).sum()))
  grad = reached(jnp.array([0.0, 1.0, 2.0]))
  np.testing.assert_allclose(grad, [1.5, 0.375, 0], atol=1e-6)


@pytest.mark.claim(
  "regularization", WHERE, "the two are equal where (I - eps Lambda)^tau = (Lambda + alpha I)^-1 alpha"
)
def test_the_exact_penalty_and_the_exact_steps(x64):
  eigvals, rate, steps = np.array([1e-3, 0.2, 1.0, 1.8]), 0.5, 6
  alphas = early_stopping_alpha(learning_rate=rate, steps=steps, eigvals=eigvals)
  reached = 1 - (1 - rate * eigvals) ** steps
  np.testing.assert_allclose(eigvals / (eigvals + np.asarray(alphas)), reached, rtol=1e-10)
  back = [
    early_stopping_steps(learning_rate=rate, alpha=float(alpha), eigvals=eigvals[i : i + 1])[0]
    for i, alpha in enumerate(alphas)
  ]
  np.testing.assert_allclose(back, steps, rtol=1e-10)
  assert np.ptp(alphas) > 0.1  # one penalty does not do for all eigenvalues


@pytest.mark.parametrize("steps", [30, 31])
def test_the_exact_penalty_keeps_its_digits_late_in_the_descent(steps):
  """From slow ones past the one that arrives in a step to those that alternate."""
  eigvals = np.float32([0.1, 0.75, 1.0, 1.25, 2.0, 2.5, 3.0])
  alphas = early_stopping_alpha(learning_rate=0.5, steps=steps, eigvals=eigvals)
  left = (1 - 0.5 * eigvals.astype(np.float64)) ** steps
  np.testing.assert_allclose(alphas, eigvals * left / (1 - left), rtol=1e-5)


@pytest.mark.claim(
  "regularization",
  WHERE,
  "tau is about 1 / (eps alpha) for small eigenvalues: off by 24, 3.8, 0.4 % at lambda / alpha .8, .08, .008",
)
def test_the_approximation_gets_better_with_smaller_eigenvalues(x64):
  rate, steps = 1e-6, 10**6
  alpha = float(early_stopping_alpha(learning_rate=rate, steps=steps))
  np.testing.assert_allclose(alpha, 1.0, rtol=1e-12)
  np.testing.assert_allclose(early_stopping_steps(learning_rate=rate, alpha=alpha), steps, rtol=1e-12)
  eigvals = np.array([0.8, 0.08, 0.008])
  stopped = np.asarray(gd_filter(eigvals, learning_rate=rate, steps=steps))
  np.testing.assert_allclose(stopped / (eigvals / (eigvals + alpha)) - 1, [0.24, 0.038, 0.0040], rtol=0.02)


def test_without_curvature_the_approximation_is_exact(x64):
  zero = np.array([0.0, 1e-12])
  alphas = early_stopping_alpha(learning_rate=0.1, steps=20, eigvals=zero)
  np.testing.assert_allclose(alphas, 0.5, rtol=1e-9)
  steps = early_stopping_steps(learning_rate=0.1, alpha=0.5, eigvals=zero)
  np.testing.assert_allclose(steps, 20, rtol=1e-9)
  none = early_stopping_steps(learning_rate=1.0, alpha=0.5, eigvals=np.array([0.5, 1.0, 1.5]))
  np.testing.assert_array_equal(np.isnan(none), [False, True, True])


@pytest.mark.thorough
def test_dtypes_and_refusals():
  assert regularization.early_stopping_alpha(learning_rate=0.1, steps=2).dtype == jnp.float32
  got = regularization.early_stopping_alpha(learning_rate=0.1, steps=2, eigvals=jnp.ones(2, jnp.bfloat16))
  assert got.dtype == jnp.float32
  with pytest.raises(ValueError, match="learning_rate must lie in"):
    regularization.gd_filter(jnp.ones(2), learning_rate=0.0, steps=1)
  with pytest.raises(ValueError, match="learning_rate must lie in"):
    regularization.early_stopping_steps(learning_rate=-0.1, alpha=1.0)
  with pytest.raises(ValueError, match="steps must lie in"):
    regularization.early_stopping_alpha(learning_rate=0.1, steps=0)
  with pytest.raises(ValueError, match="alpha must lie in"):
    regularization.early_stopping_steps(learning_rate=0.1, alpha=0.0)
  with pytest.raises(ValueError, match="steps must lie in"):
    regularization.gd_filter(jnp.ones(2), learning_rate=0.1, steps=-1)
  with pytest.raises(TypeError, match="eigvals must be floating"):
    regularization.gd_filter(jnp.ones(2, jnp.int32), learning_rate=0.1, steps=1)

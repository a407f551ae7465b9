"""The L1-regularised minimiser under a diagonal Hessian, against a grid and its two printed cases."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from papers import regularization

ALPHA = 0.6


@pytest.mark.thorough
def test_is_the_minimiser_on_a_grid(x64):
  grid = np.linspace(-3, 3, 60001)
  w_star, diagonal = np.array([-2.0, -0.2, 0.0, 0.31, 0.29, 1.5]), np.array([1.0, 0.5, 1.0, 2.0, 2.0, 0.5])
  objective = 0.5 * diagonal[:, None] * (grid - w_star[:, None]) ** 2 + ALPHA * np.abs(grid)
  got = regularization.l1_solution(w_star, diagonal, alpha=ALPHA)
  np.testing.assert_allclose(got, grid[objective.argmin(1)], atol=5.1e-5)


@pytest.mark.thorough
@pytest.mark.claim(
  "regularization",
  "L1 regularization",
  "for w* > 0: zero where w* is at most alpha / H, shifted by alpha / H elsewhere; and mirrored for w* < 0",
)
def test_zero_or_shifted(x64):
  w_star, diagonal = np.random.default_rng(0).normal(size=(2, 50))
  diagonal = np.abs(diagonal) + 0.1
  at = ALPHA / diagonal
  got = np.asarray(regularization.l1_solution(w_star, diagonal, alpha=ALPHA))
  zero = np.abs(w_star) <= at
  assert 5 < zero.sum() < 45
  assert not got[zero].any()
  positive, negative = ~zero & (w_star > 0), ~zero & (w_star < 0)
  np.testing.assert_allclose(got[positive], (w_star - at)[positive], rtol=1e-14)
  np.testing.assert_allclose(got[negative], (w_star + at)[negative], rtol=1e-14)


@pytest.mark.thorough
def test_directions_without_curvature():
  w_star, diagonal = jnp.array([1.0, 1.0]), jnp.array([0.0, 1.0])
  np.testing.assert_array_equal(regularization.l1_solution(w_star, diagonal, alpha=0.5), [0, 0.5])
  np.testing.assert_array_equal(regularization.l1_solution(w_star, diagonal, alpha=0.0), [1, 1])
  solution = lambda *arrays: regularization.l1_solution(*arrays, alpha=0.5).sum()
  assert all(np.isfinite(g).all() for g in jax.grad(solution, (0, 1))(w_star, diagonal))


def test_refusals():
  with pytest.raises(ValueError, match="hessian_diagonal must have shape"):
    regularization.l1_solution(jnp.ones(2), jnp.ones(3), alpha=1.0)
  with pytest.raises(ValueError, match="alpha must lie in"):
    regularization.l1_solution(jnp.ones(2), jnp.ones(2), alpha=-1.0)
  with pytest.raises(TypeError, match="w_star must be floating"):
    regularization.l1_solution(jnp.ones(2, jnp.int32), jnp.ones(2), alpha=1.0)

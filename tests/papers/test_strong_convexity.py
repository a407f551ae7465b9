"""The PL ratio and the other constants of functions whose Hessian is known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract import jit

from papers.adaptive_sgd import landscape_constants, pl_ratio


def quadratic(x, h, *, key):
  return 0.5 * x @ h @ x


def symmetric(values):
  q = np.linalg.qr(np.random.default_rng(0).normal(size=(len(values), len(values))))[0]
  return q * np.asarray(values) @ q.T


@pytest.mark.claim(
  "adaptive_sgd",
  "Differences of Convex vs. Non-Convex",
  "printed is norm(grad f)^2 >= mu (f - f*); the usual PL inequality has a half: the constants differ by 2",
  status="erratum",
)
def test_the_pl_ratio_of_a_quadratic(x64):
  values = np.array([0.5, 1.0, 4.0])
  h = symmetric(values)
  points = np.concatenate([np.random.default_rng(1).normal(size=(200, 3)), np.linalg.eigh(h)[1].T])
  ratios = np.asarray(jit(jax.vmap(lambda x: pl_ratio(quadratic, x, h)))(points))
  squares, left = ((points @ h) ** 2).sum(1), 0.5 * np.einsum("ni,ij,nj->n", points, h, points)
  np.testing.assert_allclose(ratios, 0.5 * squares / left, rtol=1e-10)
  np.testing.assert_allclose([ratios.min(), ratios.max()], [0.5, 4.0], rtol=1e-10)
  np.testing.assert_allclose((squares / left).min(), 2 * values.min(), rtol=1e-10)


@pytest.mark.thorough
@pytest.mark.claim(
  "adaptive_sgd",
  "Differences of Convex vs. Non-Convex",
  "the further from the optimum the larger the gradient, which points towards it: of a convex function; at a "
  "stationary point that is none the constants are 0 and below",
)
def test_the_constants_of_a_quadratic_and_of_a_saddle(x64):
  h = symmetric([0.5, 1.0, 4.0])
  star, points = np.array([1.0, -2.0, 0.5]), np.random.default_rng(2).normal(size=(300, 3))
  points = np.concatenate([points, star + np.linalg.eigh(h)[1].T])
  f = lambda x, h, *, key: 7.0 + quadratic(x - star, h, key=key)
  constants = jit(jax.vmap(lambda x: landscape_constants(f, x, h, minimiser=star)))(points)
  away = points - star
  squares = (away**2).sum(1)
  np.testing.assert_allclose(
    constants.error_bound, np.linalg.norm(away @ h, axis=1) / np.sqrt(squares), rtol=1e-9
  )
  np.testing.assert_allclose(
    constants.monotonicity, 0.5 * np.einsum("ni,ij,nj->n", away, h, away) / squares, rtol=1e-9
  )
  np.testing.assert_allclose([np.min(c) for c in constants], [0.5, 0.5, 0.25], rtol=1e-9)
  # Between two minima the gradient is 0, and on its way there points away from the one.
  double = lambda x, batch, *, key: jnp.square(x**2 - 1).sum()
  middle = landscape_constants(double, jnp.zeros(1), None, minimiser=jnp.ones(1))
  np.testing.assert_allclose([middle.pl, middle.error_bound], 0, atol=1e-12)
  assert landscape_constants(double, -0.5 * jnp.ones(1), None, minimiser=jnp.ones(1)).monotonicity < 0

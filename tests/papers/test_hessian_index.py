"""The index of functions whose Hessian is known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract import jit

from papers.adaptive_sgd._hessian_index import hessian_index

WHERE = "Stationary Points in High Dimensions"


def quadratic(x, h, *, key):
  return 0.5 * x @ h @ x


def symmetric(values, seed=0):
  q = np.linalg.qr(np.random.default_rng(seed).normal(size=(len(values), len(values))))[0]
  return q * np.asarray(values) @ q.T


@pytest.mark.thorough
@pytest.mark.claim("adaptive_sgd", WHERE, "index: 0 at a minimum, 1 at a maximum, between them at a saddle")
def test_the_index_of_known_hessians(x64):
  saddle = lambda x, batch, *, key: x[0] ** 2 - x[1] ** 2 + 2 * x[2] ** 2
  np.testing.assert_allclose(hessian_index(saddle, jnp.zeros(3), None).negative, 1 / 3)
  index = jit(lambda h: hessian_index(quadratic, jnp.zeros(6), h))
  for values, negative, zero in (
    ([1.0, 2, 3, 4, 5, 6], 0, 0),
    ([-1.0, -2, -3, -4, -5, -6], 1, 0),
    ([-1.0, 2, 0, 0, -1e-3, 6], 2 / 6, 2 / 6),
  ):
    got = index(symmetric(values))
    np.testing.assert_allclose([got.negative, got.zero], [negative, zero], atol=1e-12)


@pytest.mark.claim(
  "adaptive_sgd", WHERE, "printed is f + J D + D^T H D; the second-order term has a half", status="erratum"
)
def test_the_second_order_term_has_a_half(x64):
  h, x = symmetric([1.0, -2.0, 4.0]), np.array([0.3, -1.0, 2.0])
  f = lambda x: jnp.sum(jnp.cos(x)) + quadratic(x, h, key=None)
  j, hessian = jit(lambda x: (jax.grad(f)(x), jax.hessian(f)(x)))(x)
  d = 1e-3 * np.array([1.0, 0.7, -0.4])
  truth = f(x + d) - f(x)
  halved, printed = j @ d + 0.5 * d @ hessian @ d, j @ d + d @ hessian @ d
  assert abs(halved - truth) < 1e-3 * abs(printed - truth)


@pytest.mark.thorough
def test_symmetries_are_zero_eigenvalues(x64):
  """(ab - 1)^2 is the same along a hyperbola: at its minimum one of two eigenvalues is 0."""
  loss = lambda w, batch, *, key: (w["a"] * w["b"] - 1) ** 2
  got = hessian_index(loss, {"a": jnp.asarray(2.0), "b": jnp.asarray(0.5)}, None)
  np.testing.assert_allclose([got.negative, got.zero], [0, 0.5])
  at_the_origin = hessian_index(loss, {"a": jnp.asarray(0.0), "b": jnp.asarray(0.0)}, None)
  np.testing.assert_allclose([at_the_origin.negative, at_the_origin.zero], [0.5, 0])


@pytest.mark.thorough
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_hessian_that_is_not_finite_has_no_index(bad):
  """One entry is enough. Neither fraction may be a number, which would say minimum."""
  h = np.diag([1.0, bad, 2.0])
  assert np.isnan([*hessian_index(quadratic, jnp.zeros(3), h)]).all()

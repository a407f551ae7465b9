"""Gradient and Jacobian penalties, and noise on the inputs as a penalty."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxreg.penalties import gradient_penalty, jacobian_penalty


def expected(function, std, points=12):
  """E f(x + noise), exactly up to degree 23: Gauss-Hermite nodes in two dimensions."""
  nodes, weights = np.polynomial.hermite_e.hermegauss(points)
  weights = weights / weights.sum()
  pairs = itertools.product(range(points), repeat=2)
  return sum(weights[i] * weights[j] * function(std * np.array([nodes[i], nodes[j]])) for i, j in pairs)


@pytest.mark.claim(
  "regularization", "dataset augmentation", "noise on the inputs is a penalty on the norm of the weights"
)
@pytest.mark.parametrize("std", [0.01, 1.0])
def test_input_noise_on_a_linear_model_is_the_squared_norm(std, x64):
  w, x, y = np.array([1.5, -0.5]), np.array([0.3, 2.0]), 0.7
  noisy = expected(lambda noise: (w @ (x + noise) - y) ** 2, std)
  penalty = gradient_penalty(lambda w, x: jnp.matmul(x, w), jnp.asarray(w), jnp.asarray(x)[None])[0]
  np.testing.assert_allclose(penalty, (w**2).sum(), rtol=1e-14)
  np.testing.assert_allclose(noisy, (w @ x - y) ** 2 + std**2 * penalty, rtol=1e-12)


@pytest.mark.claim(
  "regularization",
  "dataset augmentation",
  "beyond linear models noise adds the gradient's norm and, of the same order, residual times Laplacian",
  status="erratum",
  size="toy",
)
def test_input_noise_on_a_network_has_a_second_term(x64):
  w, x, y = np.array([1.5, -0.5]), np.array([0.3, 0.4]), -0.6
  apply = lambda w, x: jnp.tanh(jnp.matmul(x, w))
  penalty = float(gradient_penalty(apply, jnp.asarray(w), jnp.asarray(x)[None])[0])
  out = np.tanh(w @ x)
  laplacian = -2 * out * (1 - out**2) * (w**2).sum()
  np.testing.assert_allclose(penalty, (1 - out**2) ** 2 * (w**2).sum(), rtol=1e-12)
  excess = lambda std: (expected(lambda n: (np.tanh(w @ (x + n)) - y) ** 2, std) - (out - y) ** 2) / std**2
  errors = [abs(excess(std) - penalty - (out - y) * laplacian) for std in (0.1, 0.05, 0.025)]
  assert errors[-1] < 0.02
  np.testing.assert_allclose(np.divide(errors[:-1], errors[1:]), 4, rtol=0.1)  # of order std^2
  assert abs((out - y) * laplacian) > 0.3 * penalty  # so the gradient alone is wrong, however small the noise


def network(params, x):
  return jnp.matmul(jnp.tanh(jnp.matmul(x, params["first"])), params["last"])


def inputs(seed=0, outputs=4):
  rng = np.random.default_rng(seed)
  draw = lambda *shape: jnp.asarray(rng.normal(size=shape))
  return {"first": draw(3, 5), "last": draw(5, outputs)}, draw(6, 3)


def jacobian(params, x):
  """`[batch, outputs, inputs]`, from the chain rule."""
  first, last = np.asarray(params["first"]), np.asarray(params["last"])
  slope = 1 - np.tanh(np.asarray(x) @ first) ** 2
  return np.einsum("ih,bh,ho->boi", first, slope, last)


@pytest.mark.thorough
def test_jacobian_penalty_is_the_frobenius_norm(x64):
  params, x = inputs()
  want = (jacobian(params, x) ** 2).sum((1, 2))
  np.testing.assert_allclose(jacobian_penalty(network, params, x), want, rtol=1e-12)
  as_images = lambda params, x: network(params, x).reshape(-1, 2, 2)
  np.testing.assert_allclose(jacobian_penalty(as_images, params, x), want, rtol=1e-12)


@pytest.mark.thorough
def test_one_output_is_the_gradient_penalty(x64):
  params, x = inputs(outputs=1)
  want = (jacobian(params, x) ** 2).sum((1, 2))
  np.testing.assert_allclose(gradient_penalty(network, params, x), want, rtol=1e-12)
  # On the unit sphere of one dimension, which is -1 and 1, a projection is exact.
  got = jacobian_penalty(network, params, x, num_samples=1, key=jax.random.key(0))
  np.testing.assert_allclose(got, want, rtol=1e-12)


@pytest.mark.thorough
def test_random_projections_are_unbiased(x64):
  params, x = inputs()
  want = (jacobian(params, x) ** 2).sum((1, 2))
  draw = jax.jit(lambda key: jacobian_penalty(network, params, x, num_samples=1000, key=key))
  got = draw(jax.random.key(0))
  # C |v'J|^2 lies between 0 and C times the largest squared singular value: this bounds its deviation.
  largest = np.linalg.norm(jacobian(params, x), ord=2, axis=(1, 2)) ** 2
  sigma = np.sqrt(want * (4 * largest - want) / 1000)
  assert (np.abs(got - want) < 4 * sigma).all()
  assert (sigma < 0.1 * want).all()
  np.testing.assert_array_equal(got, draw(jax.random.key(0)))
  assert (got != draw(jax.random.key(1))).all()

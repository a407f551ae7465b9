"""Spectral normalisation against singular value decompositions, and that the kernel is left alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract import jit

from jaxreg import reparam

spectral_norm = jit(reparam.spectral_norm, static_argnames=("num_steps", "axis"))


def singular(kernel):
  return np.linalg.svd(np.asarray(kernel, np.float64).reshape(-1, kernel.shape[-1]), compute_uv=False)


@pytest.mark.thorough
@pytest.mark.parametrize("shape", [(8, 5), (3, 3, 2, 4)])
def test_it_converges_to_a_largest_singular_value_of_1(shape):
  kernel = 3 * jax.random.normal(jax.random.key(0), shape)
  u = jax.random.normal(jax.random.key(1), kernel.shape[-1:])
  tops = []
  for _ in range(60):
    normalised, u = spectral_norm(kernel, u)
    tops.append(singular(normalised)[0])
  # sigma never exceeds the norm and grows: the result comes down to 1 from above.
  assert min(tops) > 1 - 1e-5
  assert (np.diff(tops) < 1e-5).all()
  assert tops[0] > 1.001
  np.testing.assert_allclose(tops[-1], 1, rtol=1e-4)
  np.testing.assert_allclose(singular(normalised), singular(kernel) / singular(kernel)[0], rtol=1e-3)


def test_other_layouts_have_an_axis():
  """Of a convolution `[out, in, height, width]` it is the norm of the matrix of its rows."""
  kernel = jax.random.normal(jax.random.key(0), (3, 2, 2, 2))
  u = jax.random.normal(jax.random.key(1), (3,))
  normalised, u = spectral_norm(kernel, u, num_steps=100, axis=(1, 2, 3))
  assert u.shape == (3,)
  want = np.linalg.svd(np.asarray(kernel, np.float64).reshape(3, -1), compute_uv=False)
  np.testing.assert_allclose(normalised, kernel / want[0], rtol=1e-4)
  for shape in ((0, 3), (3, 0)):
    empty = jnp.zeros(shape)
    assert spectral_norm(empty, jnp.ones(shape[1]))[0].shape == shape


@pytest.mark.thorough
@pytest.mark.parametrize("iterations", [0, 100])
def test_gradient_is_that_of_the_quotient_with_the_vectors_fixed(iterations):
  """d sigma / d W = v u^T, also before they are singular vectors: <d, W> = 0, so scale changes nothing."""
  kernel = jax.random.normal(jax.random.key(0), (6, 4))
  u = jax.random.normal(jax.random.key(1), kernel.shape[-1:])
  matrix = np.asarray(kernel, np.float64)
  if iterations:
    _, u = spectral_norm(kernel, u, num_steps=iterations)
  left = matrix @ np.asarray(u, np.float64)
  left = left / np.linalg.norm(left)
  right = matrix.T @ left
  right = right / np.linalg.norm(right)
  sigma = left @ matrix @ right
  assert (abs(sigma / singular(kernel)[0] - 1) < 1e-5) == bool(iterations)
  weights = jax.random.normal(jax.random.key(2), (6, 4))
  loss = lambda k, u: (weights * spectral_norm(k, u)[0]).sum()
  by_kernel, by_u = jit(jax.grad(loss, (0, 1)))(kernel, u)
  w = np.asarray(weights, np.float64)
  want = w / sigma - (w * matrix).sum() / sigma**2 * np.outer(left, right)
  np.testing.assert_allclose(by_kernel, want, rtol=1e-3, atol=1e-4)
  np.testing.assert_allclose((by_kernel * kernel).sum(), 0, atol=1e-4)
  np.testing.assert_array_equal(by_u, 0)


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e30])
def test_any_scale(scale):
  kernel = scale * jax.random.normal(jax.random.key(0), (6, 4))
  u = jax.random.normal(jax.random.key(1), kernel.shape[-1:])
  normalised, u = spectral_norm(kernel, u, num_steps=50)
  assert np.isfinite(u).all()
  np.testing.assert_allclose(singular(normalised)[0], float(scale > 0), rtol=1e-3)
  gradient = jit(jax.grad(lambda k: spectral_norm(k, u)[0].sum()))(kernel)
  assert np.isfinite(gradient).all()


@pytest.mark.thorough
def test_power_iteration_outlives_a_vector_of_0():
  old = jnp.array([0.6, 0.8])
  np.testing.assert_array_equal(spectral_norm(jnp.zeros((3, 2)), old)[1], old)
  for alive in (0, 1):
    kernel = jnp.zeros((2, 2)).at[:, alive].set(jnp.array([2.0, 1.0]))
    for start in (jnp.zeros(2), jnp.eye(2)[1 - alive]):  # the second is mapped to 0
      normalised, u = spectral_norm(kernel, start)
      np.testing.assert_allclose(normalised, kernel / np.sqrt(5), rtol=1e-6)
      np.testing.assert_allclose(u, np.eye(2)[alive], rtol=1e-6)


def test_what_does_not_fit_is_refused():
  kernel = jnp.ones((3, 2))
  with pytest.raises(ValueError, match="u must have shape"):
    spectral_norm(kernel, jnp.ones(3))
  with pytest.raises(ValueError, match="num_steps"):
    spectral_norm(kernel, jnp.ones(2), num_steps=0)
  with pytest.raises(ValueError, match="kernel must have shape"):
    spectral_norm(jnp.ones(3), jnp.ones(3))

"""Sparse representations: the lecture's example, L1 of activations, divergence of mean activations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract import jit

from jaxreg.penalties import activity_covariance, activity_variance, kl_sparsity, l1_activity

A = np.array(
  [[4, 0, 0, -2, 0, 0], [0, 0, -1, 0, 3, 0], [0, 5, 0, 0, 0, 0], [1, 0, 0, -1, 0, -4], [1, 0, 0, 0, -5, 0]]
)
X = np.array([2, 3, -2, -5, 1, 4])
B = np.array(
  [
    [3, -1, 2, -5, 4, 1],
    [4, 2, -3, -1, 1, 3],
    [-1, 5, 4, 2, -3, -2],
    [3, 1, 2, -3, 0, -3],
    [-5, 4, -2, 2, -5, -1],
  ]
)
H = np.array([0, 2, 0, 0, -3, 0])


@pytest.mark.thorough
@pytest.mark.claim(
  "regularization",
  "sparse representations",
  "Bh = (-14, 1, 1, 2, 23); the third entry is 19",
  status="erratum",
)
def test_sparse_parameters_and_sparse_representations():
  np.testing.assert_array_equal(A @ X, [18, 5, 15, -9, -3])
  np.testing.assert_array_equal(B @ H, [-14, 1, 19, 2, 23])
  assert [(X == 0).sum(), (H == 0).sum(), (A == 0).sum(), (B == 0).sum()] == [0, 4, 20, 1]
  assert l1_activity(jnp.asarray(H[None], jnp.float32)) == 5


@pytest.mark.thorough
@pytest.mark.claim(
  "regularization", "sparse representations", "the penalty is alpha times the L1 norm of the representation"
)
def test_l1_activity_is_one_value_an_example_with_no_gradient_at_zero():
  h = jnp.asarray(np.random.default_rng(0).normal(size=(4, 3, 2)), jnp.float32).at[0, 0].set(0.0)
  got = l1_activity(h)
  np.testing.assert_allclose(got, np.abs(h).sum((1, 2)), rtol=1e-6)
  # Twice the batch: the mean that an objective takes is the same, a sum would double.
  np.testing.assert_allclose(l1_activity(jnp.concatenate([h, h])).mean(), got.mean(), rtol=1e-6)
  np.testing.assert_array_equal(jax.grad(lambda h: l1_activity(h).sum())(h), np.sign(h))


def test_kl_sparsity_is_the_divergence_of_the_mean(x64):
  h = np.random.default_rng(1).uniform(size=(6, 2, 3))
  p, q = 0.2, h.mean((0, 1))
  want = [p * np.log(p / m) + (1 - p) * np.log((1 - p) / (1 - m)) for m in q]
  divergence = jit(lambda h: kl_sparsity(h, target=p))
  np.testing.assert_allclose(divergence(h), want, rtol=1e-12)
  np.testing.assert_allclose(divergence(np.full((5, 2), p)), 0, atol=1e-15)


def test_kl_sparsity_leads_away_from_dead_and_saturated_units():
  h = jnp.array([[0.0, 1.0, 0.05]] * 4)
  divergence = lambda h: kl_sparsity(h, target=0.05)
  value, gradient = jit(divergence)(h), jit(jax.grad(lambda h: divergence(h).sum()))(h)
  assert np.isfinite(value).all()
  assert np.isfinite(gradient).all()
  assert (gradient[:, 0] < -1).all()
  assert (gradient[:, 1] > 1).all()
  np.testing.assert_allclose(gradient[:, 2], 0, atol=1e-6)
  assert value[0] > 0.5
  assert value[1] > 10


@pytest.mark.thorough
def test_kl_sparsity_of_padded_and_divided_batches():
  h = np.random.default_rng(2).uniform(size=(8, 3)).astype(np.float32)
  whole = jit(kl_sparsity)(h)
  padded = np.concatenate([h, np.full((4, 3), np.nan, np.float32)])
  weights = np.repeat(np.float32([1, 0]), [8, 4])
  of_padded = lambda h: jax.vjp(lambda h: kl_sparsity(h, weights=weights), h)
  value, gradient = jit(lambda h: (of_padded(h)[0], of_padded(h)[1](jnp.ones(3))[0]))(padded)
  np.testing.assert_allclose(value, whole, rtol=1e-6)
  assert np.isfinite(gradient).all()
  assert not gradient[8:].any()
  parts = h.reshape(4, 2, 3)
  over_all = jit(jax.vmap(lambda h: kl_sparsity(h, axis_name="data"), axis_name="data"))(parts)
  np.testing.assert_allclose(over_all, np.broadcast_to(whole, (4, 3)), rtol=1e-5)
  assert np.abs(jit(jax.vmap(kl_sparsity))(parts).mean(0) - whole).max() > 1e-2
  # Of 12 examples, 3, 3 and 2 count on three devices.
  order = np.array([0, 1, 2, 8, 3, 4, 5, 9, 6, 7, 10, 11])
  uneven, own = padded[order].reshape(3, 4, 3), weights[order].reshape(3, 4)
  over_uneven = jax.vmap(lambda h, w: kl_sparsity(h, weights=w, axis_name="data"), axis_name="data")
  np.testing.assert_allclose(jit(over_uneven)(uneven, own), np.broadcast_to(whole, (3, 3)), rtol=1e-5)


def test_variance_and_covariance_are_numpy_s(x64):
  """Over all axes but the last."""
  h = np.random.default_rng(3).normal(size=(5, 2, 4)) * [0.1, 0.5, 1, 3]
  rows = h.reshape(-1, 4)
  gap = np.maximum(0, 1.5 - np.sqrt(rows.var(0, ddof=1) + 0.01))
  np.testing.assert_allclose(jit(lambda h: activity_variance(h, target=1.5, eps=0.01))(h), gap, rtol=1e-12)
  covariance = np.cov(rows.T)
  np.testing.assert_allclose(
    jit(activity_covariance)(h), (covariance**2).sum(0) - np.diag(covariance) ** 2, rtol=1e-10
  )


def test_small_covariances_keep_their_digits():
  """Squares of 1e-4 beside variances of 1 and 100, which float32 cannot hold in one sum."""
  draws = np.random.default_rng(4).normal(size=(64, 4))
  basis = np.linalg.qr(np.concatenate([np.ones((64, 1)), draws], axis=1))[0][:, 1:] * np.sqrt(63)
  h = np.float32(basis * [10, 1, 1, 1] + 1e-4 * basis[:, [1, 0, 3, 2]])
  covariance = np.cov(np.float64(h).T)
  np.fill_diagonal(covariance, 0)
  np.testing.assert_allclose(jit(activity_covariance)(h), (covariance**2).sum(0), rtol=0.05)


def test_a_collapsed_unit_leaves_its_constant_only_by_noise():
  """The gradient of a constant unit is 0 and finite; of one that is nearly constant it drives apart."""
  constant = jnp.ones((4, 1))
  gradient = jit(jax.grad(lambda h: activity_variance(h).sum()))
  np.testing.assert_array_equal(gradient(constant), 0)
  nearly = constant + 0.01 * jnp.array([[1.0], [-1.0], [1.0], [-1.0]])
  assert (gradient(nearly) * (nearly - 1) < 0).all()
  for function in (activity_variance, activity_covariance):  # one example has no variance
    assert np.isfinite(jit(jax.grad(lambda h, function=function: function(h).sum()))(jnp.ones((1, 3)))).all()


@pytest.mark.parametrize("function", [activity_variance, activity_covariance])
def test_moments_of_padded_and_divided_batches(function):
  h = np.random.default_rng(2).normal(size=(8, 3)).astype(np.float32)
  whole = jit(function)(h)
  padded = np.concatenate([h, np.full((4, 3), np.nan, np.float32)])
  weights = np.repeat(np.float32([1, 0]), [8, 4])
  value, pull = jax.vjp(lambda h: function(h, weights=weights), padded)
  np.testing.assert_allclose(value, whole, rtol=1e-5)
  (gradient,) = pull(jnp.ones(3))
  assert np.isfinite(gradient).all()
  assert not gradient[8:].any()
  order = np.array([0, 1, 2, 8, 3, 4, 5, 9, 6, 7, 10, 11])
  parts, own = padded[order].reshape(3, 4, 3), weights[order].reshape(3, 4)
  over_all = jax.vmap(lambda h, w: function(h, weights=w, axis_name="data"), axis_name="data")
  np.testing.assert_allclose(jit(over_all)(parts, own), np.broadcast_to(whole, (3, 3)), rtol=1e-5)

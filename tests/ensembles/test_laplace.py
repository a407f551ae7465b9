"""The last layer's Laplace approximation against `jax.hessian` and NumPy's inverse, in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from contract import jit

from jaxreg import ensembles

N, D, K, PRECISION = 12, 3, 4, 0.7
rng = np.random.default_rng(0)
FEATURES, KERNEL, NEW = rng.normal(size=(N, D)), rng.normal(size=(D, K)), rng.normal(size=(5, D))
LABELS = rng.integers(K, size=N)


@pytest.fixture
def x64():
  with jax.enable_x64(True):
    yield


def variance(kernel, new, structure):
  curvature = ensembles.laplace_curvature(FEATURES, FEATURES @ kernel, structure=structure)
  return ensembles.laplace_variance(ensembles.laplace_posterior(curvature, precision=PRECISION), new)


def of_covariance(covariance, new):
  """The variance of each logit, by the Jacobian of the logits in the kernel, row by row."""
  jacobians = [np.kron(features[None], np.eye(K)) for features in new]
  return np.stack([np.diag(j @ covariance @ j.T) for j in jacobians])


@pytest.mark.thorough
def test_dense_is_the_inverse_of_the_hessian(x64):
  def objective(kernel):
    log_probs = jax.nn.log_softmax(FEATURES @ kernel.reshape(D, K))
    return -log_probs[np.arange(N), LABELS].sum() + PRECISION / 2 * (kernel**2).sum()

  hessian = np.asarray(jit(jax.hessian(objective))(KERNEL.ravel()))
  got = jit(lambda kernel: variance(kernel, NEW, "dense"))(KERNEL)
  np.testing.assert_allclose(got, of_covariance(np.linalg.inv(hessian), NEW), rtol=1e-9)


def test_kronecker_is_the_product_of_its_factors(x64):
  p = oracles.softmax(FEATURES @ KERNEL)
  outer = np.mean([np.diag(q) - np.outer(q, q) for q in p], axis=0)
  covariance = np.linalg.inv(np.kron(FEATURES.T @ FEATURES, outer) + PRECISION * np.eye(D * K))
  got = jit(lambda kernel: variance(kernel, NEW, "kronecker"))(KERNEL)
  np.testing.assert_allclose(got, of_covariance(covariance, NEW), rtol=1e-9)


def test_both_agree_where_all_examples_are_equally_sure(x64):
  dense, kronecker = (jit(variance, static_argnums=2)(0 * KERNEL, NEW, s) for s in ("dense", "kronecker"))
  np.testing.assert_allclose(dense, kronecker, rtol=1e-9)


@pytest.mark.thorough
@pytest.mark.parametrize("structure", ["dense", "kronecker"])
def test_batches_add_up_and_padding_does_not_count(x64, structure):
  fit = lambda rows, **more: ensembles.laplace_curvature(
    FEATURES[rows], FEATURES[rows] @ KERNEL, structure=structure, **more
  )
  both = jax.tree.map(jnp.add, fit(slice(5)), fit(slice(5, N)))
  padded = np.concatenate([FEATURES, np.full((2, D), np.nan)])
  weights = np.float64(np.arange(N + 2) < N)
  other = ensembles.laplace_curvature(padded, padded @ KERNEL, structure=structure, weights=weights)
  for got in (both, other):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14), got, fit(slice(None)))


def test_the_prediction_is_nearly_the_integral_over_a_gaussian():
  """For two classes, one of them certain: MacKay's approximation is right to 0.02."""
  nodes, weights = np.polynomial.hermite_e.hermegauss(80)
  for mean, var in ((0.5, 1.0), (2.0, 4.0), (-3.0, 9.0)):
    exact = (weights * oracles.sigmoid(mean + np.sqrt(var) * nodes)).sum() / weights.sum()
    log_probs = ensembles.probit_log_probs(jnp.array([mean, 0.0]), jnp.array([var, 0.0]))
    assert np.exp(log_probs[0]) == pytest.approx(exact, abs=0.02)
    assert np.exp(log_probs[0]) == pytest.approx(
      oracles.sigmoid(mean / np.sqrt(1 + np.pi * var / 8)), rel=1e-5
    )


@pytest.mark.thorough
def test_refusals():
  features, logits = jnp.ones((2, D)), jnp.ones((2, K))
  with pytest.raises(ValueError, match="structure must be"):
    ensembles.laplace_curvature(features, logits, structure="diagonal")  # type: ignore[arg-type]
  with pytest.raises(ValueError, match=r"got \(2, 3\) and \(1, 4\)"):
    ensembles.laplace_curvature(features, logits[:1])
  curvature = ensembles.laplace_curvature(features, logits)
  with pytest.raises(ValueError, match="precision must lie in"):
    ensembles.laplace_posterior(curvature, precision=0.0)
  with pytest.raises(ValueError, match=r"features must be \[batch, 3\]"):
    ensembles.laplace_variance(ensembles.laplace_posterior(curvature, precision=1.0), logits)


@pytest.mark.thorough
@pytest.mark.parametrize("structure", ["dense", "kronecker"])
def test_a_regression_s_posterior_is_bayesian_linear_regression(x64, structure):
  """Two outputs with noise of their own: each has the posterior of a linear model."""
  noise = np.array([0.5, 2.0])
  curvature = ensembles.laplace_curvature(
    FEATURES, np.zeros((N, 2)), structure=structure, noise_variance=noise
  )
  got = ensembles.laplace_variance(ensembles.laplace_posterior(curvature, precision=PRECISION), NEW)
  inverses = [np.linalg.inv(FEATURES.T @ FEATURES / value + PRECISION * np.eye(D)) for value in noise]
  want = np.stack([np.einsum("nd,de,ne->n", NEW, inverse, NEW) for inverse in inverses], axis=1)
  np.testing.assert_allclose(got, want, rtol=1e-9)
  with pytest.raises(ValueError, match="noise_variance"):
    ensembles.laplace_curvature(FEATURES, np.zeros((N, 2)), noise_variance=0.0)

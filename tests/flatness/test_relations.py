import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxreg import flatness


@pytest.fixture(autouse=True)
def _x64():
  with jax.enable_x64(True):
    yield


@pytest.mark.claim(
  "flatness", "section 3.6", "the alignment is Tr(H Sigma), beside isotropic noise of the same trace"
)
def test_alignment_of_matrices():
  generator = np.random.default_rng(0)
  root = generator.normal(size=(6, 6))
  hessian, covariance = root @ root.T, np.diag(np.arange(1.0, 7))
  found = flatness.hessian_variance_alignment(jnp.asarray(hessian), covariance)
  assert float(found.trace) == pytest.approx(np.trace(hessian @ covariance))
  isotropic = np.trace(hessian @ (np.trace(covariance) / 6 * np.eye(6)))
  assert float(found.isotropic) == pytest.approx(isotropic)
  assert float(found.ratio) == pytest.approx(np.trace(hessian @ covariance) / isotropic)


def test_alignment_is_one_for_isotropic_noise_and_the_size_for_one_shared_direction():
  hessian = jnp.diag(jnp.array([4.0, 0, 0, 0]))
  assert float(flatness.hessian_variance_alignment(hessian, 3 * np.eye(4)).ratio) == pytest.approx(1)
  assert float(flatness.hessian_variance_alignment(hessian, hessian).ratio) == pytest.approx(4)


def test_alignment_of_samples_and_operators():
  samples = np.random.default_rng(0).normal(size=(50, 5)) + 2
  matrix = np.diag([5.0, 4, 3, 2, 1])
  expected = flatness.hessian_variance_alignment(jnp.asarray(matrix), np.cov(samples.T, ddof=0))
  dense = flatness.hessian_variance_alignment(jnp.asarray(matrix), samples=samples)
  product = flatness.hessian_variance_alignment(lambda v: matrix @ v, samples=samples, hessian_trace=15.0)
  for found in (dense, product):
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_alignment_of_packed_blocks():
  generator = np.random.default_rng(0)
  blocks = [flatness.DenseBlock(jnp.asarray(generator.normal(size=(6, 10))), 3, 3, True) for _ in range(2)]
  packed = flatness.hessian_variance_alignment(*blocks)
  dense = flatness.hessian_variance_alignment(*(block.matrix() for block in blocks))
  np.testing.assert_allclose(packed, dense, rtol=1e-12)
  other = flatness.DenseBlock(jnp.zeros((3, 10)), 2, 3, True)
  with pytest.raises(ValueError, match="other must describe the same layer, 3 inputs, 3 units"):
    flatness.hessian_variance_alignment(blocks[0], other)


def test_bad_arguments():
  with pytest.raises(ValueError, match="one of covariance and samples must be given"):
    flatness.hessian_variance_alignment(jnp.eye(2))
  with pytest.raises(ValueError, match="samples and hessian_trace must be given when hessian is an operator"):
    flatness.hessian_variance_alignment(lambda v: v, samples=np.ones((3, 2)))
  with pytest.raises(ValueError, match=r"hessian and covariance must have one shape"):
    flatness.hessian_variance_alignment(jnp.eye(2), np.eye(3))

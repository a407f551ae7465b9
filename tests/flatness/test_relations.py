import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

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
  with pytest.raises(ValueError, match="other must be of the same layer: 3 inputs, 3 units"):
    flatness.hessian_variance_alignment(blocks[0], other)


def test_power_law_is_scipy_s_regression():
  generator = np.random.default_rng(0)
  x = np.exp(generator.normal(size=300))
  y = 3 * x**-2.5 * np.exp(0.2 * generator.normal(size=300))
  found = flatness.power_law_fit(x, y)
  expected = stats.linregress(np.log(x), np.log(y))
  assert float(found.slope) == pytest.approx(expected.slope)
  assert float(found.intercept) == pytest.approx(expected.intercept)
  assert float(found.correlation) == pytest.approx(expected.rvalue)
  # White's error is the classical one where the scatter is even.
  np.testing.assert_allclose(np.diff(found.slope_interval), 2 * 1.96 * expected.stderr, rtol=0.15)
  interval = stats.pearsonr(np.log(x), np.log(y)).confidence_interval(0.95)
  np.testing.assert_allclose(found.correlation_interval, interval, rtol=1e-6)


def test_intervals_cover_the_truth():
  """Scatter that grows along the line, 500 times: 95 per cent within 3 standard errors of the count."""

  def covered(key):
    first, second = jax.random.split(key)
    u = jax.random.normal(first, (200,))
    v = 2 * u + (0.1 + jnp.abs(u)) * jax.random.normal(second, (200,))
    low, high = flatness.power_law_fit(jnp.exp(u), jnp.exp(v)).slope_interval
    return (low < 2) & (high > 2)

  share = jax.jit(jax.vmap(covered))(jax.random.split(jax.random.key(0), 500)).mean()
  assert share == pytest.approx(0.95, abs=0.03)


def test_points_without_a_logarithm_do_not_count():
  x, y = np.array([1.0, 2, 4, 8, 16, 0, 3, np.inf]), np.array([1.0, 4, 16, 64, 256, 5, -1, 2])
  found = flatness.power_law_fit(x, y)
  assert found.num == 5
  assert float(found.slope) == pytest.approx(2)
  masked = flatness.power_law_fit(x, y, mask=np.arange(8) < 4)
  assert masked.num == 4
  assert np.isnan(flatness.power_law_fit(x[:3], y[:3]).slope)


def test_bad_arguments():
  with pytest.raises(ValueError, match="give either covariance or samples"):
    flatness.hessian_variance_alignment(jnp.eye(2))
  with pytest.raises(ValueError, match="with hessian as an operator give samples and hessian_trace"):
    flatness.hessian_variance_alignment(lambda v: v, samples=np.ones((3, 2)))
  with pytest.raises(ValueError, match=r"hessian and covariance must have one shape"):
    flatness.hessian_variance_alignment(jnp.eye(2), np.eye(3))
  with pytest.raises(ValueError, match=r"y must have shape \(3,\), got \(2,\)"):
    flatness.power_law_fit(np.ones(3), np.ones(2))
  with pytest.raises(ValueError, match="mask must be booleans"):
    flatness.power_law_fit(np.ones(3), np.ones(3), mask=np.ones(3))

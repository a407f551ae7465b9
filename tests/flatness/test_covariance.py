"""Covariances, components and alignment of samples."""

import jax
import jax.numpy as jnp
import nets
import numpy as np
import pytest

from jaxreg import flatness


@pytest.mark.claim("flatness", "definition 3", "the projected variance divides by N, and is v' Sigma v")
@pytest.mark.parametrize("ddof", [0, 1])
def test_covariance_and_projected_variance(ddof):
  with jax.enable_x64(True):
    samples = np.random.default_rng(0).normal(size=(30, 8)) @ np.diag(np.arange(1.0, 9))
    expected = np.cov(samples.T, ddof=ddof)
    np.testing.assert_allclose(flatness.noise_covariance(samples, ddof=ddof), expected, rtol=1e-12)
    directions = np.random.default_rng(1).normal(size=(4, 8))
    projected = flatness.projected_variance(samples, directions, ddof=ddof)
    np.testing.assert_allclose(projected, np.diag(directions @ expected @ directions.T), rtol=1e-12)


@pytest.mark.thorough
@pytest.mark.claim(
  "flatness", "definition 1", "the variance at an eigen-direction is that eigenvalue of the covariance"
)
@pytest.mark.parametrize(("num_samples", "ddof"), [(5, 0), (5, 1), (50, 0), (50, 1)])
def test_principal_components_are_those_of_numpy(num_samples, ddof):
  """Fewer samples than parameters, and more."""
  with jax.enable_x64(True):
    samples = np.random.default_rng(0).normal(size=(num_samples, 12)) @ np.diag(np.arange(1.0, 13)) + 3
    found = flatness.principal_components(samples, ddof=ddof)
    values, vectors = np.linalg.eigh(np.cov(samples.T, ddof=ddof))
    number = min(num_samples - 1, 12)
    np.testing.assert_allclose(found.variances, values[::-1][:number], rtol=1e-10)
    overlap = np.abs(np.sum(np.asarray(found.directions) * vectors.T[::-1][:number], axis=1))
    np.testing.assert_allclose(overlap, 1, rtol=1e-9)
    np.testing.assert_allclose(found.mean, samples.mean(axis=0))
    assert found.rank == number


def test_dead_units_are_no_components():
  """Directions without variance, as dead ReLUs leave, are counted out instead of giving tiny negatives."""
  samples = np.random.default_rng(0).normal(size=(50, 10)).astype(np.float32)
  samples[:, 3:6] = 0
  found = flatness.principal_components(samples)
  assert found.rank == 7
  np.testing.assert_array_equal(found.variances[7:], 0)
  np.testing.assert_array_equal(found.directions[7:], 0)
  assert (np.asarray(found.variances[:7]) > 0).all()


@pytest.mark.thorough
def test_spectrum_is_biased_where_the_projected_variance_is_not():
  """300 samples of isotropic noise in 200 dimensions find eigenvalues far below and far above 1."""
  samples = np.random.default_rng(0).normal(size=(300, 200)).astype(np.float32)
  variances = np.asarray(flatness.principal_components(samples).variances)
  # Marchenko and Pastur: (1 +- sqrt(200 / 300))^2.
  np.testing.assert_allclose(
    variances[[0, -1]], [(1 + np.sqrt(2 / 3)) ** 2, (1 - np.sqrt(2 / 3)) ** 2], rtol=0.25
  )
  projected = np.asarray(flatness.projected_variance(samples, np.eye(200, dtype=np.float32)))
  assert projected.mean() == pytest.approx(1, abs=0.02)
  assert projected.max() < 1.5


@pytest.mark.usefixtures("x64")
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


@pytest.mark.usefixtures("x64")
def test_alignment_is_one_for_isotropic_noise_and_the_size_for_one_shared_direction():
  hessian = jnp.diag(jnp.array([4.0, 0, 0, 0]))
  assert float(flatness.hessian_variance_alignment(hessian, 3 * np.eye(4)).ratio) == pytest.approx(1)
  assert float(flatness.hessian_variance_alignment(hessian, hessian).ratio) == pytest.approx(4)


@pytest.mark.thorough
@pytest.mark.usefixtures("x64")
def test_alignment_of_samples_and_operators():
  samples = np.random.default_rng(0).normal(size=(50, 5)) + 2
  matrix = np.diag([5.0, 4, 3, 2, 1])
  expected = flatness.hessian_variance_alignment(jnp.asarray(matrix), np.cov(samples.T, ddof=0))
  dense = flatness.hessian_variance_alignment(jnp.asarray(matrix), samples=samples)
  product = flatness.hessian_variance_alignment(lambda v: matrix @ v, samples=samples, hessian_trace=15.0)
  for found in (dense, product):
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.usefixtures("x64")
def test_bad_arguments():
  with pytest.raises(ValueError, match="exactly one of covariance and samples must be given"):
    flatness.hessian_variance_alignment(jnp.eye(2))
  with pytest.raises(ValueError, match="samples and hessian_trace must be given when hessian is a function"):
    flatness.hessian_variance_alignment(lambda v: v, samples=np.ones((3, 2)))
  with pytest.raises(ValueError, match=r"hessian and covariance must have one shape"):
    flatness.hessian_variance_alignment(jnp.eye(2), np.eye(3))


NUM, KEY = 150, jax.random.key(0)


def walk(start, steps):
  """The points of a walk, `[NUM, size]`, in the type of its start."""

  def step(state, change):
    return state + change, state + change

  return jax.lax.scan(step, start, steps)[1]


def draw(kind):
  """Samples `[NUM, size]`."""
  if kind == "trajectory":
    return walk(
      1e6 + jnp.arange(20.0), 1e-3 * jax.random.normal(jax.random.clone(KEY), (NUM, 20))
    )  # far from 0
  args = (nets.loss_fn, nets.make_params(), nets.make_batch())
  return flatness.sample_gradients(*args, key=KEY, num_samples=NUM, first=3, mask="Dense_2/*")


@pytest.mark.thorough
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("kind", ["gradients", pytest.param("trajectory", marks=pytest.mark.thorough)])
def test_variance_and_alignment_are_numpy_s_of_the_samples(kind):
  samples = np.asarray(draw(kind))
  size = samples.shape[1]
  directions = np.random.default_rng(0).normal(size=(4, size))
  hessian = np.diag(np.arange(1.0, size + 1))
  covariance = np.cov(samples.T, ddof=0)
  variances = np.diag(directions @ np.cov(samples.T, ddof=1) @ directions.T)
  trace, isotropic = np.trace(hessian @ covariance), np.trace(hessian) * np.trace(covariance) / size
  curvature = flatness.Curvature(
    lambda w, x, *, key: (0.5 * x[0] * w**2).sum(), jnp.zeros(size), [jnp.diag(hessian)[None]]
  )
  np.testing.assert_allclose(flatness.projected_variance(samples, directions, ddof=1), variances, rtol=1e-7)
  for operator in (jnp.asarray(hessian), lambda v: hessian @ v, curvature):
    found = flatness.hessian_variance_alignment(operator, samples=samples, hessian_trace=np.trace(hessian))
    np.testing.assert_allclose(found, (trace, isotropic, trace / isotropic), rtol=1e-7)


@pytest.mark.thorough
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("dtype", [jnp.float32, pytest.param(jnp.bfloat16, marks=pytest.mark.thorough)])
def test_samples_and_operators_of_other_types(dtype):
  """The walk is in a narrow type, which its steps of 1/4 do not exceed; the sums are in a wider one."""
  samples = walk(
    jnp.arange(20, dtype=dtype) / 2, jax.random.rademacher(jax.random.clone(KEY), (NUM, 20), dtype) / 4
  )
  covariance, hessian = np.cov(np.asarray(samples, np.float64).T, ddof=0), np.diag(np.arange(1.0, 21))
  np.testing.assert_allclose(flatness.projected_variance(samples, np.eye(20)), np.diag(covariance), rtol=1e-4)
  for operator in (jnp.asarray(hessian), jnp.asarray(hessian, jnp.float32), lambda v: hessian @ v):
    found = flatness.hessian_variance_alignment(operator, samples=samples, hessian_trace=210.0)
    np.testing.assert_allclose(found.trace, np.trace(hessian @ covariance), rtol=1e-4)
    np.testing.assert_allclose(found.isotropic, 210 * np.trace(covariance) / 20, rtol=1e-4)


@pytest.mark.thorough
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
  "use",
  [
    lambda samples: flatness.projected_variance(samples, jnp.eye(2, 5000)),
    lambda samples: (
      flatness.hessian_variance_alignment(lambda v: v, samples=samples, hessian_trace=1.0).trace
    ),
  ],
)
def test_no_copy_of_the_samples(use):
  """The samples are not copied."""
  samples = jax.ShapeDtypeStruct((400, 5000), jnp.float64)
  assert jax.jit(use).lower(samples).compile().memory_analysis().temp_size_in_bytes < 200 * 5000 * 8


def test_bad_arguments_of_samples():
  samples = jnp.ones((4, 15))
  for message, call in (
    (
      r"samples must be \[num, size\] with num above",
      lambda: flatness.projected_variance(samples, jnp.eye(15), ddof=4),
    ),
    ("directions must", lambda: flatness.projected_variance(samples, jnp.eye(3))),
    (
      r"samples must be \[num, size\] with the size",
      lambda: flatness.hessian_variance_alignment(jnp.eye(3), samples=samples),
    ),
  ):
    with pytest.raises(ValueError, match=message):
      call()

"""Noise that is drawn where it is used gives the numbers of its samples, without their memory."""

import jax
import jax.numpy as jnp
import nets
import numpy as np
import pytest

from jaxreg import flatness

NUM, KEY = 150, jax.random.key(0)


@pytest.fixture(autouse=True)
def _x64():
  with jax.enable_x64(True):
    yield


def step(state, batch, *, key):
  """A random walk far from 0."""
  return state + batch * jax.random.normal(key, state.shape, state.dtype)


def both(kind):
  """Samples `[NUM, size]` as an array, and the same lazily."""
  if kind == "trajectory":
    args, options = (step, 1e6 + jnp.arange(20.0), 1e-3), {"params_of": lambda state: state}
    return tuple(
      flatness.sample_trajectory(*args, key=KEY, num_samples=NUM, lazy=lazy, **options)[1]
      for lazy in (False, True)
    )
  args = (nets.loss_fn, nets.make_params(), nets.make_batch())
  return tuple(
    flatness.sample_gradients(*args, key=KEY, num_samples=NUM, first=3, mask="Dense_2/*", lazy=lazy)
    for lazy in (False, True)
  )


@pytest.mark.parametrize("kind", ["gradients", pytest.param("trajectory", marks=pytest.mark.thorough)])
def test_variance_and_alignment_are_numpy_s_of_the_samples(kind):
  samples, lazy = both(kind)
  samples, size = np.asarray(samples), samples.shape[1]
  directions = np.random.default_rng(0).normal(size=(4, size))
  hessian = np.diag(np.arange(1.0, size + 1))
  covariance = np.cov(samples.T, ddof=0)
  variances = np.diag(directions @ np.cov(samples.T, ddof=1) @ directions.T)
  trace, isotropic = np.trace(hessian @ covariance), np.trace(hessian) * np.trace(covariance) / size
  curvature = flatness.Curvature(
    lambda w, x, *, key: (0.5 * x[0] * w**2).sum(), jnp.zeros(size), [jnp.diag(hessian)[None]]
  )
  for given in (samples, lazy):
    np.testing.assert_allclose(flatness.projected_variance(given, directions, ddof=1), variances, rtol=1e-7)
    for operator in (jnp.asarray(hessian), lambda v: hessian @ v, curvature):
      found = flatness.hessian_variance_alignment(operator, samples=given, hessian_trace=np.trace(hessian))
      np.testing.assert_allclose(found, (trace, isotropic, trace / isotropic), rtol=1e-7)


@pytest.mark.parametrize("dtype", [jnp.float32, pytest.param(jnp.bfloat16, marks=pytest.mark.thorough)])
def test_samples_and_operators_of_other_types(dtype):
  """The walk is in a narrow type, which its steps of 1/4 do not exceed; the sums are in a wider one."""
  quarter = lambda state, batch, *, key: state + jax.random.rademacher(key, state.shape, dtype) / 4
  walk = (quarter, jnp.arange(20, dtype=dtype) / 2, None)
  options = {"key": KEY, "num_samples": NUM, "params_of": lambda state: state}
  samples, lazy = (flatness.sample_trajectory(*walk, **options, lazy=lazy)[1] for lazy in (False, True))
  covariance, hessian = np.cov(np.asarray(samples, np.float64).T, ddof=0), np.diag(np.arange(1.0, 21))
  np.testing.assert_allclose(flatness.projected_variance(lazy, np.eye(20)), np.diag(covariance), rtol=1e-4)
  for operator in (jnp.asarray(hessian), jnp.asarray(hessian, jnp.float32), lambda v: hessian @ v):
    found = flatness.hessian_variance_alignment(operator, samples=lazy, hessian_trace=210.0)
    np.testing.assert_allclose(found.trace, np.trace(hessian @ covariance), rtol=1e-4)
    np.testing.assert_allclose(found.isotropic, 210 * np.trace(covariance) / 20, rtol=1e-4)


@pytest.mark.parametrize(
  "use",
  [
    lambda samples: flatness.projected_variance(samples, jnp.eye(2, 5000)),
    lambda samples: (
      flatness.hessian_variance_alignment(lambda v: v, samples=samples, hessian_trace=1.0).trace
    ),
  ],
)
def test_no_matrix_of_all_samples(use):
  """Neither in the program, nor in the memory that it is compiled to; of samples that are given, no copy."""
  loss = lambda params, batch, *, key: params @ jax.random.normal(key, (5000,))
  lazy = flatness.sample_gradients(loss, jnp.zeros(5000), None, key=KEY, num_samples=400, lazy=True)
  assert "400,5000" not in str(jax.make_jaxpr(use)(lazy))
  assert jax.jit(use).lower(lazy).compile().memory_analysis().temp_size_in_bytes < 20 * 5000 * 8
  given = jax.ShapeDtypeStruct((400, 5000), jnp.float64)
  assert jax.jit(use).lower(given).compile().memory_analysis().temp_size_in_bytes < 200 * 5000 * 8


def test_bad_arguments():
  lazy = both("gradients")[1]
  assert repr(lazy) == "LazySamples([150, 15])"
  for message, call in (
    (
      r"samples must be \[num, size\] with num above",
      lambda: flatness.projected_variance(lazy, jnp.eye(15), ddof=150),
    ),
    ("directions must", lambda: flatness.projected_variance(lazy, jnp.eye(3))),
    (
      r"samples must be \[num, size\] with the size",
      lambda: flatness.hessian_variance_alignment(jnp.eye(3), samples=lazy),
    ),
  ):
    with pytest.raises(ValueError, match=message):
      call()

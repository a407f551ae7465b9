"""Traces and their standard errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matfree import stochtrace

from jaxreg import flatness

pytestmark = pytest.mark.usefixtures("x64")


def _matrix(values, seed=0):
  basis = np.linalg.qr(np.random.default_rng(seed).normal(size=(len(values),) * 2))[0]
  return basis @ np.diag(values) @ basis.T, basis


@pytest.mark.thorough
def test_trace_with_its_standard_error():
  matrix, _ = _matrix(np.linspace(0, 1, 100))
  matvec = lambda v: matrix @ v  # one, so that one program is compiled
  keys = jax.random.split(jax.random.key(0), 50)
  found = [flatness.operator_trace(matvec, jnp.zeros(100), key=key, num_samples=20) for key in keys]
  means, errors = (
    np.array([float(getattr(each, name)) for each in found]) for name in ("mean", "standard_error")
  )
  # Rademacher probes: Var = 2 (|A|_F^2 - sum of squares of the diagonal) / probes.
  true = np.sqrt(2 * ((matrix**2).sum() - (np.diag(matrix) ** 2).sum()) / 20)
  assert means.mean() == pytest.approx(np.trace(matrix), abs=4 * true / np.sqrt(50))
  assert np.sqrt((errors**2).mean()) == pytest.approx(true, rel=0.1)


def test_standard_error_of_two_probes():
  """Of signs, v'Av is 2 + 2c or 2 - 2c: the error of the mean of two is half their difference, 0 or 2c."""
  matrix = jnp.array([[1, 0.3], [0.3, 1]])
  matvec = lambda v: matrix @ v
  errors = [
    float(flatness.operator_trace(matvec, jnp.zeros(2), key=key, num_samples=2).standard_error)
    for key in jax.random.split(jax.random.key(0), 8)
  ]
  assert {round(error, 9) for error in errors} == {0, 0.6}


def test_xtrace_is_exact_for_a_matrix_of_low_rank():
  """It finds the range with its own probes."""
  matrix, _ = _matrix(np.concatenate([[5.0, 3, 2], np.zeros(40)]))
  found = flatness.operator_trace(
    lambda v: matrix @ v, jnp.zeros(43), key=jax.random.key(0), num_samples=10, method="xtrace"
  )
  assert float(found.mean) == pytest.approx(10, rel=1e-9)
  assert float(found.standard_error) < 1e-6


@pytest.mark.thorough
def test_standard_error_of_xtrace_is_too_small():
  """By what the docstring says: with four probes, pairs of them cause most of the error."""
  values = np.concatenate([np.full(5, 100.0), np.ones(25)])
  matvec, keys = lambda v: values * v, jax.random.split(jax.random.key(0), 400)
  estimate = lambda key: flatness.operator_trace(
    matvec, jnp.zeros(30), key=key, num_samples=4, method="xtrace"
  )
  found = jax.lax.map(estimate, keys)
  true = float(np.std(found.mean))
  assert float(np.mean(found.mean)) == pytest.approx(values.sum(), abs=4 * true / 20)
  # Standard errors of both roots of mean squares over 400 draws are below 6 %.
  assert float(np.sqrt(np.mean(found.standard_error**2))) / true == pytest.approx(np.sqrt(1 / 2), rel=0.15)


@pytest.mark.thorough
def test_standard_error_of_xtrace():
  """The leave-one-out estimates' own, over num - 1, as the paper has it."""
  matrix, _ = _matrix(1 / np.arange(1.0, 21))
  matvec, like, key = lambda v: matrix @ v, jnp.zeros(20), jax.random.key(0)
  found = flatness.operator_trace(matvec, like, key=key, num_samples=4, method="xtrace")
  with jax.numpy_rank_promotion("allow"):
    samples = stochtrace.sampler_sphere(like, num=4)(jax.random.clone(key))
    each = np.asarray(stochtrace.leave_one_out_xtrace()(matvec, samples))
  assert each.shape == (4,)
  np.testing.assert_allclose(found.standard_error, each.std(ddof=1) / 2, rtol=1e-6)

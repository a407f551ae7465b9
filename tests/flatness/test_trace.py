"""Traces and their standard errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

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

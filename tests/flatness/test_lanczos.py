import jax
import jax.numpy as jnp
import nets
import numpy as np
import pytest
from matfree import stochtrace

from jaxreg import flatness


@pytest.fixture(autouse=True)
def _x64():
  with jax.enable_x64(True):
    yield


def _matrix(values, seed=0):
  basis = np.linalg.qr(np.random.default_rng(seed).normal(size=(len(values),) * 2))[0]
  return basis @ np.diag(values) @ basis.T, basis


VALUES = np.concatenate([[50.0, 20, 10, -30], np.linspace(-1, 1, 60)])


@pytest.mark.parametrize(
  ("which", "expected"), [("largest", [50, 20, 10]), ("smallest", [-30, -1]), ("magnitude", [50, -30, 20])]
)
def test_eigenpairs_are_numpy_s(which, expected):
  matrix, basis = _matrix(VALUES)
  found = flatness.top_eigenpairs(
    lambda v: matrix @ v,
    jnp.zeros(64),
    key=jax.random.key(0),
    num_pairs=len(expected),
    num_steps=50,
    which=which,
  )
  np.testing.assert_allclose(found.values, expected, rtol=1e-8)
  index = [int(np.flatnonzero(np.isclose(VALUES, value))[0]) for value in expected]
  overlap = np.abs(np.sum(np.asarray(found.vectors) * basis.T[index], axis=1))
  np.testing.assert_allclose(overlap, 1, atol=1e-6)
  assert found.converged.all()


def test_residuals_are_true_and_say_what_has_not_converged():
  matrix, _ = _matrix(np.linspace(0, 1, 200))
  # The matrix is an argument of one compiled program.
  top = lambda matrix: flatness.top_eigenpairs(
    jax.tree_util.Partial(jnp.matmul, matrix),
    jnp.zeros(200),
    key=jax.random.key(0),
    num_pairs=10,
    num_steps=30,
  )
  found = top(matrix)
  vectors = np.asarray(found.vectors)
  true = np.linalg.norm(vectors @ matrix - np.asarray(found.values)[:, None] * vectors, axis=1)
  np.testing.assert_allclose(found.residuals, true, rtol=1e-6, atol=1e-12)
  assert found.converged[0] or found.residuals[0] < found.residuals[-1]
  assert not found.converged[-1]
  # The tolerance is relative to the largest eigenvalue: units of the loss change no verdict.
  for unit in (1e-5, 1e5):
    np.testing.assert_array_equal(top(unit * matrix).converged, found.converged)


@pytest.mark.parametrize(
  ("values", "dtype"),
  [
    ([5, 3, 1] + 61 * [0], np.float32),
    pytest.param([5, 3, 1] + 61 * [0], np.float64, marks=pytest.mark.thorough),
    ([7, 7, 7] + 61 * [-1], np.float32),
    ([0] * 64, np.float64),
  ],
)
def test_low_rank_and_eigenvalues_that_repeat(values, dtype):
  """The start vector's space ends long before the last product, and exactly, as with dead units."""
  matrix = np.diag(values).astype(dtype)
  matvec, like = (lambda v: matrix @ v), jnp.zeros(64, dtype)
  found = flatness.top_eigenpairs(matvec, like, key=jax.random.key(0), num_pairs=6)
  assert found.values.dtype == dtype
  close = 20 * np.finfo(dtype).eps * max(np.abs(values))
  np.testing.assert_allclose(found.values, sorted(values)[::-1][:6], atol=close)
  vectors = np.asarray(found.vectors)
  np.testing.assert_allclose(vectors @ vectors.T, np.eye(6), atol=20 * np.finfo(dtype).eps)
  true = np.linalg.norm(vectors @ matrix - np.asarray(found.values)[:, None] * vectors, axis=1)
  np.testing.assert_allclose(true, 0, atol=2 * close)
  assert found.converged.all()


def test_spectral_density_of_low_rank():
  matrix = np.diag([5.0, 3, 1] + 61 * [0])
  found = flatness.spectral_density(
    lambda v: matrix @ v, jnp.zeros(64), key=jax.random.key(0), num_steps=20, num_samples=40
  )
  grid, step = np.asarray(found.grid), float(found.grid[1] - found.grid[0])
  share = lambda low, high: float(np.asarray(found.density)[(grid > low) & (grid < high)].sum() * step)
  assert grid.min() > -0.5
  assert grid.max() < 5.5
  # The standard error of the share of three of 64 over 40 probes is below 0.01.
  assert share(-0.5, 0.5) == pytest.approx(61 / 64, abs=0.04)
  assert share(0.5, 5.5) == pytest.approx(3 / 64, abs=0.04)


def test_standard_error_of_the_density():
  """With as many products as eigenvalues, weights are squares of a unit vector's entries."""
  values, probes = np.array([1.0, 2, 3, 4]), 2000
  found = flatness.spectral_density(
    lambda v: values * v,
    jnp.zeros(4),
    key=jax.random.key(0),
    num_samples=probes,
    num_steps=4,
    grid=jnp.asarray(values),
  )
  # Their mean is 1/n and their variance 2 (n - 1) / n^2 / (n + 2); the kernel has 0.01 of the range of 3.
  height = 1 / (0.03 * np.sqrt(2 * np.pi))
  error = height * np.sqrt(2 * 3 / 16 / 6 / probes)
  np.testing.assert_allclose(found.standard_error, error, rtol=0.1)
  np.testing.assert_allclose(found.density, height / 4, atol=4 * error)


@pytest.mark.thorough
def test_of_a_network_s_hessian():
  params, batch = nets.make_params(), nets.make_batch()
  operator = flatness.hvp(nets.loss_fn, params, batch)
  found = flatness.top_eigenpairs(operator, operator.like, key=jax.random.key(0), num_pairs=5)
  expected = np.linalg.eigvalsh(np.asarray(flatness.hessian(nets.loss_fn, params, batch)))[::-1][:5]
  np.testing.assert_allclose(found.values, expected, rtol=1e-9)


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


@pytest.mark.thorough
def test_spectral_density_has_the_moments_of_the_spectrum():
  values = np.concatenate([np.linspace(0, 1, 90), np.full(10, 8.0)])
  matrix, _ = _matrix(values)
  found = flatness.spectral_density(
    lambda v: matrix @ v, jnp.zeros(100), key=jax.random.key(0), num_samples=40, num_steps=40, width=0.005
  )
  step = float(found.grid[1] - found.grid[0])
  density = np.asarray(found.density)
  assert density.sum() * step == pytest.approx(1, abs=1e-3)
  mean = (density * found.grid).sum() * step
  assert mean == pytest.approx(values.mean(), abs=0.15)
  outliers = density[np.asarray(found.grid) > 4].sum() * step
  # Ten of a hundred; the standard error of the share over 40 probes is 0.1 sqrt(2 * 0.9 / 10 / 40).
  assert outliers == pytest.approx(0.1, abs=4 * 0.1 * np.sqrt(2 * 0.9 / 10 / 40))
  assert (np.asarray(found.standard_error) >= 0).all()


@pytest.mark.thorough
def test_operators_that_are_none_are_refused():
  like, key = jnp.zeros(8), jax.random.key(0)
  counter = iter(range(10))
  with pytest.raises(ValueError, match="matvec must give the same product in every call"):
    flatness.top_eigenpairs(lambda v: v * (1.0 + next(counter)), like, key=key)
  skew = jnp.asarray(np.triu(np.ones((8, 8))))
  with pytest.raises(ValueError, match="matvec must be symmetric, got v'Au = "):
    flatness.top_eigenpairs(lambda v: skew @ v, like, key=jax.random.key(0))
  with pytest.raises(ValueError, match=r"matvec must return shape \(8,\), as like has, got \(4,\)"):
    flatness.top_eigenpairs(lambda v: v[:4], like, key=jax.random.key(0))
  again = iter(range(10))
  with pytest.raises(ValueError, match="matvec must give the same product in every call"):
    flatness.spectral_density(
      lambda v: v * (1.0 + next(again)), like, key=jax.random.key(0), num_steps=4, num_samples=2
    )
  for function in (flatness.spectral_density, flatness.operator_trace):
    options = {"num_steps": 4} if function is flatness.spectral_density else {}
    with pytest.raises(ValueError, match=r"matvec must return shape \(8,\), as like has, got \(4,\)"):
      function(lambda v: v[:4], like, key=jax.random.key(0), **options)
  with pytest.raises(ValueError, match="matvec must return finite values"):
    flatness.top_eigenpairs(lambda v: v * jnp.nan, like, key=jax.random.key(0))


def test_bad_arguments():
  key = jax.random.key(0)
  with pytest.raises(TypeError, match=r"like must be a vector \[size\], as hvp\(...\)\.like is, got a tree"):
    flatness.top_eigenpairs(lambda v: v, {"a": jnp.zeros(8)}, key=key)
  with pytest.raises(ValueError, match=r"num_steps must lie in \[num_pairs, size\] = \[5, 8\], got 4"):
    flatness.top_eigenpairs(lambda v: v, jnp.zeros(8), key=key, num_pairs=5, num_steps=4)
  with pytest.raises(TypeError, match="key must be a typed key"):
    flatness.top_eigenpairs(lambda v: v, jnp.zeros(8), key=0)
  with pytest.raises(TypeError, match="num_samples must be an integer"):
    flatness.operator_trace(lambda v: v, jnp.zeros(8), key=key, num_samples=2.5)
  with pytest.raises(ValueError, match="num_pairs must be at least 1"):
    flatness.top_eigenpairs(lambda v: v, jnp.zeros(8), key=key, num_pairs=0)
  with pytest.raises(ValueError, match="which must be one of largest, smallest, magnitude, got 'top'"):
    flatness.top_eigenpairs(lambda v: v, jnp.zeros(8), key=key, which="top")
  with pytest.raises(ValueError, match="method must be one of hutchinson, xtrace, got 'hutch'"):
    flatness.operator_trace(lambda v: v, jnp.zeros(8), key=key, method="hutch")
  for options, message in (
    ({"points": 0}, "points must be at least 1"),
    ({"grid": jnp.zeros(0)}, "grid must be"),
  ):
    with pytest.raises(ValueError, match=message):
      flatness.spectral_density(lambda v: v, jnp.zeros(8), key=key, num_steps=4, **options)
  with pytest.raises(ValueError, match="num_steps must be at most the size 8"):
    flatness.spectral_density(lambda v: v, jnp.zeros(8), key=key)

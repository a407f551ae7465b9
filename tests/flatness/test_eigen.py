"""Eigenpairs, spectral densities and damped solves against NumPy."""

import jax
import jax.numpy as jnp
import nets
import numpy as np
import pytest

from jaxreg import flatness, losses

pytestmark = pytest.mark.usefixtures("x64")


def _matrix(values, seed=0):
  basis = np.linalg.qr(np.random.default_rng(seed).normal(size=(len(values),) * 2))[0]
  return basis @ np.diag(values) @ basis.T, basis


VALUES = np.concatenate([[50.0, 20, 10, -30], np.linspace(-1, 1, 60)])


@pytest.mark.thorough
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


@pytest.mark.thorough
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


@pytest.mark.thorough
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


@pytest.mark.thorough
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


@pytest.mark.thorough
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


@pytest.mark.thorough
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
  for options, message in (
    ({"points": 0}, "points must be at least 1"),
    ({"grid": jnp.zeros(0)}, "grid must be"),
  ):
    with pytest.raises(ValueError, match=message):
      flatness.spectral_density(lambda v: v, jnp.zeros(8), key=key, num_steps=4, **options)
  with pytest.raises(ValueError, match="num_steps must be at most the size 8"):
    flatness.spectral_density(lambda v: v, jnp.zeros(8), key=key)


def logits_fn(params, batch, *, key):
  layer = params["Dense_2"]
  return jnp.tanh(nets.second(params, batch)) @ layer["kernel"] + layer["bias"][None]


def losses_fn(logits, batch):
  return losses.softmax_cross_entropy(logits, batch["labels"])


def problem(examples=10):
  return nets.make_params(), nets.make_batch(examples=examples)


@pytest.mark.thorough
@pytest.mark.parametrize("streamed", [False, True])
def test_damped_solve_is_numpy_s(streamed):
  params, batch = problem()
  operator = flatness.fisher(logits_fn, params, batch, losses_fn=losses_fn, mask="Dense_2/*")
  matrix, vector = np.asarray(operator.matrix()), np.arange(15.0)
  if streamed:
    operator = flatness.Curvature(nets.loss_fn, params, batch, mask="Dense_2/*").fisher(
      logits_fn, losses_fn=losses_fn
    )
  found = flatness.damped_solve(operator, vector, damping=0.1, tol=1e-12)
  np.testing.assert_allclose(found.x, np.linalg.solve(matrix + 0.1 * np.eye(15), vector), rtol=1e-9)
  assert found.converged
  assert not flatness.damped_solve(operator, vector, damping=0.1, tol=1e-12, num_steps=2).converged


@pytest.mark.parametrize("seed", range(3))
def test_residuals_are_at_least_the_rounding_of_a_product(seed):
  """In float32, against float64: Lanczos's own estimate falls to 1e-14 where the residual is 1e-7."""
  rng = np.random.default_rng(seed)
  basis = np.linalg.qr(rng.normal(size=(30, 30)))[0]
  matrix = (basis * np.r_[5.0, 4.0, 3.0, np.zeros(27)]) @ basis.T
  narrow = jnp.asarray(matrix, jnp.float32)
  exact = np.asarray(narrow, np.float64)
  for found in (
    flatness.top_eigenpairs(
      lambda v: narrow @ v, jnp.zeros(30, jnp.float32), key=jax.random.key(seed), num_pairs=3
    ),
    flatness.Curvature(
      lambda v, x, *, key: v @ narrow @ v / 2 + 0 * x.sum(), jnp.zeros(30, jnp.float32), jnp.zeros((1, 1))
    ).top_eigenpairs(key=jax.random.key(seed), num_pairs=3, max_bytes=10**6),
  ):
    rows = [next(iter(v.values())) if isinstance(v, dict) else v for v in found.vectors]
    vectors, values = np.asarray(rows, np.float64), np.asarray(found.values, np.float64)
    true = np.linalg.norm(vectors @ exact - values[:, None] * vectors, axis=1)
    assert (np.asarray(found.residuals) >= 2.0**-23 * values.max() * 0.99).all()
    np.testing.assert_allclose(found.residuals, true, rtol=0, atol=1e-5)
    assert (np.asarray(found.residuals) >= true / 4).all()
    assert found.converged.all()
  solution = flatness.damped_solve(lambda v: 2 * v, jnp.ones(3, jnp.float32), damping=0.0)
  assert 0 < float(solution.residual) < 1e-6


@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1e18, 1e25])
def test_operators_and_vectors_of_any_size_in_float32(scale):
  """Squares of their entries under- or overflow; the residuals are those of float64 products."""
  matrix = _matrix(np.linspace(1, 2, 20))[0] * scale
  narrow = jnp.asarray(matrix, jnp.float32)
  matvec = lambda v: jnp.matmul(narrow, v, precision="highest")
  pairs = flatness.top_eigenpairs(matvec, jnp.zeros(20, jnp.float32), key=jax.random.key(0), num_pairs=2)
  np.testing.assert_allclose(pairs.values, scale * np.array([2, 37 / 19]), rtol=1e-5)
  vectors, values = (np.asarray(x, np.float64) for x in (pairs.vectors, pairs.values))
  wide = np.asarray(narrow, np.float64)
  residuals = np.linalg.norm(vectors @ wide - values[:, None] * vectors, axis=1)
  assert (np.asarray(pairs.residuals, np.float64) > 0.8 * residuals).all()
  assert pairs.converged.all()
  b = np.random.default_rng(0).normal(size=20)
  for size in (scale, 1.0):
    vector = jnp.asarray(size * b, jnp.float32)
    solution = flatness.damped_solve(matvec, vector, damping=scale)
    expected = np.linalg.solve(matrix + scale * np.eye(20), size * b)
    np.testing.assert_allclose(
      np.asarray(solution.x, np.float64), expected, rtol=1e-3, atol=1e-3 * size / scale
    )
    assert 0 < solution.residual < 2e-5
    assert solution.converged


def test_a_solution_that_its_dtype_cannot_hold_has_not_converged():
  for size, scale in ((1e-30, 1e18), (1e25, 1e-30)):
    matvec = lambda v, scale=scale: jnp.float32(scale) * v
    solution = flatness.damped_solve(matvec, jnp.full(3, size, jnp.float32), damping=0.0)
    assert not solution.converged
    assert solution.residual == np.inf

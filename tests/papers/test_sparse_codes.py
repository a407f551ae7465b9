"""Codes against the best of all supports, by least squares in float64 NumPy."""

import doctest
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from papers.regularization import _sparse_codes as sparse_codes


def orthonormal(n=5, seed=0):
  return np.linalg.qr(np.random.default_rng(seed).normal(size=(n, n)))[0]


def fitted(W, x, support):
  h = np.zeros(W.shape[1])
  h[list(support)] = np.linalg.lstsq(W[:, list(support)], x)[0] if support else []
  return h


def error(W, x, h):
  return ((x - W @ h) ** 2).sum()


def best_of_all(W, x, size):
  """By trying every support of at most so many atoms."""
  supports = itertools.chain(*(itertools.combinations(range(W.shape[1]), n) for n in range(size + 1)))
  return min((fitted(W, x, s) for s in supports), key=lambda h: error(W, x, h))


def greedy(W, x, size):
  """Textbook OMP: the most correlated atom, then least squares on all."""
  support, residual = [], x
  for _ in range(size):
    score = np.abs(W.T @ residual) / np.linalg.norm(W, axis=0)
    score[support] = -1
    support.append(int(score.argmax()))
    residual = x - W @ fitted(W, x, support)
  return fitted(W, x, support)


# [several] inputs at once, of one dictionary; compiled once for each number and dtype.
@functools.partial(jax.jit, static_argnames=("num_nonzero", "gradients"))
def codes(W, xs, num_nonzero, gradients=False):
  omp = lambda x: sparse_codes.omp(W, x, num_nonzero=num_nonzero)
  if not gradients:
    return jax.vmap(omp)(xs)
  gradient = jax.grad(lambda x: (omp(x) ** 2).sum())
  return jax.vmap(omp)(xs), jax.vmap(gradient)(xs)


@functools.partial(jax.jit, static_argnames=("num_nonzero", "strict"))
def topk(W, xs, num_nonzero, strict=False):
  return sparse_codes.topk_code(W, xs, num_nonzero=num_nonzero, strict=strict)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.claim(
  "regularization",
  "sparse representations",
  "for an orthogonal W the code with fewer than k non-zeros is cheap: as the bound is strict the k - 1 "
  "largest of W'x, if W is orthonormal; else each is first divided by its column's length",
  status="erratum",
  size="enumeration",
)
def test_topk_is_the_best_of_all_supports(strict):
  xs, k = np.random.default_rng(1).normal(size=(4, 5)), 3
  lengths = np.array([0.1, 1.0, 2.0, 5.0, 0.5])
  for W in (orthonormal(), orthonormal() * lengths):
    with jax.enable_x64(True):
      got = np.asarray(topk(W, xs, k, strict))
    assert (np.count_nonzero(got, axis=1) == k - strict).all()
    for x, h in zip(xs, got):
      np.testing.assert_allclose(h, best_of_all(W, x, k - strict), rtol=1e-9, atol=1e-12)
  # Orthogonal is not enough for the largest of W'x: other atoms are kept.
  printed = np.argsort(-np.abs(xs @ W), axis=1)[:, : k - strict]
  assert any(set(row) != set(np.flatnonzero(h)) for row, h in zip(printed, got))


@pytest.mark.thorough
def test_omp_of_orthonormal_atoms_is_the_best_of_all_supports():
  xs, W = np.random.default_rng(2).normal(size=(4, 5)), orthonormal()
  with jax.enable_x64(True):
    got, gradient = codes(W, xs, 3, gradients=True)
    np.testing.assert_allclose(got, topk(W, xs, 3), rtol=1e-10, atol=1e-13)
  for x, h, g in zip(xs, got, gradient):
    np.testing.assert_allclose(h, best_of_all(W, x, 3), rtol=1e-9, atol=1e-12)
    # With the atoms fixed the squared norm is |W_S' x|^2.
    chosen = np.flatnonzero(h)
    np.testing.assert_allclose(g, 2 * W[:, chosen] @ (W[:, chosen].T @ x), rtol=1e-9, atol=1e-12)


@pytest.mark.claim(
  "regularization",
  "sparse representations",
  "orthogonal matching pursuit of other dictionaries is greedy: feasible, and not always the best",
  size="enumeration",
)
def test_omp_of_other_dictionaries_is_greedy():
  rng = np.random.default_rng(3)
  W, xs = rng.normal(size=(5, 10)) * rng.uniform(0.1, 3, 10), rng.normal(size=(20, 5))
  with jax.enable_x64(True):
    got = {k: np.asarray(codes(W, xs, k)) for k in (2, 5)}
  worse = 0
  for i, x in enumerate(xs):
    errors = [error(W, x, np.zeros(10))] + [error(W, x, got[k][i]) for k in got]
    assert all(b <= a + 1e-12 for a, b in itertools.pairwise(errors))
    assert errors[-1] < 1e-18  # as many atoms as inputs
    np.testing.assert_allclose(got[2][i], greedy(W, x, 2), rtol=1e-8, atol=1e-10)
    assert np.count_nonzero(got[2][i]) == 2
    best = error(W, x, best_of_all(W, x, 2))
    assert errors[1] >= best - 1e-12
    worse += errors[1] > best + 1e-9
  assert 3 < worse < 17


@pytest.mark.thorough
def test_exact_recovery_stops_early():
  """Of 2 atoms with 4 allowed: the others are exactly 0; zero inputs, atoms and repeated atoms do no harm."""
  W = np.float32(np.random.default_rng(4).normal(size=(40, 10)))
  W[:, 3], W[:, 7] = 0, W[:, 6]
  h = np.zeros(10, np.float32)
  h[[1, 6]] = 2, -1
  small = np.float32(W[:, 0] + 1e-4 * np.float64(W[:, 2]))  # a small part is no rounding
  xs = np.stack([W @ h, np.zeros(40, np.float32), 1e6 * (W @ h), W[:, 0] + W[:, 2], small])
  got, gradient = codes(W, xs, 4, gradients=True)
  assert np.isfinite(gradient).all()
  np.testing.assert_allclose(got[0], h, atol=1e-5)
  np.testing.assert_array_equal(got[1], 0)
  np.testing.assert_allclose(got[2], 1e6 * h, rtol=1e-5)
  np.testing.assert_array_equal(np.count_nonzero(got, axis=1), [2, 0, 2, 2, 2])
  np.testing.assert_allclose(got[4, [0, 2]], [1, 1e-4], rtol=0.02)
  # vmap is a loop, bfloat16 is widened.
  one = jax.jit(lambda x: sparse_codes.omp(W, x, num_nonzero=4))(xs[0])
  np.testing.assert_allclose(one, got[0], rtol=1e-5, atol=1e-6)
  shapes = jax.eval_shape(lambda W, xs: (codes(W, xs, 2), topk(W, xs, 2)), *map(jnp.bfloat16, (W, xs)))
  assert {x.dtype for x in jax.tree.leaves(shapes)} == {np.dtype(np.float32)}


def test_nearly_parallel_atoms_in_float32():
  """0.5 % apart: the condition is about 400, so the codes are good to 400 roundings of 6e-8."""
  rng = np.random.default_rng(0)
  W = np.float32(rng.normal(size=(40, 1)) + 0.005 * rng.normal(size=(40, 6)))
  xs = np.float32([W.astype(float) @ h for h in ([1.0, -2, 3, 0, 0, 0], [-3.0, 1, 2, 0, 0, 0])])
  for x, h in zip(xs, codes(W, xs, 3)):
    np.testing.assert_allclose(h, fitted(W.astype(float), x.astype(float), [*np.flatnonzero(h)]), atol=1e-4)


def test_topk_at_the_edges():
  eye = np.eye(3, dtype=np.float32)
  np.testing.assert_array_equal(topk(eye, np.float32([1, -1, 1]), 2), [1, -1, 0])
  np.testing.assert_array_equal(topk(eye, np.float32([1, 2, 3]), 1, strict=True), 0)
  gradient = jax.jit(jax.grad(lambda W, x: topk(W, x, 2).sum(), argnums=(0, 1)))
  np.testing.assert_array_equal(gradient(eye, np.float32([1e4, 0, -1e4]))[1], [1, 0, 1])
  assert all(np.isfinite(g).all() for g in gradient(0 * eye, np.float32([1, 1, 1])))


@pytest.mark.parametrize("function", [sparse_codes.omp, sparse_codes.topk_code], ids=lambda f: f.__name__)
def test_what_does_not_fit_is_refused(function):
  W, x = jnp.ones((3, 4)), jnp.ones(3)
  for arguments, error, match in (
    ((jnp.ones((3, 4), int), x), TypeError, "dictionary must be floating"),
    ((W, jnp.ones(3, int)), TypeError, "x must be floating"),
    ((W, jnp.ones(4)), ValueError, "x must be"),
    ((jnp.ones(3), x), ValueError, "x must be"),
  ):
    with pytest.raises(error, match=match):
      function(*arguments, num_nonzero=1)
  for number, error in ((0, ValueError), (5, ValueError), (1.0, TypeError)):
    with pytest.raises(error, match="num_nonzero"):
      function(W, x, num_nonzero=number)


@pytest.mark.thorough
def test_the_examples_run():
  with jax.numpy_rank_promotion("allow"):
    result = doctest.testmod(sparse_codes, extraglobs={"jnp": jnp})
  assert result.attempted > 0
  assert result.failed == 0

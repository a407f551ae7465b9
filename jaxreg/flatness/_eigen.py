"""Eigenpairs and spectral density of a curvature, and products with its inverse.

matfree's Lanczos does not restart when the Krylov space is exhausted, as by dead units: for a matrix of rank
3 it returns values far above the largest eigenvalue, and for the identity NaN. So this one is our own.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.scipy.sparse.linalg import cg
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import ArrayLike

from jaxreg._checks import check_choice, check_count, check_key, check_range, check_wide
from jaxreg.flatness._batches import Streamed, iterate, replicated
from jaxreg.flatness._common import analysis, as_pytree
from jaxreg.flatness._subset import check_no_tree
from jaxreg.flatness._trace import Matvec, as_operator, check_samples
from jaxreg.typing import Array, Key


class EigenPairs(NamedTuple):
  """The result of `top_eigenpairs`."""

  values: Array
  vectors: Array
  residuals: Array
  converged: Array


class SpectralDensity(NamedTuple):
  """The result of `spectral_density`."""

  grid: Array
  density: Array
  standard_error: Array


@analysis
def top_eigenpairs(
  matvec: Matvec,
  like: ArrayLike | None = None,
  *,
  key: Key,
  num_pairs: int = 1,
  num_steps: int | None = None,
  which: Literal["largest", "smallest", "magnitude"] = "largest",
  tol: float = 1e-3,
  check: bool = True,
  v0: ArrayLike | None = None,
  until_converged: bool = False,
) -> EigenPairs:
  """Computes extremal eigenpairs of a symmetric operator by Lanczos with full reorthogonalisation.

  Args:
    matvec: `[size] -> [size]`, symmetric and deterministic: a `Curvature`, the result of `hvp`, or any
      function.
    like: `[size]`, an array with the shape and dtype of a vector; by default `matvec.like`.
    key: draws the start vector.
    num_pairs: number of pairs.
    num_steps: number of products, and of stored vectors; by default `3 num_pairs + 20`.
    which: `largest` and `smallest` by sign, `magnitude` by absolute value.
    tol: tolerance for `converged`, relative to the largest absolute eigenvalue.
    check: whether to test, by three more products, that the operator is deterministic and symmetric.
    v0: `[size]` or `[k, size]`, a warm start, such as the eigenvectors of an earlier checkpoint. A hundredth
      of a random vector is added, so that no eigenvector is out of reach.
    until_converged: whether to end before `num_steps` when the residual of each pair is at most `tol` times
      its own eigenvalue; of a `Curvature` without `v0` only. The second copy of an eigenvalue that occurs
      twice takes more products and may be missed.

  Returns:
    A NamedTuple, in the requested order: `values` `[k]`; `vectors` `[k, size]`, orthonormal rows; `residuals`
    `[k]`, the norms of `A v - value v`; `converged` `[k]`, whether the residual is within `tol`.

  Example:
    >>> matvec = lambda v: jnp.array([1.0, 5.0, 3.0]) * v
    >>> found = top_eigenpairs(matvec, jnp.zeros(3), key=jax.random.key(0), num_pairs=2)
    >>> print(*(f"{value:.2f}" for value in found.values))
    5.00 3.00

  References:
    Lanczos, `An iteration method for the solution of the eigenvalue problem`, 1950.
  """
  matvec, like, rounding = as_operator(matvec, like)
  steps = steps_of(like.size, key, num_pairs, num_steps, which)
  start_key, check_key_ = jax.random.split(key)
  start = jax.random.normal(start_key, like.shape, like.dtype)
  if until_converged and not isinstance(matvec, Streamed):
    raise ValueError(
      "until_converged must be False unless matvec is a Curvature: compiled products do not end"
    )
  if until_converged and v0 is not None:
    # Such a start may hide a larger eigenvalue until its own pairs have converged.
    raise ValueError("until_converged must be False with v0, got True")
  if v0 is not None:
    start = _warm(v0, start)
  other = jax.random.normal(check_key_, like.shape, like.dtype) if check else None
  if isinstance(matvec, Streamed):
    enough = _Converged(num_pairs, which, tol) if until_converged else None
    pairs, products = _ritz_of(steps, num_pairs, which, tol, matvec, start, other, enough)
  else:
    pairs, products = _ritz(steps, num_pairs, which, tol, matvec, start, other)
  if other is not None and products is not None:
    _check_products(rounding, start, other, *products)
  return pairs


def steps_of(size: int, key: Key, num_pairs: int, num_steps: int | None, which: str) -> int:
  """The number of products, by default `3 num_pairs + 20`; checks the arguments."""
  check_key(key)
  check_count(num_pairs, "num_pairs")
  check_choice(which, "which", ("largest", "smallest", "magnitude"))
  steps = min(3 * num_pairs + 20, size) if num_steps is None else num_steps
  check_count(steps, "num_steps")
  if num_pairs > size:
    raise ValueError(f"num_pairs must be at most the size {size}, got {num_pairs}")
  if not num_pairs <= steps <= size:
    raise ValueError(f"num_steps must lie in [num_pairs, size] = [{num_pairs}, {size}], got {steps}")
  return steps


def _warm(v0: ArrayLike, random: Array) -> Array:
  """A start vector from `v0`, `[size]` or `[k, size]`, with a hundredth of a random vector."""
  size = random.size
  check_no_tree(v0, "v0", f"[{size}] or [k, {size}]", "flat")
  v0 = check_wide(v0, "v0")
  if v0.shape[-1:] != random.shape or v0.ndim > 2:
    raise ValueError(f"v0 must have shape [{size}] or [k, {size}], got {v0.shape}")
  whole = v0.reshape(-1, size).sum(axis=0)
  length = jnp.linalg.norm(whole)
  if not isinstance(length, Tracer) and not 0 < length < math.inf:
    raise ValueError(f"v0 must have rows whose sum is finite and not 0, got one of norm {float(length)}")
  return (whole / length + 0.01 * (random / jnp.linalg.norm(random))).astype(random.dtype)


def _ritz_of(steps, num, which, tol, matvec, start, other, enough=None):
  # The products to check are in this program, so their shared part is computed once. An operator that changes
  # from call to call also changes during tracing, so the check finds it.
  products = None if other is None else (matvec(start), matvec(start), matvec(other))

  basis, tridiagonal, residual = _lanczos(steps, matvec, start, enough)
  found = enough and enough.found
  values, vectors, residuals, converged = found or _chosen(num, which, tol, tridiagonal, residual, jnp)
  ritz = vectors.T @ basis
  if ritz.shape[1] > start.size:  # a sharded basis has padding
    ritz = ritz[:, : start.size]
  return EigenPairs(values, ritz, residuals, converged), products


_ritz = jax.jit(_ritz_of, static_argnums=(0, 1, 2))


def _chosen(num, which, tol, tridiagonal, residual, numpy):
  """Values, vectors in the basis, residuals and whether they are small, of the first `num` Ritz pairs."""
  values, vectors = numpy.linalg.eigh(tridiagonal)
  chosen = ranked(values, which, numpy)[:num]
  # The whole residual is in the last vector of the recurrence, so no further products are needed.
  residuals = residual * numpy.abs(vectors[-1, chosen])
  return values[chosen], vectors[:, chosen], residuals, residuals <= tol * numpy.abs(values).max()


def ranked(values, which, numpy):
  """The places of the values in the order that `which` says."""
  rank = {"largest": -values, "smallest": values, "magnitude": -numpy.abs(values)}[which]
  return numpy.argsort(rank)


@dataclasses.dataclass
class _Converged:
  """Whether the first `num` pairs have converged after `taken` products; if so, `found` has them.

  It computes in NumPy, because JAX would compile a program for each number of products. It says no after the
  recurrence has exhausted a space, which may lack a larger eigenvalue, and for numbers that are not finite.
  """

  num: int
  which: str
  tol: float
  found: tuple[Array, ...] | None = None

  def __call__(self, taken: int, state: tuple[Array, ...]) -> bool:
    basis, diagonal, beside = state[:3]
    within, below = np.asarray(diagonal)[:taken], np.asarray(beside)[:taken]
    if taken < self.num or not below.all() or not np.isfinite([within, below]).all():
      return False
    tridiagonal = np.diag(within) + np.diag(below[:-1], 1) + np.diag(below[:-1], -1)
    chosen = _chosen(self.num, self.which, self.tol, tridiagonal, below[-1], np)
    values, vectors, residuals, converged = chosen
    if (residuals > self.tol * np.abs(values)).any():
      return False
    rest = np.zeros((len(basis) - taken, self.num), vectors.dtype)  # the basis has no vectors there yet
    self.found = tuple(map(jnp.asarray, (values, np.concatenate([vectors, rest]), residuals, converged)))
    return True


@analysis
def spectral_density(
  matvec: Matvec,
  like: ArrayLike | None = None,
  *,
  key: Key,
  num_samples: int = 8,
  num_steps: int = 64,
  width: float = 0.01,
  grid: ArrayLike | None = None,
  points: int = 1000,
) -> SpectralDensity:
  r"""Estimates the density of all eigenvalues by stochastic Lanczos quadrature.

  .. math:: \rho(\lambda) \approx \frac1m \sum_j \sum_k \tau_{jk}^2 \, N(\lambda; \theta_{jk}, \sigma^2)

  with the Ritz values :math:`\theta` of a random start vector and the squared first components
  :math:`\tau^2` of their vectors.

  Args:
    matvec, like: as in `top_eigenpairs`.
    key: draws the probes.
    num_samples: number of random start vectors, at least 2.
    num_steps: number of products per start vector.
    width: standard deviation of the kernel, as a fraction of the range of the Ritz values.
    grid: `[points]`; by default the range of the Ritz values and five widths on either side.
    points: number of points of the default grid.

  Returns:
    A NamedTuple of `[points]`: `grid`, `density`, which integrates to 1, and its `standard_error` over
    probes.

  Example:
    >>> matvec = lambda v: jnp.array([1.0, 5.0]) * v
    >>> found = spectral_density(matvec, jnp.zeros(2), key=jax.random.key(0), num_steps=2)
    >>> (found.density.sum() * (found.grid[1] - found.grid[0])).round(2)
    Array(1., dtype=float32)

  References:
    Ghorbani, Krishnan and Xiao, `An Investigation into Neural Net Optimization via Hessian Eigenvalue
    Density`, 2019, section 2.
  """
  matvec, like, rounding = as_operator(matvec, like)
  check_count(points, "points")
  check_range(width, "width", low=0, open_low=True)
  nodes, weights, checked = quadrature(num_samples, num_steps, matvec, like, key)
  _check_products(rounding, *checked)
  return smoothed(nodes, weights, width, grid, points)


def smoothed(
  nodes: Array, weights: Array, width: float, grid: ArrayLike | None, points: int
) -> SpectralDensity:
  """The density of weighted Ritz values `[num_samples, num_steps]`, as `spectral_density` explains it."""
  low, high = nodes.min(), nodes.max()
  # Equal eigenvalues have no range; then their size gives the scale.
  spread = jnp.where(high > low, high - low, jnp.maximum(jnp.abs(high), 1e-12))
  sigma = width * spread
  if grid is None:
    grid = jnp.linspace(low - 5 * sigma, high + 5 * sigma, points)
  grid = check_wide(grid, "grid")
  if grid.ndim != 1 or not grid.size:
    raise ValueError(f"grid must be [points], at least one, got shape {grid.shape}")
  scaled = (grid[:, None] - nodes.reshape(1, -1)) / sigma
  kernel = (jnp.exp(-0.5 * scaled**2) / (sigma * jnp.sqrt(2 * jnp.pi))).reshape(grid.size, *nodes.shape)
  each = (kernel * weights[None]).sum(axis=-1)
  return SpectralDensity(grid, each.mean(axis=1), each.std(axis=1, ddof=1) / math.sqrt(len(nodes)))


def quadrature(num_samples: int, num_steps: int, matvec: Matvec, like: Array, key: Key) -> Any:
  """Ritz values and their weights `[num_samples, num_steps]`, and products to check."""
  check_key(key)
  check_samples(num_samples)
  check_count(num_steps, "num_steps")
  if num_steps > like.size:
    raise ValueError(f"num_steps must be at most the size {like.size}, got {num_steps}")
  compute = _quadrature_of if isinstance(matvec, Streamed) else _quadrature
  return compute(num_samples, num_steps, matvec, like, key)


def _quadrature_of(num_samples, num_steps, matvec, like, key):
  starts = jax.vmap(lambda key: jax.random.normal(key, like.shape, like.dtype))(
    jax.random.split(key, num_samples)
  )

  def probe(start: Array) -> tuple[Array, Array]:
    _, tridiagonal, _ = _lanczos(num_steps, matvec, start)
    values, vectors = jnp.linalg.eigh(tridiagonal)
    return values, vectors[0] ** 2

  u, v = starts[:2]
  if isinstance(matvec, Streamed):
    each = [jnp.stack(part) for part in zip(*map(probe, starts), strict=True)]
  else:
    each = jax.lax.map(probe, starts)
  return *each, (u, v, matvec(u), matvec(u), matvec(v))


_quadrature = jax.jit(_quadrature_of, static_argnums=(0, 1))


def _lanczos(
  steps: int, matvec: Matvec, start: Array, enough: Callable[[int, Any], bool] | None = None
) -> tuple[Array, Array, Array]:
  """Returns the basis `[steps, size]`, the tridiagonal matrix in it, and the norm of the final residual.

  With low rank or repeated eigenvalues the recurrence may exhaust the space that `start` reaches. The
  residual is then rounding error, not orthogonal to the basis, so the recurrence restarts in a random
  direction. On a mesh the basis is sharded over all devices, with rows filled up with zeros until they
  divide.
  """
  mesh = matvec.mesh if isinstance(matvec, Streamed) else None
  sharding = None if mesh is None else NamedSharding(mesh, PartitionSpec(None, mesh.axis_names))
  width = start.size if mesh is None else -(-start.size // mesh.size) * mesh.size
  zeros = lambda *shape: jnp.zeros(shape, start.dtype)  # new arrays, because the loop overwrites them
  basis = jnp.zeros((steps, width), start.dtype, device=sharding)
  state = (basis, zeros(steps), zeros(steps), start / jnp.linalg.norm(start), zeros())
  basis, diagonal, beside, _, _ = iterate(matvec, steps, _current, _advance(sharding), state, enough)
  tridiagonal = jnp.diag(diagonal) + jnp.diag(beside[:-1], 1) + jnp.diag(beside[:-1], -1)
  return basis, tridiagonal, beside[-1]


_current = lambda number, state: state[3]


@functools.lru_cache(maxsize=8)
def _advance(sharding: NamedSharding | None) -> Callable[..., tuple[Array, ...]]:
  unit = lambda v: v / jnp.linalg.norm(v)

  def step(number: Array, state: tuple[Array, ...], w: Array) -> tuple[Array, ...]:
    basis, diagonal, beside, v, scale = state
    size, spare = v.size, basis.shape[1] - v.size
    wide = lambda v: jnp.pad(v, (0, spare)) if spare else v
    away = lambda v: v - ((basis @ wide(v)) @ basis)[:size]
    basis = basis.at[number].set(wide(v))
    diagonal = diagonal.at[number].set(v @ w)
    scale = jnp.maximum(scale, jnp.linalg.norm(w))
    w = away(away(w))
    length = jnp.linalg.norm(w)
    done = length <= 10 * jnp.finfo(v.dtype).eps * scale
    anew = lambda: jax.random.normal(jax.random.fold_in(jax.random.key(0), number), v.shape, v.dtype)
    v = jax.lax.cond(done, lambda: unit(away(unit(away(anew())))), lambda: w / length)
    if sharding is not None:
      basis = jax.lax.with_sharding_constraint(basis, sharding)
      v = replicated(v, sharding.mesh)  # type: ignore[arg-type]
    return basis, diagonal, beside.at[number].set(jnp.where(done, 0, length)), v, scale

  return step


def _check_products(rounding: float, u: Array, v: Array, first: Array, second: Array, other: Array) -> None:
  """Checks `A u` twice and `A v`: a symmetric matrix always passes. Does nothing inside a transformation."""
  if any(isinstance(x, Tracer) for x in (first, second, other)):
    return
  if not (np.isfinite(first).all() and np.isfinite(other).all()):
    raise ValueError("matvec must return finite values, got NaN or infinity")
  if jnp.linalg.norm(first - second) > rounding * jnp.linalg.norm(first):
    raise ValueError(
      "matvec must give the same product in every call, got two different ones: fix the key of its noise"
    )
  left, right = float(jnp.vdot(v, first)), float(jnp.vdot(u, other))
  scale = float(jnp.linalg.norm(v) * jnp.linalg.norm(first)) + float(
    jnp.linalg.norm(u) * jnp.linalg.norm(other)
  )
  if abs(left - right) > rounding * scale:
    raise ValueError(f"matvec must be symmetric, got v'Au = {left:g} and u'Av = {right:g}")


class Solution(NamedTuple):
  """The result of `damped_solve`."""

  x: Array
  residual: Array
  converged: Array


@analysis
def damped_solve(
  matvec: Callable[[Array], Array],
  vector: ArrayLike,
  *,
  damping: float,
  tol: float = 1e-5,
  num_steps: int = 100,
) -> Solution:
  r"""Solves :math:`(A + \lambda I) x = b` by conjugate gradients.

  Args:
    matvec: `[size] -> [size]`, symmetric, with eigenvalues above `-damping`: a `Curvature`, the result of
      `gauss_newton` or `fisher`, or any function. A Hessian may need more damping than its least eigenvalue.
    vector: `b`, `[size]`.
    damping: :math:`\lambda`, at least 0.
    tol: tolerance of the residual relative to `vector`.
    num_steps: the most iterations.

  Returns:
    A NamedTuple: `x` `[size]`; `residual`, the norm of `b - (A + lambda I) x` relative to the norm of `b`;
    `converged`, whether it is at most twice `tol`, which leaves room for rounding.

  Example:
    >>> found = damped_solve(lambda v: jnp.array([1.0, 3.0]) * v, jnp.ones(2), damping=1.0)
    >>> found.x.round(4), bool(found.converged)
    (Array([0.5 , 0.25], dtype=float32), True)

  References:
    Martens, `Deep Learning via Hessian-free Optimization`, 2010.
  """
  check_no_tree(vector, "vector", "[size]", "flat")
  vector = check_wide(vector, "vector")
  if vector.ndim != 1:
    raise ValueError(f"vector must be [size], got {vector.shape}")
  check_range(damping, "damping", low=0)
  check_range(tol, "tol", low=0, open_low=True)
  check_count(num_steps, "num_steps")
  solve, matvec = (_on_host, matvec) if isinstance(matvec, Streamed) else (_solve, as_pytree(matvec))
  x, left = solve(matvec, vector, damping, tol, num_steps)
  residual = jnp.linalg.norm(left) / jnp.maximum(jnp.linalg.norm(vector), jnp.finfo(vector.dtype).tiny)
  return Solution(x, residual, residual <= 2 * tol)


@jax.jit
def _solve(matvec, vector, damping, tol, num_steps):
  damped = lambda v: matvec(v) + damping * v
  x = cg(damped, vector, tol=tol, maxiter=num_steps)[0]
  return x, vector - damped(x)


def _on_host(matvec, vector, damping, tol, num_steps):
  # JAX's own cg traces its products.
  from scipy.sparse.linalg import LinearOperator, cg

  def damped(v):
    v = jnp.asarray(v, vector.dtype).reshape(-1)
    return matvec(v) + damping * v

  product = lambda v: np.asarray(damped(v))
  operator = LinearOperator((vector.size,) * 2, matvec=product, dtype=vector.dtype)  # type: ignore
  x = jnp.asarray(cg(operator, np.asarray(vector), rtol=tol, maxiter=num_steps)[0], vector.dtype)
  return x, vector - damped(x)

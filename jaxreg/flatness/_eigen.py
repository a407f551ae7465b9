"""Eigenpairs and spectral density of a curvature, and products with its inverse."""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike

from jaxreg._analyses import full_precision
from jaxreg._checks import check_choice, check_count, check_key, check_range, check_wide
from jaxreg.flatness._products import LinearOperator, Matvec, as_operator, product_rounding
from jaxreg.flatness._subset import as_vector, check_no_tree
from jaxreg.flatness._vectors import (
  Basis,
  Vector,
  branch,
  combined,
  draw,
  inner,
  is_split,
  near_one,
  norm,
  orthogonalized,
  plus,
  recombined,
  scaled,
  store,
  unit,
  unstacked,
)
from jaxreg.typing import Array, Key

NOT_FINITE = "matvec must return finite values, as finite losses and parameters give; got NaN or infinity"


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


@full_precision
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
    num_pairs: how many pairs to compute.
    num_steps: number of products, and of stored vectors; by default `3 num_pairs + 20`. The residuals take
      `num_pairs` products more.
    which: `largest` and `smallest` by sign, `magnitude` by absolute value.
    tol: tolerance for `converged`, relative to the largest absolute eigenvalue.
    check: whether to test, by three more products, that the operator is deterministic and symmetric.
    v0: `[size]` or `[k, size]`, a warm start, such as the eigenvectors of an earlier checkpoint. A random
      vector, scaled to a hundredth, is added, so that every eigenvector can be found.
    until_converged: whether to end before `num_steps`, as soon as the residual of each pair is at most `tol`
      times its own eigenvalue. It is for a `Curvature` without `v0` only. Of an eigenvalue that occurs twice,
      the second copy takes more products and may be missed.

  Returns:
    A NamedTuple, in the requested order: `values` `[k]`; `vectors` `[k, size]`, orthonormal rows; `residuals`
    `[k]`, the norms of `A v - value v` by further products, at least the rounding of one; `converged` `[k]`,
    whether the residual is within `tol`.

  Example:
    >>> matvec = lambda v: jnp.array([1.0, 5.0, 3.0]) * v
    >>> pairs = top_eigenpairs(matvec, jnp.zeros(3), key=jax.random.key(0), num_pairs=2)
    >>> print(*(f"{value:.2f}" for value in pairs.values))
    5.00 3.00

  References:
    Lanczos, `An iteration method for the solution of the eigenvalue problem`, 1950.
  """
  operator = as_operator(matvec, like)
  (flat,) = operator.like
  steps = check_steps(flat.size, key, num_pairs, num_steps, which)
  if until_converged and v0 is not None:
    # Such a start may hide a larger eigenvalue until its own pairs have converged.
    raise ValueError("until_converged must be False with v0, got True")
  start_key, other_key = jax.random.split(key)
  start = draw(jax.random.normal, start_key, operator.like)
  if v0 is not None:
    start = (_warm_start(v0, start[0]),)
  other = draw(jax.random.normal, other_key, operator.like) if check else None
  static = (steps, num_pairs, which, until_converged)
  (values, (vectors,), residuals, converged), products = operator.run(_eigenpairs, static, tol, start, other)
  if other is not None and products is not None:
    _check_products(product_rounding(matvec, like), start, other, *products)
  return EigenPairs(values, vectors, residuals, converged)


def check_steps(size: int, key: Key, num_pairs: int, num_steps: int | None, which: str) -> int:
  """Checks the arguments, and returns the number of products, by default `3 num_pairs + 20`."""
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


def _warm_start(v0: ArrayLike, random: Array) -> Array:
  """Returns a start vector from `v0`, `[size]` or `[k, size]`, with a hundredth of a random vector."""
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


def _eigenpairs(operator, steps, num_pairs, which, until_converged, tol, start, other):
  # The products to check are in this program, so their shared part is computed once. An operator that changes
  # from call to call also changes during tracing, so the check finds it.
  products = None if other is None else (operator(start), operator(start), operator(other))
  enough = Converged(num_pairs, which, tol) if until_converged else None
  state, count = lanczos(operator, start, steps, enough=enough)
  if enough is not None and enough.count is not None:
    count = enough.count
  values, coordinates, _, largest = ritz_pairs(state, count, num_pairs, which)
  vectors = tuple(combined(rows, coordinates) for rows in state.basis)

  def residual_at(number: Array) -> tuple[Array, ...]:
    return (_residual(operator, values[number], tuple(rows[number] for rows in vectors), largest),)

  (residuals,) = operator.map(residual_at, jnp.arange(num_pairs))
  return (values, vectors, residuals, residuals <= tol * largest), products


def _residual(operator: LinearOperator, value: Array, vector: Vector, largest: Array) -> Array:
  """Computes the norm of `A v - value v` by a product, and at least the rounding of a product.

  The estimate of Lanczos, by the last vector of the recurrence, may be far below the rounding, whose scale is
  the `largest` absolute eigenvalue.
  """
  rounding = jnp.finfo(value.dtype).eps * largest
  return jnp.maximum(norm(plus(operator(vector), -value, vector)), rounding)


def eigenpairs_in_memory(
  operator: LinearOperator,
  *,
  key: Key,
  num_pairs: int = 1,
  num_steps: int | None = None,
  which: str = "largest",
  tol: float = 1e-3,
  max_bytes: int | None = None,
) -> tuple[Array, list[Vector], Array, Array]:
  """Computes eigenpairs by Lanczos with thick restarts, such that all vectors together fit in `max_bytes`.

  `Curvature.top_eigenpairs` explains it. Returns values, vectors, residuals and whether they have converged.
  """
  like = operator.like
  steps = check_steps(sum(x.size for x in like), key, num_pairs, num_steps, which)
  rows = steps if max_bytes is None else _affordable_rows(like, num_pairs, steps, max_bytes)
  kept = _num_kept(num_pairs, rows)
  state, count = lanczos(
    operator, draw(jax.random.normal, key, like), steps, rows=rows, kept=kept, which=which
  )
  values, coefficients, _, largest = ritz_pairs(state, count, num_pairs, which)
  basis = list(state.basis)
  del state
  vectors = _pop_combined(basis, coefficients, like)
  residuals = jnp.stack([_residual(operator, *pair, largest) for pair in zip(values, vectors, strict=True)])
  return values, vectors, residuals, residuals <= tol * largest


def _num_kept(num_pairs: int, rows: int) -> int:
  """Returns how many of the best Ritz vectors span the space after a restart."""
  return num_pairs + (rows - num_pairs) // 2


def _affordable_rows(like: Vector, num_pairs: int, steps: int, max_bytes: int) -> int:
  """Returns the largest number of vectors in the basis that fits in `max_bytes`."""
  check_count(max_bytes, "max_bytes")
  sizes = [x.nbytes for x in like]
  whole, largest = sum(sizes), max(sizes)

  def needed(rows: int) -> int:
    # In addition to the basis: a vector and the two parts of the running sum of its product; in a restart,
    # the next vector and one array of the new basis.
    return rows * whole + max(3 * whole, whole + _num_kept(num_pairs, rows) * largest)

  fewest = min(num_pairs + 2, steps)
  if needed(fewest) > max_bytes:
    raise ValueError(f"max_bytes must be at least {needed(fewest)} for {fewest} vectors, got {max_bytes}")
  return max(rows for rows in range(fewest, steps + 1) if needed(rows) <= max_bytes)


def _pop_combined(basis: list[Array], coefficients: Array, like: Vector) -> list[Vector]:
  """Computes combinations of the rows of the basis, `[rows, k]`; each array of the basis is freed in turn."""
  parts: list[Vector] = []
  for x in like:
    rows = unstacked(combined(basis.pop(0), coefficients))
    parts.append(jax.device_put(rows, x.sharding) if is_split([x]) else rows)
  return list(zip(*parts, strict=True))


class Lanczos(NamedTuple):
  """The state of the Lanczos iteration."""

  basis: Basis  # orthonormal rows
  matrix: Array  # the operator in the basis, `[rows, rows]`
  lengths: Array  # the norm of the residual after each product, 0 if the space was exhausted
  vector: Vector  # the next row of the basis
  scale: Array  # the largest norm of a product
  number: Array  # the number of products


def lanczos(
  operator: LinearOperator,
  start: Vector,
  steps: int,
  *,
  enough: Converged | None = None,
  rows: int | None = None,
  kept: int = 1,
  which: str = "largest",
) -> tuple[Lanczos, int]:
  """Runs Lanczos with full reorthogonalisation, and returns its state and the number of rows in the basis.

  With low rank or repeated eigenvalues the iteration may exhaust the space that `start` reaches. The residual
  is then rounding error, not orthogonal to the basis, so the iteration goes on in a random direction. If the
  basis has fewer `rows` than `steps`, the best `kept` Ritz vectors replace it when it is full.
  """
  rows = steps if rows is None else rows
  basis = operator.zero_rows(rows)
  size, dtype = basis[0].shape[0], jnp.result_type(*start)
  zero = jnp.zeros((), dtype)
  state = Lanczos(
    basis, jnp.zeros((size, size), dtype), jnp.zeros(size, dtype), unit(start), zero, jnp.int32(0)
  )
  del start
  states, first = [state], 0
  del state
  while True:
    stop = min(rows, first + steps)
    # Popped, so that memory does not hold the vector of an old state during the loop.
    state = operator.for_each(first, stop, partial(_advance, operator), states.pop(), enough)
    steps -= stop - first
    if not steps:
      return state, stop
    states.append(_restarted(state, kept, which))
    del state
    first = kept


def _advance(operator: LinearOperator, row: Array | int, state: Lanczos) -> Lanczos:
  """Adds the next vector to the basis, multiplies it, and makes the product orthogonal to the basis."""
  product = operator(state.vector)
  product_norm = norm(product)
  basis = store(state.basis, state.vector, row)
  left, along = orthogonalized(basis, product)
  left, correction = orthogonalized(basis, left)
  state, exhausted = _recorded(
    state._replace(basis=(), vector=()), row, along + correction, product_norm, left
  )

  def random_vector() -> Vector:
    key = jax.random.fold_in(jax.random.key(0), state.number)
    random = orthogonalized(basis, draw(jax.random.normal, key, left))[0]
    return unit(orthogonalized(basis, unit(random))[0])

  def residual() -> Vector:
    return unit(left)

  return state._replace(basis=basis, vector=branch(exhausted, random_vector, residual))


@jax.jit
def _recorded(
  state: Lanczos, row: Array, along: Array, product_norm: Array, left: Vector
) -> tuple[Lanczos, Array]:
  """Records a product; also returns whether the space is exhausted."""
  scale = jnp.maximum(state.scale, product_norm)
  length = norm(left)
  limits = jnp.finfo(length.dtype)
  # Entries near the smallest normal number are rounded to 0, and the rest is not orthogonal to the basis.
  exhausted = length <= jnp.maximum(10 * limits.eps * scale, limits.tiny / limits.eps)
  state = state._replace(
    matrix=state.matrix.at[row].set(along).at[:, row].set(along),
    lengths=state.lengths.at[row].set(jnp.where(exhausted, 0, length)),
    scale=scale,
    number=state.number + 1,
  )
  return state, exhausted


def _restarted(state: Lanczos, kept: int, which: str) -> Lanczos:
  """Replaces the full basis by its best Ritz vectors."""
  values, vectors = np.linalg.eigh(state.matrix)
  best = ranking(values, which, np)[:kept]
  basis = tuple(recombined(rows, jnp.asarray(vectors[:, best])) for rows in state.basis)
  matrix = np.zeros_like(state.matrix)
  matrix[np.arange(kept), np.arange(kept)] = values[best]
  return state._replace(basis=basis, matrix=jnp.asarray(matrix), lengths=jnp.zeros_like(state.lengths))


def ritz_pairs(state: Lanczos, count: int, num_pairs: int, which: str) -> tuple[Array, Array, Array, Array]:
  """Computes values, coordinates `[rows, num_pairs]` and estimated residuals of the best pairs.

  Also returns the largest absolute value of all.

  Outside of compiled code it uses NumPy, because JAX would compile a program for each `count`.
  """
  numpy: Any = jnp if isinstance(state.matrix, Tracer) else np
  matrix = numpy.asarray(state.matrix)[:count, :count]
  if numpy is np and not np.isfinite(matrix).all():
    raise ValueError(NOT_FINITE)
  values, vectors = numpy.linalg.eigh(matrix)
  best = ranking(values, which, numpy)[:num_pairs]
  # But for rounding, the whole residual is in the last vector of the recurrence.
  residuals = numpy.asarray(state.lengths)[count - 1] * numpy.abs(vectors[-1, best])
  unused = numpy.zeros((len(state.lengths) - count, num_pairs), vectors.dtype)
  coordinates = numpy.concatenate([vectors[:, best], unused])
  return tuple(map(jnp.asarray, (values[best], coordinates, residuals, numpy.abs(values).max())))  # type: ignore[return-value]


def ranking(values: Any, which: str, numpy: Any) -> Any:
  """Returns the indices of the values in the order that `which` says."""
  rank = {"largest": -values, "smallest": values, "magnitude": -numpy.abs(values)}[which]
  return numpy.argsort(rank)


@dataclasses.dataclass
class Converged:
  """Whether the best pairs have converged; if so, `count` is the number of products.

  It is false after the iteration has exhausted a space, which may lack a larger eigenvalue, and for numbers
  that are not finite.
  """

  num_pairs: int
  which: str
  tol: float
  count: int | None = None

  def __call__(self, row: int, state: Lanczos) -> bool:
    count = row + 1
    lengths = np.asarray(state.lengths)[:count]
    if count < self.num_pairs or not lengths.all() or not np.isfinite(state.matrix).all():
      return False
    values, _, residuals, _ = ritz_pairs(state, count, self.num_pairs, self.which)
    if (residuals > self.tol * jnp.abs(values)).any() or not np.isfinite(lengths).all():
      return False
    self.count = count
    return True


@full_precision
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
    num_steps: number of products per start vector, at most the size.
    width: standard deviation of the kernel, as a fraction of the range of the Ritz values.
    grid: `[points]`; by default the range of the Ritz values and five widths on either side.
    points: number of points of the default grid.

  Returns:
    A NamedTuple of `[points]`: `grid`, `density`, which integrates to 1, and its `standard_error` over
    probes.

  Example:
    >>> matvec = lambda v: jnp.array([1.0, 5.0]) * v
    >>> result = spectral_density(matvec, jnp.zeros(2), key=jax.random.key(0), num_steps=2)
    >>> (result.density.sum() * (result.grid[1] - result.grid[0])).round(2)
    Array(1., dtype=float32)

  References:
    Ghorbani, Krishnan and Xiao, `An Investigation into Neural Net Optimization via Hessian Eigenvalue
    Density`, 2019, section 2.
  """
  operator = as_operator(matvec, like)
  check_count(points, "points")
  check_range(width, "width", low=0, open_low=True)
  nodes, weights, products = quadrature(operator, num_samples, num_steps, key, check=True)
  _check_products(product_rounding(matvec, like), *products)
  return smoothed(nodes, weights, width, grid, points)


def smoothed(
  nodes: Array, weights: Array, width: float, grid: ArrayLike | None, points: int
) -> SpectralDensity:
  """Computes the density of weighted Ritz values `[num_samples, num_steps]` as in `spectral_density`."""
  low, high = nodes.min(), nodes.max()
  # Equal eigenvalues have no range; then their size gives the scale.
  spread = jnp.where(high > low, high - low, jnp.maximum(jnp.abs(high), 1e-12))
  sigma = width * spread
  if grid is None:
    grid = jnp.linspace(low - 5 * sigma, high + 5 * sigma, points)
  grid = check_wide(grid, "grid")
  if grid.ndim != 1 or not grid.size:
    raise ValueError(f"grid must be [points], at least one, got shape {grid.shape}")
  distance = (grid[:, None] - nodes.reshape(1, -1)) / sigma
  kernel = (jnp.exp(-0.5 * distance**2) / (sigma * jnp.sqrt(2 * jnp.pi))).reshape(grid.size, *nodes.shape)
  densities = (kernel * weights[None]).sum(axis=-1)
  return SpectralDensity(grid, densities.mean(axis=1), densities.std(axis=1, ddof=1) / math.sqrt(len(nodes)))


def quadrature(
  operator: LinearOperator, num_samples: int, num_steps: int, key: Key, *, check: bool
) -> tuple[Array, Array, tuple[Vector, ...]]:
  """Computes Ritz values and their weights, `[num_samples, num_steps]` each, and any products to check."""
  check_key(key)
  check_count(num_samples, "num_samples", least=2)
  check_count(num_steps, "num_steps")
  size = sum(x.size for x in operator.like)
  if num_steps > size:
    raise ValueError(f"num_steps must be at most the size {size}, got {num_steps}")
  return operator.run(_quadrature, (num_samples, num_steps, check), key)


def _quadrature(operator, num_samples, num_steps, check, key):
  probe_key, *check_keys = jax.random.split(key, 3)

  def probe(number: Array) -> tuple[Array, Array]:
    # Not a loop over keys, which the checker of reused keys refuses under `vmap`.
    return _nodes_and_weights(operator, num_steps, jax.random.fold_in(probe_key, number))

  nodes, weights = operator.map(probe, jnp.arange(num_samples))
  if not check:
    return nodes, weights, ()
  u, v = (draw(jax.random.normal, check_key, operator.like) for check_key in check_keys)
  return nodes, weights, (u, v, operator(u), operator(u), operator(v))


def _nodes_and_weights(operator: LinearOperator, num_steps: int, key: Key) -> tuple[Array, Array]:
  """Computes the Ritz values of a random start, and the squared first entries of their vectors."""
  state, count = lanczos(operator, draw(jax.random.normal, key, operator.like), num_steps)
  values, vectors = jnp.linalg.eigh(state.matrix[:count, :count])
  return values, vectors[0] ** 2


def _check_products(
  rounding: float, u: Vector, v: Vector, first: Vector, second: Vector, other: Vector
) -> None:
  """Checks `A u` twice and `A v`: a symmetric matrix always passes. Does nothing inside a transformation."""
  if any(isinstance(x, Tracer) for x in (*first, *second, *other)):
    return
  if not all(np.isfinite(x).all() for x in (*first, *other)):
    raise ValueError(NOT_FINITE)
  if norm(plus(first, -1, second)) > rounding * norm(first):
    raise ValueError(
      "matvec must give the same product in every call, got two different ones: fix the key of its noise"
    )
  left, right = float(inner(v, first)), float(inner(u, other))
  scale = float(norm(v) * norm(first)) + float(norm(u) * norm(other))
  if abs(left - right) > rounding * scale:
    raise ValueError(f"matvec must be symmetric, got v'Au = {left:g} and u'Av = {right:g}")


class Solution(NamedTuple):
  """The result of `damped_solve`."""

  x: Array
  residual: Array
  converged: Array


@full_precision
def damped_solve(
  matvec: Matvec,
  vector: ArrayLike,
  *,
  damping: float,
  tol: float = 1e-5,
  num_steps: int = 100,
) -> Solution:
  r"""Solves :math:`(A + \lambda I) x = b` by conjugate gradients.

  Args:
    matvec: `[size] -> [size]`, symmetric, with eigenvalues above `-damping`: a `Curvature`, the result of
      `gauss_newton` or `fisher`, or any function. The damping of a Hessian must exceed the size of its most
      negative eigenvalue.
    vector: `b`, `[size]`.
    damping: :math:`\lambda`, at least 0.
    tol: tolerance of the residual relative to `vector`.
    num_steps: the maximum number of iterations.

  Returns:
    A NamedTuple: `x` `[size]`; `residual`, the norm of `b - (A + lambda I) x` relative to the norm of
    `b`, at least the rounding of a product; `converged`, whether it is at most twice `tol`, which leaves
    room for rounding.

  Example:
    >>> solution = damped_solve(lambda v: jnp.array([1.0, 3.0]) * v, jnp.ones(2), damping=1.0)
    >>> solution.x.round(4), bool(solution.converged)
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
  operator = as_operator(matvec, getattr(matvec, "like", vector))
  b = (as_vector(vector, operator.like[0]),)
  # The squares of a small or large vector would under- or overflow.
  power = near_one(b)
  (x,), residual = operator.run(_conjugate_gradients, (), scaled(b, power), damping, tol, num_steps)
  x, near = x / power, x
  # A solution too small or large for its dtype has no residual.
  lost = jnp.abs(x * power - near).max() > 4 * jnp.finfo(x.dtype).eps * jnp.abs(near).max()
  residual = jnp.where(lost, jnp.inf, residual)
  return Solution(x, residual, residual <= 2 * tol)


class CGState(NamedTuple):
  """The state of the conjugate gradient iteration."""

  x: Vector
  residual: Vector
  direction: Vector
  square: Array  # the squared norm of the residual
  number: Array


def _conjugate_gradients(
  operator: LinearOperator, b: Vector, damping: Array, tol: Array, num_steps: Array
) -> tuple[Vector, Array]:
  """Returns the solution, and the norm of its residual relative to `b`."""
  square = inner(b, b)

  def goes_on(state: CGState) -> Array:
    return (state.square > tol**2 * square) & (state.number < num_steps)

  def step(state: CGState) -> CGState:
    product = plus(operator(state.direction), damping, state.direction)
    return _cg_step(state, product)

  start = CGState(scaled(b, 0), b, b, square, jnp.int32(0))
  x = operator.repeat_while(goes_on, step, start).x
  product = plus(operator(x), damping, x)
  rounding = jnp.finfo(square.dtype).eps * norm(product)
  left = jnp.maximum(norm(plus(b, -1, product)), rounding)
  return x, left / jnp.maximum(jnp.sqrt(square), jnp.finfo(square.dtype).tiny)


@jax.jit
def _cg_step(state: CGState, product: Vector) -> CGState:
  power = near_one(product)
  length = state.square / inner(state.direction, scaled(product, power)) * power
  x = plus(state.x, length, state.direction)
  residual = plus(state.residual, -length, product)
  square = inner(residual, residual)
  direction = plus(residual, square / state.square, state.direction)
  return CGState(x, residual, direction, square, state.number + 1)

"""Eigenpairs and traces of a Hessian whose vectors are split over devices as the parameters are."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxreg._checks import check_count, check_key
from jaxreg.flatness._batches import num_examples
from jaxreg.flatness._common import same, scalar_loss, widened
from jaxreg.flatness._eigen import EigenPairs, ranked, steps_of
from jaxreg.flatness._trace import Estimate, check_samples
from jaxreg.typing import Array, Key

Vector = tuple[Array, ...]  # an array for each selected parameter, of its shape and sharding


def is_split(leaves: Any) -> bool:
  """Whether an array lies on several devices, in parts."""
  shardings = [leaf.sharding for leaf in leaves if isinstance(leaf, jax.Array)]
  return any(not sharding.is_fully_replicated for sharding in shardings)


def leaves_of(operator: Any) -> Vector:
  """The selected parameters."""
  return tuple(itertools.compress(jax.tree.leaves(operator.params), operator.mask))


def split_eigenpairs(
  curvature: Any,
  *,
  key: Key,
  num_pairs: int = 1,
  num_steps: int | None = None,
  which: str = "largest",
  tol: float = 1e-3,
  max_bytes: int | None = None,
) -> EigenPairs:
  """Lanczos with full reorthogonalisation and thick restarts; `Curvature.top_eigenpairs` explains it."""
  like = leaves_of(curvature.operator)
  steps = steps_of(sum(leaf.size for leaf in like), key, num_pairs, num_steps, which)
  most, kept_of = steps, lambda most: num_pairs + (most - num_pairs) // 2
  if max_bytes is not None:
    check_count(max_bytes, "max_bytes")
    one, largest = (of(leaf.nbytes for leaf in like) for of in (sum, max))
    # A product and its sum are beside the basis; in a restart, the next vector and a leaf of the new basis.
    needed = lambda most: most * one + max(3 * one, one + kept_of(most) * largest)
    least = min(num_pairs + 2, steps)
    if needed(least) > max_bytes:
      raise ValueError(f"max_bytes must be at least {needed(least)} for {least} vectors, got {max_bytes}")
    most = max(number for number in range(least, steps + 1) if needed(number) <= max_bytes)
  kept = kept_of(most)
  basis: list[Vector] = []
  matrix = np.zeros((0, 0))
  v, scale, length = _unit(_normal(key, like)), 0.0, 0.0
  for number in range(steps):
    if len(basis) == most:  # a thick restart: the best Ritz vectors span the new space
      values, rows = _sorted(matrix, which)
      matrix = np.diag(values[:kept])
      basis = _combined(basis, rows[:, :kept])
    basis.append(v)
    w = product(curvature, v)
    scale = max(scale, _norm(w))
    w, along = _away(w, basis)
    w, again = _away(w, basis)
    column, count = along + again, len(basis)
    grown = np.zeros((count, count))
    grown[:-1, :-1] = matrix
    grown[-1], grown[:, -1] = column, column
    matrix, length = grown, _norm(w)
    if not math.isfinite(length):
      raise ValueError("matvec must return finite values, got NaN or infinity")
    if length <= 10 * float(jnp.finfo(like[0].dtype).eps) * scale:  # the space is exhausted
      length, w = 0.0, _normal(jax.random.fold_in(jax.random.key(0), number), like)
      w = _away(_unit(_away(w, basis)[0]), basis)[0]
    v = _unit(w)
    del w  # else it would be beside the basis in a restart
  values, rows = _sorted(matrix, which)
  residuals = length * np.abs(rows[-1, :num_pairs])
  converged = residuals <= tol * np.abs(values).max()
  vectors = [dict(zip(curvature.names, one, strict=True)) for one in _combined(basis, rows[:, :num_pairs])]
  value, residual = (jnp.asarray(x, like[0].dtype) for x in (values[:num_pairs], residuals))
  return EigenPairs(value, vectors, residual, jnp.asarray(converged))  # type: ignore[arg-type]


def split_trace(
  curvature: Any, *, key: Key, num_samples: int, owners: Sequence[int] | None = None
) -> Estimate:
  """The trace by products with random signs; with `owners`, one trace for each owner of parameters."""
  check_key(key)
  check_samples(num_samples)
  like, traces = leaves_of(curvature.operator), []
  for number in range(num_samples):
    signs = _signs(jax.random.fold_in(jax.random.clone(key), number), like)
    each = _inner(signs, product(curvature, signs))
    traces.append(each.sum() if owners is None else np.bincount(owners, each))
  values = jnp.asarray(np.stack(traces), like[0].dtype)
  return Estimate(values.mean(axis=0), values.std(axis=0, ddof=1) / math.sqrt(num_samples))


def product(curvature: Any, vector: Vector) -> Vector:
  """One pass over the data."""
  running, count = None, 0
  for number, batch in enumerate(curvature.batches()):
    size = num_examples(batch)
    operator = curvature.of_batch(batch)
    # XLA may leave a product whole, unless it is told.
    parts = zip(_product(number, operator, vector, size), vector, strict=True)
    found = jax.block_until_ready(tuple(jax.device_put(x, v.sharding) for x, v in parts))
    running = found if running is None else _add(running, found)
    count += size
  if running is None:
    raise ValueError("data must have at least one batch each time it is iterated, got none")
  return _scaled(running, 1 / count)


@jax.jit
def _product(number, operator, vector, size):
  leaves, tree = jax.tree.flatten(operator.params)
  key = same(operator.key)
  key = None if key is None else jax.random.fold_in(key, number)

  def loss(selected: Vector) -> Array:
    new = iter(selected)
    merged = [next(new) if taken else leaf for leaf, taken in zip(leaves, operator.mask, strict=True)]
    return scalar_loss(operator.loss_fn, jax.tree.unflatten(tree, merged), widened(operator.batch), key)

  point = tuple(itertools.compress(leaves, operator.mask))
  with jax.default_matmul_precision("highest"):
    found = jax.jvp(jax.grad(loss), (point,), (vector,))[1]
  return tuple(x * size for x in found)


def _sorted(matrix: np.ndarray, which: str) -> tuple[np.ndarray, np.ndarray]:
  values, rows = np.linalg.eigh(matrix)
  order = ranked(values, which, np)
  return values[order], rows[:, order]


def _drawn(function: Any, key: Key, like: Vector) -> Vector:
  """Draws arrays of the shapes and shardings of others, each part where it stays."""
  own = zip(jax.random.split(key, len(like)), like, strict=True)
  return tuple(_drawing(function, x.shape, x.dtype, x.sharding)(key) for key, x in own)


@functools.lru_cache(maxsize=256)
def _drawing(function: Any, shape: Any, dtype: Any, sharding: Any) -> Any:
  """Compiled once for each shape and sharding, not for each vector."""
  return jax.jit(functools.partial(function, shape=shape, dtype=dtype), out_shardings=sharding)


_normal, _signs = (functools.partial(_drawn, draw) for draw in (jax.random.normal, jax.random.rademacher))
_add = jax.jit(lambda a, b: tuple(x + y for x, y in zip(a, b, strict=True)), donate_argnums=0)
_scaled = jax.jit(lambda a, factor: tuple((x * factor).astype(x.dtype) for x in a))
_less = jax.jit(
  lambda a, factor, b: tuple((x - factor * y).astype(x.dtype) for x, y in zip(a, b, strict=True)),
  donate_argnums=0,
)
_inners = jax.jit(lambda a, b: jnp.stack([(x * y).sum() for x, y in zip(a, b, strict=True)]))


def _inner(a: Vector, b: Vector) -> np.ndarray:
  """The inner product of each pair of arrays, in float64."""
  return np.asarray(_inners(a, b), np.float64)


def _norm(a: Vector) -> float:
  return math.sqrt(float(_inner(a, a).sum()))


def _unit(a: Vector) -> Vector:
  return _scaled(a, 1 / _norm(a))


def _away(w: Vector, basis: list[Vector]) -> tuple[Vector, np.ndarray]:
  """What is left of `w` orthogonally to the basis, and its components."""
  along = np.zeros(len(basis))
  for number, v in enumerate(basis):
    along[number] = float(_inner(v, w).sum())
    w = _less(w, along[number], v)
  return w, along


def _combined(basis: list[Vector], rows: np.ndarray) -> list[Vector]:
  """The vectors whose coordinates are the columns of `rows`; takes the arrays out of `basis` one by one."""
  leaves = [list(zip(leaf)) for leaf in zip(*basis, strict=True)]
  basis.clear()
  for leaf in leaves:
    found = []
    for column in rows.T:
      total = _scaled(leaf[0], column[0])
      for factor, x in zip(column[1:], leaf[1:], strict=True):
        total = _less(total, -factor, x)
      found.append(total)
    leaf[:] = found
  return [tuple(x for (x,) in one) for one in zip(*leaves, strict=True)]

"""Vectors as tuples of arrays: one flat array, or an array per parameter, split over devices as that is."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxreg._scaled import power_of_two
from jaxreg._sharding import partitioned
from jaxreg.typing import Array, Key

Vector = tuple[Array, ...]
Basis = tuple[Array, ...]  # the rows of several vectors: `[rows, *shape]` for each array of a vector


def is_split(arrays: Iterable[Any]) -> bool:
  """Tells whether an array lies on several devices, in parts."""
  shardings = [x.sharding for x in arrays if isinstance(x, jax.Array) and not isinstance(x, Tracer)]
  return any(not sharding.is_fully_replicated for sharding in shardings)


def layout(vector: Vector) -> tuple[NamedSharding, ...] | None:
  """Returns the shardings of a vector on several devices whose axes are automatic, else None.

  Along explicit axes the types of the arrays say how they are split.
  """
  shardings = tuple(x.sharding for x in vector if not isinstance(x, Tracer))
  several = any(len(sharding.device_set) > 1 for sharding in shardings)
  return shardings if several and all(map(_is_automatic, shardings)) else None  # type: ignore[return-value]


def _is_automatic(sharding: Any) -> bool:
  kinds = sharding.mesh.axis_types if isinstance(sharding, NamedSharding) else (None,)
  return all(kind == AxisType.Auto for kind in kinds)


def laid_out(vector: Vector, shardings: tuple[NamedSharding, ...] | None) -> Vector:
  """Tells XLA in compiled code how a vector is sharded; it may copy it to each device otherwise."""
  return vector if shardings is None else jax.lax.with_sharding_constraint(vector, shardings)


def placed_like(vector: Vector, like: Vector) -> Vector:
  """Puts a vector where the parameters lie: each placement of arguments compiles a program again."""
  return tuple(_put_like(x, y) for x, y in zip(vector, like, strict=True))


def _put_like(x: Array, like: Array) -> Array:
  traced = isinstance(x, Tracer) or isinstance(like, Tracer)
  # Each `device_put` takes 20 microseconds, and most arrays are there.
  if traced or not like.committed or (x.committed and x.sharding == like.sharding):
    return x
  return jax.device_put(x, like.sharding)


def draw(function: Callable[..., Array], key: Key, like: Vector) -> Vector:
  """Draws a vector by `function(key, shape, dtype)`, each part on its own device."""
  keys = jax.random.split(key, len(like))
  return tuple(_draw_array(function, key, x) for key, x in zip(keys, like, strict=True))


def _draw_array(function: Callable[..., Array], key: Key, like: Array) -> Array:
  if not is_split([like]):
    return function(key, like.shape, like.dtype)
  return _draw_sharded(function, like.shape, like.dtype, like.sharding)(key)


@functools.lru_cache(maxsize=256)
def _draw_sharded(function: Callable[..., Array], shape: Any, dtype: Any, sharding: Any) -> Any:
  """Compiles a draw once for each shape and sharding."""
  return jax.jit(functools.partial(function, shape=shape, dtype=dtype), out_shardings=sharding)


@jax.jit
def inner_products(a: Vector, b: Vector) -> Array:
  """Computes the inner product of each pair of arrays, `[arrays]`."""
  return jnp.stack([(x * y).sum() for x, y in zip(a, b, strict=True)])


def inner(a: Vector, b: Vector) -> Array:
  """Computes the inner product of two vectors."""
  return inner_products(a, b).sum()


@jax.jit
def norm(a: Vector) -> Array:
  """Computes the Euclidean norm of a vector; squares of small or large entries do not under- or overflow."""
  power = near_one(a)
  near = scaled(a, power)
  return jnp.sqrt(inner_products(near, near).sum()) / power


def near_one(a: Vector) -> Array:
  """Returns a power of two that brings the largest entry of a vector near 1."""
  largest = jnp.stack([jnp.abs(x).max(initial=0) for x in a])
  return power_of_two(largest, (0,))[0]


@jax.jit
def scaled(a: Vector, factor: Array) -> Vector:
  """Multiplies a vector by a number, in the dtype of the vector."""
  return tuple((x * factor).astype(x.dtype) for x in a)


@jax.jit
def plus(a: Vector, factor: Array, b: Vector) -> Vector:
  """Computes `a + factor * b`."""
  return tuple((x + factor * y).astype(x.dtype) for x, y in zip(a, b, strict=True))


def unit(a: Vector) -> Vector:
  """Divides a vector by its norm."""
  near = scaled(a, near_one(a))
  return scaled(near, 1 / norm(near))


@functools.partial(jax.jit, donate_argnums=0)
def store(basis: Basis, vector: Vector, row: Array | int) -> Basis:
  """Writes a vector into a row of the basis."""
  return partitioned(_store, basis, vector, row, like=basis)


def _store(basis: Basis, vector: Vector, row: Array | int) -> Basis:
  pairs = zip(basis, vector, strict=True)
  return tuple(jax.lax.dynamic_update_index_in_dim(rows, x, row, axis=0) for rows, x in pairs)


def orthogonalized(basis: Basis, vector: Vector) -> tuple[Vector, Array]:
  """Subtracts a vector's projection on the rows of the basis; also returns its coordinates `[rows]`.

  The array that holds the vector is overwritten where it can be.
  """
  return _orthogonalized(layout(vector), basis, vector)


@functools.partial(jax.jit, static_argnums=0, donate_argnums=2)
def _orthogonalized(shardings: Any, basis: Basis, vector: Vector) -> tuple[Vector, Array]:
  coordinates = jnp.zeros(basis[0].shape[0], jnp.result_type(*vector))
  left, along = partitioned(_without_projection, basis, vector, like=(vector, coordinates))
  return laid_out(left, shardings), along


def _without_projection(basis: Basis, vector: Vector) -> tuple[Vector, Array]:
  pairs = list(zip(basis, vector, strict=True))
  along = functools.reduce(jnp.add, [jnp.tensordot(rows, x, x.ndim) for rows, x in pairs])
  return tuple((x - jnp.tensordot(along, rows, 1)).astype(x.dtype) for rows, x in pairs), along


@jax.jit
def combined(rows: Array, coefficients: Array) -> Array:
  """Computes linear combinations of the rows of one array: `[rows, ...]` and `[rows, k]` give `[k, ...]`."""
  zeros = jnp.zeros((coefficients.shape[1], *rows.shape[1:]), rows.dtype)
  sharding = jax.typeof(rows).sharding
  if any(sharding.spec):
    zeros = jax.sharding.reshard(zeros, NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec)))
  return partitioned(_combined, rows, coefficients, like=zeros)


def _combined(rows: Array, coefficients: Array) -> Array:
  return jnp.tensordot(coefficients.T.astype(rows.dtype), rows, 1)


@jax.jit
def unstacked(rows: Array) -> Vector:
  """Returns the rows of an array as separate arrays."""
  return tuple(rows[number] for number in range(len(rows)))


@functools.partial(jax.jit, donate_argnums=0)
def recombined(rows: Array, coefficients: Array) -> Array:
  """Replaces the rows of an array by the combinations `[rows, k]`, and the rest by zeros, in place."""
  return partitioned(_recombined, rows, coefficients, like=rows)


def _recombined(rows: Array, coefficients: Array) -> Array:
  new = _combined(rows, coefficients)
  return jnp.zeros_like(rows).at[: len(new)].set(new)


def branch(condition: Array, yes: Callable[[], Vector], no: Callable[[], Vector]) -> Vector:
  """Computes one of two vectors: in Python if the condition is known, else in compiled code."""
  if isinstance(condition, Tracer):
    return jax.lax.cond(condition, yes, no)
  return yes() if condition else no()

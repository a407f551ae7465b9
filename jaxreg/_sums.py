"""Sums of very many terms: added one by one in float32, they would stop growing or drift."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxreg._sharding import partitioned
from jaxreg.typing import Array

Compensated = tuple[Array, Array]

# The rows of a block; more if the sums of so many blocks would take much memory.
ROWS = 32


def sum_of_blocks(function: Callable[..., Array], rows: int, *arrays: Array) -> Array:
  """Sums a function of blocks of `rows` rows, `[rows, ...]`, over the leading axis of the arrays.

  The values of all blocks are in memory at once, and a reduction adds them in pairs.
  """

  def add_up(*arrays: Array) -> Array:
    blocks, rest = divmod(len(arrays[0]), rows)
    parts = []
    if blocks:

      def cut(x):
        return x[: blocks * rows].reshape(blocks, rows, *x.shape[1:])

      parts.append(jax.vmap(function)(*map(cut, arrays)).sum(axis=0))
    if rest or not blocks:
      parts.append(function(*(x[blocks * rows :] for x in arrays)))
    return sum(parts[1:], parts[0])

  return partitioned(add_up, *arrays, kept=slice(0))


def segment_sums(x: Array, index: Array, num: int) -> Array:
  """Sums the entries of `x` `[n]` by their `index` `[n]`, in `[0, num)`.

  `jax.ops.segment_sum` adds one entry after the other, so in float32 a count of ones stops at 2**24.
  """

  def sums(x, index):
    return jax.ops.segment_sum(x, index, num_segments=num)

  return sum_of_blocks(sums, max(ROWS, num), x, index)


def products(a: Array, b: Array) -> Array:
  """Computes `a.T @ b` for `[n, i]` and `[n, j]` with very many rows.

  On a CPU, a matrix product adds long columns nearly one entry after the other.
  """
  i, j = a.shape[1], b.shape[1]
  return sum_of_blocks(lambda a, b: a.T @ b, max(ROWS, 4 * i * j // max(i + j, 1)), a, b)


def gram(a: Array) -> Array:
  """Computes `a.T @ a` as `products` does, symmetric to the last bit."""
  matrix = products(a, a)
  return (matrix + matrix.T) / 2


def compensated(zero: Array) -> Compensated:
  """Starts a running sum in a loop: the sum, and what its rounding lost. `total` adds the two."""
  return zero, jnp.zeros_like(zero)


def add(running: Compensated, term: Array) -> Compensated:
  """Adds a term and what was lost before (Kahan's sum, with Knuth's two-sum, which takes large terms too)."""
  large, lost = running
  term = term + lost
  new = large + term
  of_term = new - large
  lost = (large - (new - of_term)) + (term - of_term)
  return new, jnp.where(jnp.isfinite(new), lost, 0)


def total(running: Compensated) -> Array:
  """The value of a running sum."""
  return running[0] + running[1]


def sum_of_rows(function: Callable[..., Array], rows: int, zero: Array, *arrays: Array) -> Array:
  """Sums a function of `rows` rows of the arrays over all of their rows, in a loop that copies no array."""
  number = len(arrays[0])
  rows = min(rows, number)
  chunks, rest = divmod(number, rows)

  def rows_sum(first, size):
    return function(*(jax.lax.dynamic_slice_in_dim(x, first, size) for x in arrays))

  def add_chunk(chunk, running):
    return add(running, rows_sum(chunk * rows, rows))

  running = jax.lax.fori_loop(0, chunks, add_chunk, compensated(zero))
  return total(add(running, rows_sum(chunks * rows, rest)) if rest else running)


def weighted(values: Array, weights: Array) -> tuple[Array, Array]:
  """Computes `(sum, count)` of values `[batch, ...]`; values of weight 0 may be NaN."""
  values = values.astype(jnp.promote_types(values.dtype, weights.dtype))
  weights = jnp.broadcast_to(jnp.expand_dims(weights, range(weights.ndim, values.ndim)), values.shape)
  return jnp.where(weights != 0, values * weights, 0).sum(), weights.sum()

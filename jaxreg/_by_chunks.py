"""A function of many rows, computed a chunk of the rows at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxreg.typing import Array, Batch


def by_chunks(function: Callable[..., Any], data: Any, weights: Any, chunk_size: int) -> Any:
  """Computes `function(number, part, weights)` of chunk after chunk of the rows of `data`.

  The backward pass computes the chunks again. Results with a row for each row of the chunk come together in
  the order of the rows of `data`; those with one row, in the order of the chunks.
  """
  chunks, rest = divmod(jax.tree.leaves(data)[0].shape[0], chunk_size)

  # The chunk is taken inside: otherwise the backward pass would keep a copy of all chunks.
  @jax.checkpoint
  def chunk(data, weights, number):
    return function(number, strided_chunk(data, chunks, chunk_size, number), weights)

  values = []
  if chunks:
    each = jax.lax.map(lambda number: chunk(data, weights, number), jnp.arange(chunks))
    values.append(jax.tree.map(lambda x: x.swapaxes(0, 1).reshape(-1, *x.shape[2:]), each))
  if rest or not chunks:
    values.append(jax.checkpoint(function)(jnp.int32(chunks), last_rows(data, rest), weights))
  return jax.tree.map(lambda *x: jnp.concatenate(x), *values)


def strided_chunk(batch: Batch, chunks: int, chunk_size: int, number: Array) -> Batch:
  """Takes the examples `number, number + chunks, ...` of the first `chunks * chunk_size`."""

  def take(x: Array) -> Array:
    x = x[: chunks * chunk_size].reshape(chunk_size, chunks, *x.shape[1:])
    return jax.lax.dynamic_index_in_dim(x, number, axis=1, keepdims=False)

  return jax.tree.map(take, batch)


def last_rows(batch: Batch, number: int) -> Batch:
  """Takes the last `number` examples."""

  def take(x: Any) -> Any:
    return x[len(x) - number :]

  return jax.tree.map(take, batch)

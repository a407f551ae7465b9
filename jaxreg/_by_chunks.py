"""A function of many rows, computed a chunk of the rows at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def by_chunks(function: Callable[..., Any], data: Any, weights: Any, chunk_size: int) -> Any:
  """Computes `function(number, part, weights)` of chunk after chunk of the rows of `data`.

  The backward pass computes the chunks again. Results with a row for each row of the chunk come together in
  the order of the rows of `data`; those with one row, in the order of the chunks.
  """
  size = jax.tree.leaves(data)[0].shape[0]
  chunks, rest = divmod(size, chunk_size)

  # The chunk is taken inside: otherwise the backward pass would keep a copy of all chunks.
  @jax.checkpoint
  def chunk(data, weights, number, index):
    part = jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, index, 1, keepdims=False), data)
    return function(number, part, weights)

  values = []
  if chunks:
    dealt = jax.tree.map(lambda x: x[: size - rest].reshape(chunk_size, chunks, *x.shape[1:]), data)
    each = jax.lax.map(lambda number: chunk(dealt, weights, number, number), jnp.arange(chunks))
    values.append(jax.tree.map(lambda x: x.swapaxes(0, 1).reshape(-1, *x.shape[2:]), each))
  if rest or not chunks:
    last = jax.tree.map(lambda x: x[size - rest :][:, None], data)
    values.append(chunk(last, weights, jnp.int32(chunks), jnp.int32(0)))
  return jax.tree.map(lambda *x: jnp.concatenate(x), *values)

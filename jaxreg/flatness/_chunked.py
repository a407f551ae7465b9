"""A loss over a data set that is too large for one pass, computed in chunks."""

import functools

import jax
import jax.numpy as jnp

from jaxreg.flatness._common import ONE_BATCH, is_list_of_batches
from jaxreg.typing import Array, Batch, Key, LossFn, Params, check_count, check_loss_fn


def chunked(loss_fn: LossFn, chunk_size: int) -> LossFn:
  """Computes the same mean loss chunk by chunk, and its derivatives of any order too.

  .. math:: L = \\frac1n \\sum_c n_c L_c

  It needs the memory of one chunk beside the data: the backward pass recomputes each chunk. Chunk `c` of `k`
  whole chunks has the examples `c, c + k, c + 2k, ...`, so that with data sharded over devices every chunk is
  sharded too. The remaining examples make a last, smaller chunk. Each chunk draws its noise from its own key.

  Args:
    loss_fn: `(params, batch, *, key) -> scalar`, a mean over the leading axis of the batch's leaves.
    chunk_size: number of examples at once.

  Returns:
    A loss of the same signature. Losses made from the same arguments are equal and have the same hash, so
    that they share compiled functions.

  Raises:
    TypeError: if `loss_fn` does not take these arguments, or `chunk_size` is no integer.
    ValueError: if `chunk_size` is below 1.

  Example:
    >>> loss = chunked(lambda params, batch, *, key: (params * batch).mean(), 2)
    >>> loss(jnp.float32(2.0), jnp.arange(5.0), key=None)
    Array(4., dtype=float32)
  """
  check_loss_fn(loss_fn)
  check_count(chunk_size, "chunk_size")
  return _chunked(loss_fn, int(chunk_size))


@functools.lru_cache(maxsize=32)
def _chunked(loss_fn: LossFn, chunk_size: int) -> LossFn:
  def whole(params: Params, batch: Batch, *, key: Key | None = None) -> Array:
    size = num_examples(batch)
    chunks, rest = divmod(size, chunk_size)

    def one(params: Params, part: Batch, number: Array) -> Array:
      part_key = None if key is None else jax.random.fold_in(key, number)
      return loss_fn(params, part, key=part_key)

    # The chunk is taken inside: otherwise the backward pass would keep all chunks, a copy of the data.
    @jax.checkpoint
    def chunk(params: Params, batch: Batch, number: Array) -> Array:
      return one(params, jax.tree.map(lambda x: dealt(x, chunks, chunk_size, number), batch), number)

    def add(total: Array, number: Array) -> tuple[Array, None]:
      return total + chunk(params, batch, number), None

    # The loss may be wider than the parameters.
    loss = jnp.zeros((), jax.eval_shape(one, params, batch, jnp.int32(0)).dtype)
    if chunks:
      total, _ = jax.lax.scan(add, loss, jnp.arange(chunks))
      loss = total * (chunk_size / size)
    if rest:
      last = jax.tree.map(lambda x: x[size - rest :], batch)
      loss = loss + jax.checkpoint(one)(params, last, jnp.int32(chunks)) * (rest / size)
    return loss

  return whole


def dealt(x: Array, chunks: int, chunk_size: int, number: Array) -> Array:
  """The examples `number, number + chunks, ...` of the first `chunks * chunk_size`, `[chunk_size, ...]`."""
  x = x[: chunks * chunk_size].reshape(chunk_size, chunks, *x.shape[1:])
  return jax.lax.dynamic_index_in_dim(x, number, axis=1, keepdims=False)


def num_examples(batch: Batch) -> int:
  """Returns the length of the leading axis, which all leaves must share.

  Raises:
    ValueError: if they do not share it, or there are no leaves or no examples.
  """
  shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves(batch)]
  sizes = {shape[0] if shape else None for shape in shapes}
  if is_list_of_batches(batch) and len(sizes) != 1:
    raise ValueError(f"batch must be one batch, got a list of {len(batch)}; {ONE_BATCH}")
  if len(sizes) != 1 or None in sizes or 0 in sizes:
    raise ValueError(f"batch: its leaves must share a leading axis of examples, got shapes {shapes}")
  return next(iter(sizes))  # type: ignore[return-value]

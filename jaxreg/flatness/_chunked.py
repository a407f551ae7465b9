"""Means and sums over more examples than fit in one pass, chunk by chunk."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from jaxreg._analyses import as_mean_and_count, num_examples
from jaxreg._by_chunks import last_rows, strided_chunk
from jaxreg._checks import check_count, check_loss_fn
from jaxreg._sharding import partitioned
from jaxreg._sums import Compensated, add, compensated, total
from jaxreg.typing import Array, Batch, Key, LossFn, Params

# The maximum number of terms that one loop adds.
LOOP = 64

# The sum over chunks of means times counts, over the number of examples; and the sum of the counts.
Sums = tuple[Array, Array]


def chunked(loss_fn: LossFn, chunk_size: int) -> LossFn:
  """Computes the same mean loss chunk by chunk, and its derivatives of any order too.

  .. math:: L = \\frac{\\sum_c n_c L_c}{\\sum_c n_c}

  If some examples do not count, or not alike, the loss must return `(mean, count)`, as `(losses.sum() /
  where.sum(), where.sum())`. Then `n_c` is the count of a chunk, else its number of examples.

  In addition to the data it needs the memory of one chunk: the backward pass recomputes each chunk. Chunk `c`
  of `k` whole chunks has the examples `c, c + k, c + 2k, ...`, so that with data sharded over devices every
  chunk is sharded too. The remaining examples make a last, smaller chunk. Each chunk draws its noise from its
  own key.

  Args:
    loss_fn: `(params, batch, *, key) -> scalar`, a mean over the leading axis of the batch's leaves, or
      `(mean, count)`.
    chunk_size: how many examples to process at a time.

  Returns:
    A loss with the same arguments and results. Equal arguments give the same function, so `jit` compiles it
    once; outside of `jit` every call compiles.

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
  def loss(params: Params, batch: Batch, *, key: Key | None = None) -> Array:
    return partitioned(functools.partial(_mean_loss, loss_fn, chunk_size), params, batch, key, kept=slice(0))

  return loss


def _mean_loss(loss_fn: LossFn, chunk_size: int, params: Params, batch: Batch, key: Key | None) -> Any:
  size = num_examples(batch)
  chunks, rest = divmod(size, chunk_size)

  def loss_of_part(params: Params, part: Batch, number: Array) -> Any:
    part_key = None if key is None else jax.random.fold_in(key, number)
    return loss_fn(params, part, key=part_key)

  # The loss may be wider than the parameters.
  like, counted = as_mean_and_count(jax.eval_shape(loss_of_part, params, batch, jnp.int32(0)), "loss_fn")
  dtype = jnp.int32 if counted is None else counted.dtype
  zero = jnp.zeros((), like.dtype), jnp.zeros((), dtype)

  @jax.checkpoint
  def sums_of_part(params: Params, part: Batch, number: Array) -> Sums:
    loss, count = as_mean_and_count(loss_of_part(params, part, number), "loss_fn")
    if count is None:
      return loss * (num_examples(part) / size), zero[1]
    # The mean of a part in which nothing counts may be NaN, and so may its derivatives.
    loss = jax.lax.cond(count > 0, lambda: loss_of_part(params, part, number)[0], lambda: zero[0])
    return loss * (count / size).astype(loss.dtype), count

  # The chunk is taken inside: otherwise the backward pass would keep all chunks, a copy of the data.
  @jax.checkpoint
  def sums_of_chunk(params: Params, batch: Batch, number: Array) -> Sums:
    return sums_of_part(params, strided_chunk(batch, chunks, chunk_size, number), number)

  sums = zero
  if chunks:
    sums = _sum(functools.partial(sums_of_chunk, params, batch), chunks, zero)
  if rest:
    sums = _added(sums, sums_of_part(params, last_rows(batch, rest), jnp.int32(chunks)))
  total, count = sums
  if counted is None:
    return total
  share = (count / size).astype(total.dtype)
  return total / jnp.where(share > 0, share, 1), count


def _added(first: Sums, second: Sums) -> Sums:
  return first[0] + second[0], first[1] + second[1]


def _sum(function: Callable[[Array], Sums], count: int, zero: Sums) -> Sums:
  """Sums a function of the numbers below `count`, in nested loops of at most `LOOP` terms.

  In one long loop a float32 sum drifts. The backward pass adds the gradients of the chunks in the same loops.
  """
  lengths = [count]
  while lengths[0] > LOOP:
    # Of the possible lengths of an inner loop, take the one that pads the last inner loop least.
    length = min(range(LOOP // 2, LOOP // 4, -1), key=functools.partial(_padding, lengths[0]))
    lengths = [-(-lengths[0] // length), length, *lengths[1:]]
  padded = math.prod(lengths) != count

  def add_term(sums: Sums, number: Array) -> tuple[Sums, None]:
    if not padded:
      return _added(sums, function(number)), None
    # Padding repeats the last chunk with weight 0.
    terms = function(jnp.minimum(number, count - 1))
    return _added(sums, tuple(jnp.where(number < count, x, 0) for x in terms)), None  # type: ignore[arg-type]

  def add_terms(sums: Sums, numbers: Array) -> tuple[Sums, None]:
    step = add_terms if numbers.ndim > 1 else add_term
    return _added(sums, jax.lax.scan(step, zero, numbers)[0]), None

  numbers = jnp.arange(math.prod(lengths)).reshape(lengths)
  return jax.lax.scan(add_terms if numbers.ndim > 1 else add_term, zero, numbers)[0]


def _padding(count: int, length: int) -> int:
  """Returns by how much `count` is below a multiple of `length`."""
  return -count % length


def checked_chunk_size(chunk_size: int | None, batch: Batch) -> int:
  """Returns how many examples to process at a time: all by default."""
  size = num_examples(batch)
  if chunk_size is None:
    return size
  check_count(chunk_size, "chunk_size")
  return int(chunk_size)


def sum_over_chunks(
  function: Callable[..., Any], chunk_size: int, params: Any, batch: Batch, key: Key | None = None
) -> Any:
  """Sums a tree, `function(params, examples, key, first, stride)`, over the chunks of a batch.

  The examples have the numbers `first, first + stride, ...`. Equal functions share a program. Outside of
  `jit` the loop runs on the host: on a CPU XLA runs convolutions in a compiled loop many times slower. Along
  the axes of an explicit mesh it is compiled, too, and the sum is a copy on each device.
  """
  try:
    hash(function)
  except TypeError as error:
    raise TypeError(
      f"functions must be hashable, so that a second call compiles nothing, got one of an {error}; a "
      "dataclass is hashable with frozen=True or eq=False"
    ) from None
  return partitioned(
    functools.partial(_sum_over_chunks, function, chunk_size), params, batch, key, kept=slice(0)
  )


def _sum_over_chunks(function, chunk_size, params, batch, key):
  batch, size = jax.tree.map(jnp.asarray, batch), num_examples(batch)
  chunks, rest = divmod(size, chunk_size) if chunk_size < size else (0, size)
  last = None
  if rest:
    last = _apply(function, params, last_rows(batch, rest), key, size - rest, 1)
  if not chunks:
    return last

  def add_chunk(number: Array | int, sums: list[Compensated]) -> list[Compensated]:
    return _add_chunk(function, chunks, chunk_size, sums, number, params, batch, key)

  like = jax.eval_shape(functools.partial(_of_chunk, function, chunks, chunk_size), 0, params, batch, key)
  sums = [compensated(jnp.zeros(x.shape, x.dtype)) for x in jax.tree.leaves(like)]
  if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((params, batch, key))):
    sums = jax.lax.fori_loop(0, chunks, add_chunk, sums)
  else:
    for number in range(chunks):
      sums = jax.block_until_ready(add_chunk(number, sums))
  if rest:
    sums = list(map(add, sums, jax.tree.leaves(last)))
  return jax.tree.unflatten(jax.tree.structure(like), map(total, sums))


_apply = jax.jit(lambda function, *args: function(*args), static_argnums=0)


def _of_chunk(function, chunks, chunk_size, number, params, batch, key):
  return function(params, strided_chunk(batch, chunks, chunk_size, number), key, number, chunks)


@functools.partial(jax.jit, static_argnums=(0, 1, 2), donate_argnums=3)
def _add_chunk(function, chunks, chunk_size, sums, number, params, batch, key):
  leaves = jax.tree.leaves(_of_chunk(function, chunks, chunk_size, number, params, batch, key))
  return list(map(add, sums, leaves))

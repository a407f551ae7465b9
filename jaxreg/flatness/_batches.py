"""A mean over more examples than fit in one pass: by chunks in compiled code, or by batches on the host."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxreg._checks import check_count, check_loss_fn
from jaxreg._sharding import partitioned
from jaxreg._sums import Compensated, add, compensated, total
from jaxreg.flatness._common import ONE_BATCH, is_list_of_batches, same, widened
from jaxreg.flatness._subset import as_vector
from jaxreg.typing import Array, Batch, Key, LossFn, Params


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
    A loss of the same signature; the same one for the same arguments, so that compiled functions are shared.

  Example:
    >>> loss = chunked(lambda params, batch, *, key: (params * batch).mean(), 2)
    >>> loss(jnp.float32(2.0), jnp.arange(5.0), key=None)
    Array(4., dtype=float32)
  """
  check_loss_fn(loss_fn)
  check_count(chunk_size, "chunk_size")
  return _chunked(loss_fn, int(chunk_size))


# The most terms that one loop adds.
LOOP = 64


@functools.lru_cache(maxsize=32)
def _chunked(loss_fn: LossFn, chunk_size: int) -> LossFn:
  def whole(params: Params, batch: Batch, *, key: Key | None = None) -> Array:
    return partitioned(loss_of, params, batch, key, kept=slice(0))

  def loss_of(params: Params, batch: Batch, key: Key | None) -> Array:
    size = num_examples(batch)
    chunks, rest = divmod(size, chunk_size)

    def one(params: Params, part: Batch, number: Array) -> Array:
      part_key = None if key is None else jax.random.fold_in(key, number)
      return loss_fn(params, part, key=part_key)

    # The chunk is taken inside: otherwise the backward pass would keep all chunks, a copy of the data.
    @jax.checkpoint
    def chunk(params: Params, batch: Batch, number: Array) -> Array:
      return one(params, jax.tree.map(lambda x: dealt(x, chunks, chunk_size, number), batch), number)

    # The loss may be wider than the parameters.
    loss = jnp.zeros((), jax.eval_shape(one, params, batch, jnp.int32(0)).dtype)
    if chunks:
      loss = _sum(lambda number: chunk(params, batch, number), chunks, loss) * (chunk_size / size)
    if rest:
      last = jax.tree.map(lambda x: x[size - rest :], batch)
      loss = loss + jax.checkpoint(one)(params, last, jnp.int32(chunks)) * (rest / size)
    return loss

  return whole


def _sum(function: Callable[[Array], Array], count: int, zero: Array) -> Array:
  """Sums a function of the numbers below `count`, in nested loops of at most `LOOP` terms.

  In one long loop a float32 sum drifts. The backward pass adds the gradients of the chunks in the same loops.
  """
  lengths = [count]
  while lengths[0] > LOOP:
    # The length that leaves the fewest numbers over in the last inner loop.
    length = min(range(LOOP // 2, LOOP // 4, -1), key=lambda length: -lengths[0] % length)
    lengths = [-(-lengths[0] // length), length, *lengths[1:]]

  # The numbers left over repeat the last chunk and count for nothing.
  counted = lambda number: jnp.where(number < count, function(jnp.minimum(number, count - 1)), 0)
  innermost = function if math.prod(lengths) == count else counted

  def loop(numbers: Array) -> Array:
    each = loop if numbers.ndim > 1 else innermost
    return jax.lax.scan(lambda total, number: (total + each(number), None), zero, numbers)[0]

  return loop(jnp.arange(math.prod(lengths)).reshape(lengths))


def dealt(x: Array, chunks: int, chunk_size: int, number: Array) -> Array:
  """The examples `number, number + chunks, ...` of the first `chunks * chunk_size`, `[chunk_size, ...]`."""
  x = x[: chunks * chunk_size].reshape(chunk_size, chunks, *x.shape[1:])
  return jax.lax.dynamic_index_in_dim(x, number, axis=1, keepdims=False)


def num_examples(batch: Batch) -> int:
  """Returns the length of the leading axis, which all leaves must share."""
  shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves(batch)]
  sizes = {shape[0] if shape else None for shape in shapes}
  if is_list_of_batches(batch) and len(sizes) != 1:
    raise ValueError(f"batch must be one batch, got a list of {len(batch)}; {ONE_BATCH}")
  if len(sizes) != 1 or None in sizes or 0 in sizes:
    raise ValueError(f"batch: its leaves must share a leading axis of examples, got shapes {shapes}")
  return next(iter(sizes))  # type: ignore[return-value]


@dataclasses.dataclass(eq=False)
class Streamed:
  """A linear operator that is the mean of one operator over batches, weighted by their examples.

  The loop is on the host: it needs the memory of one batch, takes batches from anywhere, and on a CPU it
  keeps the threads of convolutions, which a compiled loop loses.
  """

  operator: Any  # as from `hvp`, without a batch
  data: Iterable[Batch]
  chunk_size: int | None = None
  mesh: Mesh | None = None  # the examples of each batch are sharded over all its devices

  @functools.cached_property
  def like(self) -> Array:
    """The selected parameters, `[size]`: the shape and dtype of a vector."""
    return self.operator.like

  def batches(self) -> Iterator[Batch]:
    """Yields the batches on their devices."""
    for batch in self.data:
      size = num_examples(batch)
      step = min(self.chunk_size or size, size)
      for first in range(0, size, step):
        rows = functools.partial(_rows, first=first, size=min(step, size - first))
        yield placed(batch if step == size else jax.tree.map(rows, batch), self.mesh)

  def __call__(self, vector: Array) -> Array:
    """Multiplies a vector `[size]` by the matrix: one pass over the data."""
    if isinstance(vector, Tracer):
      raise TypeError(
        "products with a Curvature run on the host: call it outside of jit, grad, vmap and scan"
      )
    vector = as_vector(vector, self.like)
    if (only := self.only_batch) is not None:
      return self.finished(_apply(self.mesh, only, vector))
    add_batch = lambda running, size, number, batch: _add(
      self.mesh, running, vector, size, number, self.of_batch(batch)
    )
    return self.mean(add_batch)

  def mean(self, add_batch: Callable[[Compensated, int, int, Batch], Compensated]) -> Array:
    """The mean over examples of what `add_batch(running, size, number, batch)` adds: `[size]`."""
    running, count = compensated(jnp.zeros_like(self.like)), 0
    for number, batch in enumerate(self.batches()):
      size = num_examples(batch)
      # The devices compute while the host reads the next batch; no more than one batch waits for them.
      running = add_batch(jax.block_until_ready(running), size, number, batch)
      count += size
    if not count:
      raise ValueError("data must have at least one batch each time it is iterated, got none")
    return self.finished(total(running) / count)

  def finished(self, value: Any) -> Any:
    """Waits for a program over several devices: on a CPU two that run at once may wait for each other."""
    return value if self.mesh is None else jax.block_until_ready(value)

  def of_batch(self, batch: Batch) -> Any:
    """Returns the operator of one batch."""
    return dataclasses.replace(self.operator, batch=batch, key=same(self.operator.key))

  @functools.cached_property
  def only_batch(self) -> Any:
    """The operator of data that are one batch in memory, as `_linear` returns it; else None."""
    if not (isinstance(self.data, list) and len(self.data) == 1):
      return None
    if num_examples(self.data[0]) > (self.chunk_size or math.inf):
      return None
    return self.finished(_linear(self.of_batch(placed(self.data[0], self.mesh))))


def _numbered(operator: Any, number: Array | int) -> Any:
  """The operator of a batch, with the batch's key."""
  key = None if operator.key is None else jax.random.fold_in(operator.key, number)
  return dataclasses.replace(operator, batch=widened(operator.batch), key=key)


@partial(jax.jit, static_argnums=0, donate_argnums=1)
def _add(mesh, running, vector, size, number, operator):
  large, small = add(running, _numbered(operator, number)(vector) * size)
  return replicated(large, mesh), replicated(small, mesh)


@jax.jit
def _linear(operator: Any) -> Callable[[Array], Array]:
  """Computes what all products share, such as activations and gradients; the rest is a linear function."""
  operator = _numbered(operator, 0)
  return jax.linearize(operator, jnp.zeros_like(operator.like))[1]


@partial(jax.jit, static_argnums=0)
def _apply(mesh: Mesh | None, linear: Callable[[Array], Array], vector: Array) -> Array:
  return replicated(linear(vector), mesh)


def iterate(
  matvec: Callable[[Array], Array],
  count: int,
  vector_of: Callable[[Array, Any], Array],
  step: Callable[[Array, Any, Array], Any],
  state: Any,
  enough: Callable[[int, Any], bool] | None = None,
) -> Any:
  """Computes `state = step(number, state, matvec(vector_of(number, state)))` for each number below `count`.

  The loop is compiled, or on the host if the products are. There, `step` and `vector_of` must be functions of
  a module, to be compiled once, and the loop ends when `enough(products, state)` is true.
  """
  if not isinstance(matvec, Streamed):
    return jax.lax.fori_loop(0, count, lambda n, s: step(n, s, matvec(vector_of(n, s))), state)
  for number in range(count):
    state = matvec.finished(_step(step, number, state, matvec(_vector(vector_of, number, state))))
    if enough is not None and enough(number + 1, state):
      break
  return state


_step = jax.jit(
  lambda step, number, state, product: step(number, state, product), static_argnums=0, donate_argnums=2
)
_vector = jax.jit(lambda vector_of, number, state: vector_of(number, state), static_argnums=0)


def automatic(mesh: Mesh) -> Mesh:
  """The same devices, with axes along which XLA chooses the sharding of every intermediate value."""
  return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * mesh.devices.ndim)


def placed(batch: Batch, mesh: Mesh | None) -> Batch:
  """Shards a batch over the devices of a mesh; copies it to each if it does not divide evenly."""
  batch = jax.tree.map(_array, batch)
  if mesh is None:
    return batch
  divides = num_examples(batch) % mesh.size == 0
  return jax.device_put(batch, NamedSharding(mesh, PartitionSpec(mesh.axis_names if divides else None)))


def replicated(x: Array, mesh: Mesh | None) -> Array:
  """Keeps a value of compiled code whole on every device."""
  return x if mesh is None else jax.lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec()))


def _array(x: Any) -> Any:
  """Returns arrays of other libraries, such as PyTorch's tensors, as NumPy arrays, without a copy."""
  known = isinstance(x, jax.Array | np.ndarray) or not hasattr(x, "__array__")
  return x if known else np.asarray(x)


def _rows(x: Any, first: int, size: int) -> Any:
  # The start is an argument of the slice, so one compiled program serves all starts.
  return jax.lax.dynamic_slice_in_dim(x, first, size) if isinstance(x, jax.Array) else x[first : first + size]


def batches_of(data: Any) -> Iterable[Batch]:
  """Returns an iterable of batches: a list or a loader as it is, any other tree as one batch."""
  if isinstance(data, Iterator):
    raise TypeError(
      f"data must start anew in each product, got the iterator {type(data).__name__}; give a list of "
      "batches, or an object whose __iter__ returns a new iterator"
    )
  if isinstance(data, list):
    kind = lambda x: (jnp.shape(x)[1:], jnp.result_type(_array(x)))
    kinds = {(jax.tree.structure(batch), *map(kind, jax.tree.leaves(batch))) for batch in data}
    if len(kinds) != 1:
      raise TypeError(
        f"a list must have batches of one structure, got {len(kinds)}; one batch is a tuple or a dict"
      )
    return data
  loader = jax.tree_util.all_leaves([data]) and not hasattr(data, "dtype") and isinstance(data, Iterable)
  return data if loader else [data]

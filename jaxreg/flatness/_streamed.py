"""A linear operator as a mean over batches: the loop over the batches is on the host."""

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
from jax.flatten_util import ravel_pytree
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxreg._analyses import example_count, full_precision, num_examples, same, times_count, widened
from jaxreg._sums import add, compensated, total
from jaxreg.flatness._operators import Operator
from jaxreg.flatness._vectors import Basis, Vector, is_split, laid_out, layout, placed_like
from jaxreg.typing import Array, Batch

# The sum of a vector in a loop, and what its rounding lost.
RunningSum = tuple[Vector, Vector]


class HostLoops:
  """The loops of an algorithm in Python, in which each step is compiled."""

  like: Any  # a vector
  mesh: Any = None  # where each device has whole vectors

  def run(self, algorithm: Callable[..., Any], static: tuple[Any, ...], *args: Any) -> Any:
    """Calls an algorithm on this operator."""
    return algorithm(self, *static, *args)

  def for_each(
    self,
    first: int,
    stop: int,
    step: Callable[[Any, Any], Any],
    state: Any,
    enough: Callable[[int, Any], bool] | None = None,
  ) -> Any:
    """Repeats `state = step(number, state)` for the numbers from `first`; ends if `enough(number, state)`."""
    for number in range(first, stop):
      state = jax.block_until_ready(step(number, state))
      if enough is not None and enough(number, state):
        break
    return state

  def repeat_while(self, condition: Callable[[Any], Any], step: Callable[[Any], Any], state: Any) -> Any:
    """Repeats `state = step(state)` as long as `condition(state)` is true."""
    while condition(state):
      state = jax.block_until_ready(step(state))
    return state

  def map(self, function: Callable[[Array], tuple[Array, ...]], values: Array) -> tuple[Array, ...]:
    """Computes a function of each value and stacks the results."""
    return tuple(jnp.stack(part) for part in zip(*map(function, values), strict=True))

  def zero_rows(self, number: int) -> Basis:
    """Returns a basis of `number` zero vectors, split as the vectors are.

    On a mesh, where each device has whole vectors, the rows are sharded over all devices. There may be more
    rows, so that they divide evenly.
    """
    if self.mesh is None:
      return tuple(jnp.zeros((number, *x.shape), x.dtype, device=_rows_sharding(x)) for x in self.like)
    sharding = NamedSharding(self.mesh, PartitionSpec(self.mesh.axis_names))
    number = -(-number // self.mesh.size) * self.mesh.size
    return tuple(jnp.zeros((number, *x.shape), x.dtype, device=sharding) for x in self.like)


def _rows_sharding(x: Array) -> Any:
  """Returns the sharding of several arrays like `x` along a new first axis."""
  if not is_split([x]):
    return None
  sharding: Any = x.sharding
  return NamedSharding(sharding.mesh, PartitionSpec(None, *sharding.spec))


@dataclasses.dataclass(eq=False)
class Streamed(HostLoops):
  """The mean of an operator over batches, weighted by how many of their examples count.

  Its vectors have an array per parameter, split over devices as the parameter is. It needs the memory of one
  batch, takes batches from anywhere, and on a CPU it keeps the threads of convolutions, which a compiled loop
  loses.
  """

  operator: Operator  # without a batch
  data: Iterable[Batch]
  chunk_size: int | None = None
  mesh: Mesh | None = None  # the examples of each batch are sharded over all its devices
  shared: bool = True  # keep what all products of data in one batch share, such as activations

  @functools.cached_property
  def like(self) -> Vector:
    """The parameters as a vector."""
    return self.operator.leaves

  @functools.cached_property
  def layout(self) -> tuple[NamedSharding, ...] | None:
    """How vectors lie on several devices, as `layout` returns it."""
    return layout(self.like)

  @full_precision
  def __call__(self, vector: Vector) -> Vector:
    """Multiplies a vector by the matrix: one pass over the data."""
    vector = placed_like(vector, self.like)
    if (linear := self.only_batch) is not None:
      return self.finished(_apply(self.layout, linear, vector))
    return self.mean(partial(self._add_product, vector), self.like)

  def _add_product(
    self, vector: Vector, running: RunningSum, number: int, batch: Batch
  ) -> tuple[RunningSum, Array]:
    return _add_product(self.layout, running, vector, number, self._on_batch(batch))

  def mean(
    self, add_batch: Callable[[RunningSum, int, Batch], tuple[RunningSum, Array]], like: Vector
  ) -> Vector:
    """Computes the mean over examples of what `add_batch(running, number, batch)` adds.

    `add_batch` returns the new sum, and how many examples of the batch count.
    """
    running, counts = tuple(placed_like(part, like) for part in _start_sum(like)), []
    for number, batch in enumerate(self.batches()):
      # The devices compute while the host reads the next batch; at most one batch waits for them.
      running, count = add_batch(jax.block_until_ready(running), number, batch)
      counts.append(count)
    if not counts:
      raise ValueError("data must have at least one batch each time it is iterated, got none")
    count = math.fsum(map(float, counts))
    _check_count(count)
    return self.finished(_end_sum(layout(like), *running, count))

  def batches(self) -> Iterator[Batch]:
    """Yields the batches on their devices."""
    for batch in self.data:
      size = num_examples(batch)
      step = min(self.chunk_size or size, size)
      for first in range(0, size, step):
        rows = partial(_rows, first=first, size=min(step, size - first))
        yield placed(batch if step == size else jax.tree.map(rows, batch), self.mesh)

  def _on_batch(self, batch: Batch) -> Operator:
    return dataclasses.replace(self.operator, batch=batch, key=same(self.operator.key))

  @functools.cached_property
  def only_batch(self) -> Any:
    """The linear function of `_linearized` if the data are one batch in memory, else None."""
    if not (self.shared and isinstance(self.data, list) and len(self.data) == 1):
      return None
    if num_examples(self.data[0]) > (self.chunk_size or math.inf):
      return None
    linear, count = self.finished(_linearized(self._on_batch(placed(self.data[0], self.mesh))))
    if count is not None:
      _check_count(float(count))
    return linear

  def finished(self, value: Any) -> Any:
    """Waits for a program over several devices: on a CPU two that run at once may wait for each other."""
    return value if self.layout is None else jax.block_until_ready(value)


@dataclasses.dataclass(eq=False)
class Flat(HostLoops):
  """A streamed operator of vectors that are one flat array."""

  whole: Streamed

  @functools.cached_property
  def like(self) -> Vector:
    """The parameters as one array."""
    return (self.whole.operator.like,)

  @property
  def mesh(self) -> Mesh | None:
    """The mesh on which each device has whole vectors."""
    return self.whole.mesh

  def __call__(self, vector: Vector) -> Vector:
    """Multiplies a vector of one array."""
    return _joined(self.whole(_split(self.whole.like, placed_like(vector, self.like))))


@jax.jit
def _split(like: Vector, vector: Vector) -> Vector:
  return ravel_pytree(like)[1](vector[0])


@jax.jit
def _joined(vector: Vector) -> Vector:
  return (ravel_pytree(vector)[0],)


@partial(jax.jit, static_argnums=0)
def _zeros(shardings: Any, like: Vector) -> Vector:
  return laid_out(tuple(jnp.zeros_like(x) for x in like), shardings)


@dataclasses.dataclass(eq=False)
class Block(HostLoops):
  """The diagonal block of some arrays of a vector, by products with the whole operator."""

  whole: Streamed
  numbers: tuple[int, ...]  # of the arrays

  @property
  def like(self) -> Vector:
    """The parameters of the block."""
    return tuple(self.whole.like[number] for number in self.numbers)

  @property
  def mesh(self) -> Mesh | None:
    """The mesh on which each device has whole vectors."""
    return self.whole.mesh

  def __call__(self, vector: Vector) -> Vector:
    """Multiplies a vector that has an array for each parameter of the block."""
    padded = list(_zeros(self.whole.layout, self.whole.like))
    for number, x in zip(self.numbers, vector, strict=True):
      padded[number] = x
    product = self.whole(tuple(padded))
    return tuple(product[number] for number in self.numbers)


@jax.jit
def _start_sum(like: Vector) -> RunningSum:
  zeros = tuple(jnp.zeros_like(x) for x in like)
  return tuple(zip(*map(compensated, zeros), strict=True))  # type: ignore[return-value]


@partial(jax.jit, static_argnums=0, donate_argnums=1)
def _end_sum(shardings: Any, large: Vector, lost: Vector, count: float) -> Vector:
  means = tuple((total(pair) / count).astype(pair[0].dtype) for pair in zip(large, lost, strict=True))
  return laid_out(means, shardings)


@partial(jax.jit, donate_argnums=0)
def add_vector(running: RunningSum, vector: Vector, count: Array) -> RunningSum:
  """Adds the mean of a batch, times its count, to a running sum."""
  triples = zip(*running, vector, strict=True)
  sums = (add((large, lost), times_count(x, count.astype(x.dtype))) for large, lost, x in triples)
  return tuple(zip(*sums, strict=True))  # type: ignore[return-value]


@partial(jax.jit, static_argnums=0, donate_argnums=1)
def _add_product(shardings, running, vector, number, operator):
  product, count = _numbered(operator, number).product_and_count(vector)
  count = example_count(count, operator.batch, jnp.result_type(*product))
  large, lost = add_vector(running, laid_out(product, shardings), count)
  return (laid_out(large, shardings), laid_out(lost, shardings)), count


def _numbered(operator: Operator, number: Array | int) -> Operator:
  """Gives the operator of a batch the key of the batch."""
  key = None if operator.key is None else jax.random.fold_in(operator.key, number)
  return dataclasses.replace(operator, batch=widened(operator.batch), key=key)


@jax.jit
def _linearized(operator: Operator) -> tuple[Callable[[Vector], Vector], Array | None]:
  """Computes what all products share, such as activations and gradients; the rest is a linear function.

  Also returns how many examples count in the loss, None for all of the batch.
  """
  operator = _numbered(operator, 0)
  zeros = tuple(jnp.zeros_like(x) for x in operator.leaves)
  _, linear, count = jax.linearize(operator.product_and_count, zeros, has_aux=True)
  return linear, count


def _check_count(count: float) -> None:
  if not count > 0:
    raise ValueError(f"data must have examples that count in the loss, got the count {count:g}")


@partial(jax.jit, static_argnums=0)
def _apply(shardings: Any, linear: Callable[[Vector], Vector], vector: Vector) -> Vector:
  return laid_out(linear(vector), shardings)


def automatic(mesh: Mesh) -> Mesh:
  """Returns the same devices with axes along which XLA chooses the sharding of every intermediate value."""
  return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * mesh.devices.ndim)


def placed(batch: Batch, mesh: Mesh | None) -> Batch:
  """Shards a batch over the devices of a mesh; copies it to each if it does not divide evenly."""
  batch = jax.tree.map(_as_numpy, batch)
  if mesh is None:
    return batch
  divides = num_examples(batch) % mesh.size == 0
  return jax.device_put(batch, NamedSharding(mesh, PartitionSpec(mesh.axis_names if divides else None)))


def _as_numpy(x: Any) -> Any:
  """Returns arrays of other libraries, such as PyTorch's tensors, as NumPy arrays, without a copy."""
  known = isinstance(x, jax.Array | np.ndarray) or not hasattr(x, "__array__")
  return x if known else np.asarray(x)


def _rows(x: Any, first: int, size: int) -> Any:
  # The start is an argument of the slice, so one compiled program serves all starts.
  return jax.lax.dynamic_slice_in_dim(x, first, size) if isinstance(x, jax.Array) else x[first : first + size]


def as_batches(data: Any) -> Iterable[Batch]:
  """Returns an iterable of batches: a list or a loader as it is, any other tree as one batch."""
  if isinstance(data, Iterator):
    raise TypeError(
      f"data must start from the beginning in each product, got the iterator {type(data).__name__}; give a "
      "list of batches, or an object whose __iter__ returns a new iterator"
    )
  if isinstance(data, list):
    structures = {(jax.tree.structure(batch), *map(_kind, jax.tree.leaves(batch))) for batch in data}
    if len(structures) != 1:
      raise TypeError(
        "data: a list is a list of batches, which must have one tree structure, shapes and dtypes, got "
        f"{len(structures)}; pass a single batch as a tuple or dict"
      )
    return data
  loader = jax.tree_util.all_leaves([data]) and not hasattr(data, "dtype") and isinstance(data, Iterable)
  return data if loader else [data]


def _kind(x: Any) -> tuple[Any, ...]:
  """Returns the shape of an example and the dtype."""
  return jnp.shape(x)[1:], jnp.result_type(_as_numpy(x))

"""Products with a mean over batches, one batch after the other, by a loop on the host."""

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

from jaxreg.flatness._chunked import num_examples
from jaxreg.flatness._common import same, widened
from jaxreg.flatness._operators import as_vector
from jaxreg.typing import Array, Batch


@dataclasses.dataclass(frozen=True, eq=False)
class Streamed:
  """A linear operator that is the mean of one operator over batches, weighted by their examples.

  The loop is on the host: it needs the memory of one batch, takes batches from anywhere, and on a CPU it
  keeps the threads of convolutions, which a compiled loop loses. Of data that are one batch in a list, it
  keeps what all products share, such as activations; a `chunk_size` below the batch's size prevents that.

  Attributes:
    operator: as from `hvp`, without a batch.
    data: an iterable of batches that starts anew in each product.
    chunk_size: the most examples of a batch at once.
    mesh: the examples of each batch are sharded over all its devices.
  """

  operator: Any
  data: Iterable[Batch]
  chunk_size: int | None = None
  mesh: Mesh | None = None

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
    if isinstance(vector, Tracer):
      raise TypeError(
        "products with a Curvature run on the host: call it outside of jit, grad, vmap and scan"
      )
    like = self.like
    vector = as_vector(vector, like)
    if (only := self.only_batch) is not None:
      return self.finished(_apply(self.mesh, only, vector))
    total, count = jnp.zeros_like(like), 0
    for number, batch in enumerate(self.batches()):
      size = num_examples(batch)
      # While the host reads a batch, the devices compute; they must not fall behind by more than that.
      total = _add(self.mesh, jax.block_until_ready(total), vector, size, number, self.of_batch(batch))
      count += size
    if not count:
      raise ValueError("data must have at least one batch each time it is iterated, got none")
    return self.finished(total / count)

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
def _add(mesh: Mesh | None, total: Array, vector: Array, size: Array, number: Array, operator: Any) -> Array:
  return replicated(total + _numbered(operator, number)(vector) * size, mesh)


@jax.jit
def _linear(operator: Any) -> Callable[[Array], Array]:
  """Computes what all products share, such as activations and gradients; the rest is a function of a vector.

  The operator is linear, so this function is the operator.
  """
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
  a module or their `Partial`, so that they are compiled once, and the loop ends when `enough` of the number
  of products and the state is true.
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
  """Shards a batch over the devices of a mesh; one that does not divide goes to all of them."""
  batch = jax.tree.map(_array, batch)
  if mesh is None:
    return batch
  divides = num_examples(batch) % mesh.size == 0
  return jax.device_put(batch, NamedSharding(mesh, PartitionSpec(mesh.axis_names if divides else None)))


def replicated(x: Array, mesh: Mesh | None) -> Array:
  """Keeps a value of compiled code whole on every device."""
  return x if mesh is None else jax.lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec()))


def _array(x: Any) -> Any:
  """PyTorch's tensors and the like as NumPy arrays, without a copy."""
  known = isinstance(x, jax.Array | np.ndarray) or not hasattr(x, "__array__")
  return x if known else np.asarray(x)


def _rows(x: Any, first: int, size: int) -> Any:
  # With a start that is an argument, JAX's arrays share one program.
  return jax.lax.dynamic_slice_in_dim(x, first, size) if isinstance(x, jax.Array) else x[first : first + size]


def batches_of(data: Any) -> Iterable[Batch]:
  """Returns data as an iterable of batches: a list and a loader are such, any other tree is one batch.

  Raises:
    TypeError: if `data` is an iterator, which cannot start anew, or a list whose items are no batches alike.
  """
  if isinstance(data, Iterator):
    raise TypeError(
      f"data must start anew in each product, got the iterator {type(data).__name__}; give a list of "
      "batches, or an object whose __iter__ returns a new iterator"
    )
  if isinstance(data, list):
    kinds = {
      (
        jax.tree.structure(batch),
        tuple((jnp.shape(x)[1:], jnp.result_type(_array(x))) for x in jax.tree.leaves(batch)),
      )
      for batch in data
    }
    if len(kinds) != 1:
      raise TypeError(
        f"a list must have batches alike, got {len(kinds)} kinds; one batch is a tuple or a dict"
      )
    return data
  loader = jax.tree_util.all_leaves([data]) and not hasattr(data, "dtype") and isinstance(data, Iterable)
  return data if loader else [data]

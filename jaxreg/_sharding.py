"""Arrays on meshes with explicit axes, the default of `jax.make_mesh`, where JAX never guesses a sharding.

All functions do nothing for arrays that are not split along an explicit axis.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxreg.typing import Array, Key


def sharding_like(x: Array, shape: tuple[int, ...] | None = None) -> NamedSharding | None:
  """The `out_sharding` of a draw or gather of the given shape that meets `x` entry by entry.

  Axes are matched from the last one; an axis whose size differs from that of `x` is not split.
  """
  sharding = _split(x)
  if sharding is None or shape is None:
    return sharding
  axes = dict(enumerate(zip(reversed(x.shape), reversed(sharding.spec))))

  def axis_name(size, i):
    return axes[i][1] if i in axes and axes[i][0] == size else None

  spec = [axis_name(size, len(shape) - 1 - axis) for axis, size in enumerate(shape)]
  return NamedSharding(sharding.mesh, PartitionSpec(*spec))


def drawn_like(
  x: Array, function: Callable[..., Array], key: Key, shape: tuple[int, ...], **options: Any
) -> Array:
  """Draws `function(key, shape=shape, **options)` of `jax.random`, split as `sharding_like` says."""
  sharding = sharding_like(x, shape)
  if sharding is None:
    return function(key, shape=shape, **options)
  fixed = {"shape": shape, "out_sharding": sharding}
  if "dtype" in options:
    fixed["dtype"] = options.pop("dtype")
  return _drawn(jax.lax.stop_gradient(x), key, options, function, tuple(fixed.items()))


# Outside of `jit` and `jax.set_mesh`, only an argument on the mesh tells XLA on which devices to compute.
@functools.partial(jax.jit, static_argnums=(3, 4), keep_unused=True)
def _drawn(_: Array, key: Key, options: Any, function: Callable[..., Array], fixed: Any) -> Array:
  return function(key, **options, **dict(fixed))


@functools.partial(jax.jit, static_argnums=2, keep_unused=True)
def _resharded(_: Array, x: Array, sharding: NamedSharding) -> Array:
  return jax.sharding.reshard(x, sharding)


def placed_like(x: Array, other: Array) -> Array:
  """`x`, split as `sharding_like` says, and varying over the manual axes of `shard_map` as `other` does.

  As the start of a loop `x` then has the type of what the loop computes from `other`.
  """
  sharding = sharding_like(other, x.shape)
  x = x if sharding is None else _resharded(jax.lax.stop_gradient(other), x, sharding)
  return varying_like(x, other)


def varying_like(x: Array, other: Array) -> Array:
  """Lets `x` vary over the manual axes of `shard_map` of `other`; its gradient sums over them."""
  if AxisType.Manual not in jax.typeof(other).sharding.mesh.axis_types:
    return x
  return jnp.where(jnp.zeros_like(other, bool, shape=()), x, x)


def entries(values: Array, index: Array) -> Array:
  """Takes the entry at `index` `[...]` from the last axis of `values` `[..., n]`: `[..., 1]`."""

  def take(values, index):
    return jnp.take_along_axis(values, index[..., None], axis=-1)

  return partitioned(take, values, index, kept=slice(-1))


def rows(table: Array, index: Array) -> Array:
  """Takes the rows at `index` `[...]` of `table` `[n, ...]`, split as `index` is."""
  return partitioned(lambda index, table: table[index], index, table)


def gathered(x: Array) -> Array:
  """Copies the whole of `x` to every device, as a sort of all entries needs it."""
  sharding = _split(x)
  return x if sharding is None else jax.sharding.reshard(x, NamedSharding(sharding.mesh, PartitionSpec()))


def partitioned(function: Callable[..., Any], *arrays: Any, kept: Any = slice(None), like: Any = None) -> Any:
  """Computes `function(*arrays)`, which closes over no array, with automatic axes: XLA chooses how to split.

  The leading axes of the result are split like the axes `kept` of the first array; several results may have
  a slice each. If `like` is given, a tree of arrays, the results are split as these arrays are.
  """
  leaves = jax.tree.leaves(arrays)
  sharding = next((each for each in map(_split, leaves) if each is not None), None)
  if sharding is None:
    return function(*arrays)

  def placement(x, axes):
    return NamedSharding(sharding.mesh, PartitionSpec(*jax.typeof(x).sharding.spec[axes]))

  if like is None:
    out = jax.tree.map(lambda axes: placement(leaves[0], axes), kept)
  else:
    out = jax.tree.map(lambda x: placement(x, slice(None)), like)
  return jax.sharding.auto_axes(function, out_sharding=out)(*arrays)


def _split(x: Array) -> NamedSharding | None:
  sharding = jax.typeof(x).sharding
  return sharding if any(sharding.spec) else None

"""The leaves that a mask selects, in at least float32, and the axes of one unit's weights."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg import paths
from jaxreg._checks import check_axes, check_floating
from jaxreg.typing import Array, Mask, Params, PyTree


def wide(x: ArrayLike) -> Array:
  x = jnp.asarray(x)
  floats = jnp.issubdtype(x.dtype, jnp.floating)
  return x.astype(jnp.promote_types(x.dtype, jnp.float32)) if floats else x


def rebuilt(tree: PyTree) -> PyTree:
  """Rebuilds the containers of a pytree around its leaves.

  A function of the user's that changes a Flax NNX variable in place then changes only its own copy.
  """
  return jax.tree.map(lambda leaf: leaf, tree)


def selected(params: Params, mask: Mask) -> list[tuple[str, Array]]:
  """Returns names and values, in at least float32, of the leaves that `mask` selects."""
  leaves = zip(paths.leaf_names(params), jax.tree.leaves(params), paths.chosen(params, mask))
  return [(name, wide(floating(leaf, name))) for name, leaf, taken in leaves if taken]


def total(terms: Iterable[Array]) -> Array:
  # Without a start value, which would widen the sum with x64 on.
  return functools.reduce(jnp.add, terms)


def map_selected(function: Callable[..., Array], params: Params, mask: Mask, *rest: PyTree) -> Params:
  """Replaces the selected leaves of `params` by `function(name, leaf, ...)`, with the leaves of `rest`.

  `function` sees leaves in at least float32; its result is cast back to the dtype of the leaf of `params`.
  """
  leaves, tree = jax.tree.flatten(params)
  others = map(jax.tree.leaves, rest)
  new = []
  for name, taken, leaf, *other in zip(
    paths.leaf_names(params), paths.chosen(params, mask), leaves, *others, strict=True
  ):
    if taken:
      leaf = floating(leaf, name)
      leaf = function(name, wide(leaf), *map(wide, other)).astype(leaf.dtype)
    new.append(leaf)
  return jax.tree.unflatten(tree, new)


def unit_axes(name: str, x: Array, axis: int | tuple[int, ...] | None) -> tuple[int, ...]:
  """Returns the axes of one unit's incoming weights: given, or inferred from name and rank."""
  if axis is None:
    return paths.incoming_axes(name, x.ndim)
  return tuple(sorted({*check_axes(axis, "axis", x.ndim, name or "params")}))


def absolute(x: Array) -> Array:
  # jnp.abs has the derivative 1 at 0. The derivative of sign(x) is 0, so this product has the derivative
  # sign(x).
  return jnp.sign(x) * x


def floating(leaf: Array, name: str) -> Array:
  return check_floating(leaf, f"params/{name}" if name else "params")


def group_factor(w: Array, axes: tuple[int, ...], size_weighted: bool) -> float:
  """Returns the factor of a unit's norm: the root of its number of weights, or 1."""
  return math.sqrt(math.prod(w.shape[axis] for axis in axes)) if size_weighted else 1.0

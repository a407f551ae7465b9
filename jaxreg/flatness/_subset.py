"""A subset of the parameters as one vector, and back."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from jaxreg import paths
from jaxreg.typing import Array, Params

Where = paths.Pattern | Iterable[paths.Pattern]


class Subset(NamedTuple):
  """Selected parameters.

  Attributes:
    flat: `[size]`, the selected leaves in the order of the tree, each flattened by rows.
    merge: `[size] -> params`, with these values in the selected leaves and all others unchanged.
    names: names of the selected leaves.
  """

  flat: Array
  merge: Callable[[Array], Params]
  names: tuple[str, ...]


def subset(params: Params, where: Where = "*") -> Subset:
  """Returns the parameters that `where` selects by name, as one vector.

  Args:
    params: any pytree of floating arrays.
    where: a glob on the leaf's name (`Dense_1/*`), a compiled regular expression, a callable on the name, or
      several of these.

  Returns:
    A `Subset`.

  Raises:
    ValueError: if nothing is selected, or one of the patterns selects nothing.
    TypeError: if a selected leaf is not floating.

  Example:
    >>> tree = {"Dense_0": {"kernel": jnp.ones((2, 2)), "bias": jnp.zeros(2)}}
    >>> subset(tree, "*/bias").names
    ('Dense_0/bias',)
  """
  return split(params, selected(params, where))


def selected(params: Params, where: Where) -> tuple[bool, ...]:
  """Which leaves `where` selects, in the order of the tree: hashable, so usable as a static argument."""
  names = paths.leaf_names(params)
  several = isinstance(where, Iterable) and not isinstance(where, str)
  patterns = list(where) if several else [where]  # type: ignore[arg-type]
  chosen = [jax.tree.leaves(paths.select(params, pattern)) for pattern in patterns]
  for pattern, mask in zip(patterns, chosen, strict=True):
    if not any(mask):
      raise ValueError(f"where: {pattern!r} selects no parameter; there are {', '.join(names) or 'none'}")
  if not patterns:
    raise ValueError(f"where: an empty sequence selects no parameter; there are {', '.join(names)}")
  mask = tuple(any(each) for each in zip(*chosen, strict=True))
  for name, leaf, taken in zip(names, jax.tree.leaves(params), mask, strict=True):
    if taken:
      paths.check_no_function(leaf, name)
    if taken and not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
      raise TypeError(f"where: {name} must be floating, got {jnp.result_type(leaf)}")
  return mask


def no_tree(x: Any) -> bool:
  """Whether `x` can be an array; lists count as arrays."""
  return jax.tree_util.all_leaves([x]) or isinstance(x, list | tuple)


def check_no_tree(x: Any, name: str, wanted: str, way: str) -> None:
  """Checks that `x` is no tree: some functions take directions as trees, others as vectors.

  Raises:
    TypeError: if `x` is a tree of arrays.
  """
  if not no_tree(x):
    raise TypeError(f"{name} must be {wanted}, got a tree; convert it with subset(tree, where).{way}")


def split(params: Params, mask: tuple[bool, ...]) -> Subset:
  """Like `subset`, but takes the result of `selected`."""
  leaves, tree = jax.tree.flatten(params)
  flat, unravel = ravel_pytree([leaf for leaf, taken in zip(leaves, mask, strict=True) if taken])

  def merge(vector: Array) -> Any:
    check_no_tree(vector, "vector", f"a vector of shape {flat.shape}, as flat is", "flat")
    if jnp.shape(vector) != flat.shape:
      raise ValueError(f"vector must have shape {flat.shape}, as flat has, got {jnp.shape(vector)}")
    new = iter(unravel(vector))
    return jax.tree.unflatten(
      tree, [next(new) if taken else leaf for leaf, taken in zip(leaves, mask, strict=True)]
    )

  names = tuple(name for name, taken in zip(paths.leaf_names(params), mask, strict=True) if taken)
  return Subset(flat, merge, names)

"""A subset of the parameters as one vector, and back."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from jaxreg import paths
from jaxreg.typing import Array, Params

Where = paths.Pattern | Iterable[paths.Pattern]

STATE_CLASSES = ("flax.BatchStat", "flax.Cache", "flax.Intermediate", "equinox.StateIndex")


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
    ValueError: if nothing is selected, one of the patterns selects nothing, or a selected leaf is state that
      the model updates itself, such as BatchNorm's running averages.
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
  state = [name for name, taken, no in zip(names, mask, _is_state(params), strict=True) if taken and no]
  if state:
    listed = ", ".join(state[:5]) + (", ..." if len(state) > 5 else "")
    raise ValueError(
      f"where selects {listed}, which the model updates itself, such as running averages; parameters alone "
      "are variables['params'] in Linen, nnx.split(model, nnx.Param, ...)[1] in NNX and "
      "eqx.nn.make_with_state(Model)(...)[0] in Equinox"
    )
  return mask


def _is_state(params: Params) -> list[bool]:
  """Which leaves are a model's state and no parameters, in the order of the tree.

  In Linen these are all collections beside `params`; NNX and Equinox say it by the class of a node.
  """
  if isinstance(params, Mapping) and "params" in params:
    return [name.split("/")[0] != "params" for name in paths.leaf_names(params)]
  nodes = jax.tree.leaves(params, is_leaf=_is_state_node)
  return [_is_state_node(node) for node in nodes for _ in jax.tree.leaves(node)]


def _is_state_node(node: Any) -> bool:
  """By name, so that neither library is imported."""
  classes = {f"{one.__module__.split('.')[0]}.{one.__name__}" for one in type(node).__mro__}
  return not classes.isdisjoint(STATE_CLASSES)


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

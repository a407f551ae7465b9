"""A subset of the parameters as one vector, and back."""

import itertools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike

from jaxreg import paths
from jaxreg._checks import check_wide
from jaxreg.flatness._common import scalar_loss
from jaxreg.typing import Array, Batch, Key, LossFn, Mask, Params

STATE_CLASSES = ("flax.BatchStat", "flax.Cache", "flax.Intermediate", "equinox.StateIndex")


class Subset(NamedTuple):
  """The result of `subset`."""

  flat: Array
  merge: Callable[[Array], Params]
  names: tuple[str, ...]


def subset(params: Params, mask: Mask = "*") -> Subset:
  """Returns the parameters that `mask` selects, as one vector.

  Args:
    params: any pytree of floating arrays.
    mask: a glob on the leaf's name (`Dense_1/*`), a compiled regular expression, several of these, a tree of
      bools, or a function from `params` to such a tree.

  Returns:
    A NamedTuple: `flat` `[size]`, the selected leaves in the order of the tree, each flattened by rows;
    `merge`, `[size] -> params`, puts such values into the selected leaves; `names` of the selected leaves.

  Raises:
    ValueError: for state that the model updates itself, such as BatchNorm's running averages.

  Example:
    >>> tree = {"Dense_0": {"kernel": jnp.ones((2, 2)), "bias": jnp.zeros(2)}}
    >>> subset(tree, "*/bias").names
    ('Dense_0/bias',)
  """
  return split(params, selected(params, mask))


def selected(params: Params, mask: Mask) -> tuple[bool, ...]:
  """Which leaves `mask` selects, in the order of the tree: hashable, so usable as a static argument."""
  chosen = tuple(paths.chosen(params, mask, default=paths.everything))
  names = paths.leaf_names(params)
  for name, leaf, taken in zip(names, jax.tree.leaves(params), chosen, strict=True):
    if taken and not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
      raise TypeError(f"mask: {name} must be floating, got {jnp.result_type(leaf)}")
  state = [name for name, taken, no in zip(names, chosen, _is_state(params), strict=True) if taken and no]
  if state:
    listed = ", ".join(state[:5]) + (", ..." if len(state) > 5 else "")
    raise ValueError(
      f"mask selects {listed}, which the model updates itself, such as running averages; parameters alone "
      "are variables['params'] in Linen, nnx.split(model, nnx.Param, ...)[1] in NNX and "
      "eqx.nn.make_with_state(Model)(...)[0] in Equinox"
    )
  return chosen


def _is_state(params: Params) -> list[bool]:
  """Which leaves are a model's state and no parameters, in the order of the tree.

  In Linen these are all collections beside `params`; NNX and Equinox say it by the class of a node.
  """
  if isinstance(params, Mapping) and "params" in params:
    return [name.split("/")[0] != "params" for name in paths.leaf_names(params)]
  nodes = jax.tree.leaves(params, is_leaf=_is_state_node)
  return [_is_state_node(node) for node in nodes for _ in jax.tree.leaves(node)]


def _is_state_node(node: Any) -> bool:
  """Compares names of classes, so that neither library is imported."""
  classes = {f"{one.__module__.split('.')[0]}.{one.__name__}" for one in type(node).__mro__}
  return not classes.isdisjoint(STATE_CLASSES)


def no_tree(x: Any) -> bool:
  """Whether `x` can be an array; lists count as arrays."""
  return jax.tree_util.all_leaves([x]) or isinstance(x, list | tuple)


def check_no_tree(x: Any, name: str, wanted: str, way: str) -> None:
  """Checks that `x` is no tree: some functions take directions as trees, others as vectors."""
  if not no_tree(x):
    raise TypeError(f"{name} must be {wanted}, got a tree; convert it with subset(tree, mask).{way}")


def check_directions(directions: ArrayLike, size: int) -> Array:
  """Returns `directions` if they are `[k, size]`."""
  check_no_tree(directions, "directions", f"rows [k, {size}]", "flat[None]")
  directions = check_wide(directions, "directions")
  if directions.ndim != 2 or directions.shape[1] != size or not len(directions):
    raise ValueError(
      f"directions must be [k, {size}], one row a direction with an entry for each selected parameter, "
      f"got {directions.shape}" + ("; directions[None] is one row" if directions.shape == (size,) else "")
    )
  return directions


def as_vector(vector: Array, like: Array) -> Array:
  """The vector in the dtype of `like`, whose shape it must have."""
  check_no_tree(vector, "vector", f"a vector of shape {like.shape}", "flat")
  if jnp.shape(vector) != like.shape:
    raise ValueError(f"vector must have shape {like.shape}, got {jnp.shape(vector)}")
  return jnp.asarray(vector, like.dtype)


def split(params: Params, mask: tuple[bool, ...]) -> Subset:
  """Like `subset`, but takes the result of `selected`."""
  leaves, tree = jax.tree.flatten(params)
  flat, unravel = ravel_pytree([leaf for leaf, taken in zip(leaves, mask, strict=True) if taken])

  def merge(vector: Array) -> Any:
    new = iter(unravel(as_vector(vector, flat)))
    return jax.tree.unflatten(
      tree, [next(new) if taken else leaf for leaf, taken in zip(leaves, mask, strict=True)]
    )

  return Subset(flat, merge, tuple(itertools.compress(paths.leaf_names(params), mask)))


def flat_loss(
  loss_fn: LossFn, params: Params, mask: tuple[bool, ...], batch: Batch, key: Key | None
) -> tuple[Array, Callable[[Array], Array]]:
  """The selected parameters `[size]`, and the loss as a function of them with fixed noise."""
  part = split(params, mask)
  return part.flat, lambda flat: scalar_loss(loss_fn, part.merge(flat), batch, key)

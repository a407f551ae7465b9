"""A subset of the parameters as one vector, and back."""

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike

from jaxreg import paths
from jaxreg._analyses import mean_loss
from jaxreg._checks import check_wide
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
      bools, or a function that returns such a tree for `params`.

  Returns:
    A NamedTuple: `flat` `[size]`, the selected leaves in the order of the tree, each flattened by rows;
    `merge`, `[size] -> params`, which replaces the selected leaves; `names` of the selected leaves.

  Raises:
    ValueError: if it selects state that the model updates, such as BatchNorm's running averages.

  Example:
    >>> tree = {"Dense_0": {"kernel": jnp.ones((2, 2)), "bias": jnp.zeros(2)}}
    >>> subset(tree, "*/bias").names
    ('Dense_0/bias',)
  """
  return split(params, selected(params, mask))


def selected(params: Params, mask: Mask) -> tuple[bool, ...]:
  """Returns whether `mask` selects each leaf, as a tuple that can be a static argument of compiled code."""
  chosen = tuple(paths.chosen(params, mask, default=paths.everything))
  names = paths.leaf_names(params)
  for name, leaf, taken in zip(names, jax.tree.leaves(params), chosen, strict=True):
    if taken and not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
      raise TypeError(f"mask: {name} must be floating, got {jnp.result_type(leaf)}")
  rows = zip(names, chosen, _is_state(params), strict=True)
  state = [name for name, taken, is_state in rows if taken and is_state]
  if state:
    listed = ", ".join(state[:5]) + (", ..." if len(state) > 5 else "")
    raise ValueError(
      f"mask selects {listed}, which the model updates itself, such as running averages; the parameters are "
      "variables['params'] in Linen, nnx.split(model, nnx.Param, ...)[1] in NNX and "
      "eqx.nn.make_with_state(Model)(...)[0] in Equinox"
    )
  return chosen


def _is_state(params: Params) -> list[bool]:
  """Returns for each leaf whether it is a model's state instead of a parameter.

  In Linen all collections other than `params` are state; NNX and Equinox mark it by the class of a node.
  """
  if isinstance(params, Mapping) and "params" in params:
    return [name.split("/")[0] != "params" for name in paths.leaf_names(params)]
  nodes = jax.tree.leaves(params, is_leaf=_is_state_node)
  return [_is_state_node(node) for node in nodes for _ in jax.tree.leaves(node)]


def _is_state_node(node: Any) -> bool:
  """Compares the names of classes, so that neither library is imported."""
  classes = {f"{one.__module__.split('.')[0]}.{one.__name__}" for one in type(node).__mro__}
  return not classes.isdisjoint(STATE_CLASSES)


def is_array_like(x: Any) -> bool:
  """Tells whether `x` can be an array or a list of arrays."""
  return jax.tree_util.all_leaves([x]) or isinstance(x, list | tuple)


def check_no_tree(x: Any, name: str, wanted: str, way: str) -> None:
  """Checks that `x` is not a tree: some functions take directions as trees, others as vectors."""
  if not is_array_like(x):
    raise TypeError(f"{name} must be {wanted}, got a tree; convert it with subset(tree, mask).{way}")


def check_directions(directions: ArrayLike, size: int) -> Array:
  """Checks that `directions` are `[k, size]`, and returns them as an array."""
  check_no_tree(directions, "directions", f"rows [k, {size}]", "flat[None]")
  directions = check_wide(directions, "directions")
  if directions.ndim != 2 or directions.shape[1] != size or not len(directions):
    raise ValueError(
      f"directions must be [k, {size}], one direction per row and one entry per selected parameter, "
      f"got {directions.shape}" + ("; directions[None] is one row" if directions.shape == (size,) else "")
    )
  return directions


def as_vector(vector: Array, like: Array) -> Array:
  """Checks that a vector has the shape of `like`, and returns it in the dtype of `like`."""
  check_no_tree(vector, "vector", f"a vector of shape {like.shape}", "flat")
  if jnp.shape(vector) != like.shape:
    raise ValueError(f"vector must have shape {like.shape}, got {jnp.shape(vector)}")
  return jnp.asarray(vector, like.dtype)


def split(params: Params, mask: tuple[bool, ...]) -> Subset:
  """Computes `subset` from the result of `selected`."""
  flat, unravel = ravel_pytree(leaves_in(params, mask))

  def merge(vector: Array) -> Params:
    return with_leaves(params, mask, unravel(as_vector(vector, flat)))

  return Subset(flat, merge, tuple(itertools.compress(paths.leaf_names(params), mask)))


def leaves_in(params: Params, mask: tuple[bool, ...]) -> tuple[Array, ...]:
  """Returns the selected leaves."""
  return tuple(itertools.compress(jax.tree.leaves(params), mask))


def with_leaves(params: Params, mask: tuple[bool, ...], selected_leaves: Iterable[Array]) -> Params:
  """Replaces the selected leaves."""
  leaves, tree = jax.tree.flatten(params)
  new = iter(selected_leaves)
  return jax.tree.unflatten(
    tree, [next(new) if taken else leaf for leaf, taken in zip(leaves, mask, strict=True)]
  )


def flat_loss(
  loss_fn: LossFn, params: Params, mask: tuple[bool, ...], batch: Batch, key: Key | None
) -> tuple[Array, Callable[[Array], Array]]:
  """Returns the selected parameters `[size]`, and the loss as a function of them with fixed noise."""
  part = split(params, mask)

  def loss_at(flat: Array) -> Array:
    return mean_loss(loss_fn, part.merge(flat), batch, key)

  return part.flat, loss_at

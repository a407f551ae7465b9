"""An average as pure functions of a state, the state of a mean, and the leaves that are averaged."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxreg import _leaves
from jaxreg._errors import ArgumentError
from jaxreg.paths import leaf_names
from jaxreg.typing import Array, Params


class Average(NamedTuple):
  """Pure functions, as in Optax's `GradientTransformation`.

  `init` is `params -> state`, `update` is `(state, params) -> state`, and `params` is `state -> params`, the
  parameters to use.
  """

  init: Callable[[Params], Any]
  update: Callable[..., Any]
  params: Callable[[Any], Params]


class Mean(NamedTuple):
  """The mean of the iterates, with floating leaves in at least float32, and their number."""

  params: Params
  count: Array


def start(params: Params) -> Mean:
  """Returns a copy of `params` that counts as no iterate."""
  return Mean(jax.tree.map(jnp.copy, wide(params)), jnp.zeros((), jnp.int32))


def kept_params(state: Any) -> Params:
  """Returns the parameters of a state."""
  return state.params


def is_averaged(leaf: Array) -> bool:
  """Says whether a leaf is floating; counters, masks and keys come from the newest iterate instead."""
  return jnp.issubdtype(leaf.dtype, jnp.floating)


def arrays(params: Params) -> Params:
  """Returns `params` with every leaf as an array."""
  leaves, tree = jax.tree.flatten(params)
  return tree.unflatten([_array(leaf, name or "params") for leaf, name in zip(leaves, leaf_names(params))])


def wide(params: Params) -> Params:
  """Returns `arrays` with averaged leaves in at least float32: in bfloat16 a mean loses its small steps."""
  return jax.tree.map(_leaves.wide, arrays(params))


def check_like(params: Params, stored: Params, name: str = "params") -> Params:
  """Returns `arrays(params)`, which must have the structure and shapes of the parameters in a state."""
  structure, expected = jax.tree.structure(params), jax.tree.structure(stored)
  if structure != expected:
    raise ArgumentError(name, f"must have the structure given to init, {expected}, got {structure}")
  params = arrays(params)
  for leaf, old, leaf_name in zip(jax.tree.leaves(params), jax.tree.leaves(stored), leaf_names(params)):
    # Another shape would broadcast, without an error.
    if leaf.shape != old.shape:
      where = f"/{leaf_name}" if leaf_name else ""
      raise ArgumentError(
        f"{name}{where}", f"must have the shape given to init, {old.shape}, got {leaf.shape}"
      )
  return params


def _array(leaf: Any, name: str) -> Array:
  try:
    return jnp.asarray(leaf)
  except TypeError:
    raise TypeError(
      f"{name} must be an array, got a {type(leaf).__name__}; give the arrays of a model only, "
      "for instance eqx.filter(model, eqx.is_array)"
    ) from None

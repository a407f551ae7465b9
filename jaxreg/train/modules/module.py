"""What every adapter returns: a network, or a part of one, as pure functions."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import traverse_util

from jaxreg._errors import ArgumentError
from jaxreg._sharding import partitioned
from jaxreg.train.entries import parameters, takes_any
from jaxreg.typing import Array, Key, ModelState, Params, PyTree

Variables = tuple[Params, ModelState]
Result = tuple[PyTree, ModelState]  # outputs, and the state after the pass


class PureModule(NamedTuple):
  """A module as pure functions.

  Parameters and state are nested dicts, whose names are those of the user's own trees, such as
  `layers/0/weight`.

  Attributes:
    init: `(key, x) -> (params, model_state)`.
    apply: `(params, model_state, x, *, key, train, mixing=None, use_running_average=False) -> (outputs,
      model_state)`. The key is None without noise. `mixing` is the entry of that name in a batch of
      `augment.manifold_mixup`. With `use_running_average`, layers with statistics, such as BatchNorm, are in
      evaluation mode while all others train; it raises an `ArgumentError` if they cannot be told apart.
    bind: `(params, model_state) -> ` the user's own module with these variables, ready for predictions.
  """

  init: Callable[[Key, Array], Variables]
  apply: Callable[..., Result]
  bind: Callable[[Params, ModelState], Any]


def with_named_leaves(
  init_fn: Callable[[Key, Array], Variables],
  apply_fn: Callable[..., Result],
  bind_fn: Callable[[Params, ModelState], Any],
  like: Variables,
) -> PureModule:
  """Makes a module whose functions take trees with the structure of `like`, the abstract variables."""

  def init(key: Key, x: Array) -> Variables:
    params, model_state = init_fn(key, x)
    return nested(params), nested(model_state)

  def apply(
    params: Params,
    model_state: ModelState,
    x: Array,
    *,
    key: Key | None,
    train: bool,
    mixing: PyTree = None,
    use_running_average: bool = False,
  ) -> Result:
    inner = [] if mixing is None else [layer for layer in mixing.shares if "/" in layer]
    if inner:  # only Linen says when it calls a layer
      raise ArgumentError(
        "layers", f"must be among backbone, head, got {', '.join(inner)}; only Linen modules are mixed inside"
      )

    def run(x: Array, params: Params, model_state: ModelState, key: Key | None) -> Result:
      trees = filled(like[0], params), filled(like[1], model_state)
      return apply_fn(*trees, x, key=key, train=train, use_running_average=use_running_average)

    # The user's functions know nothing of explicit axes: JAX chooses within them how arrays are split.
    outputs, new = partitioned(run, x, params, model_state, key, kept=(slice(1), slice(0)))
    if use_running_average or not train:
      return outputs, model_state
    # Leave out what the call has stored in addition to its state.
    return outputs, jax.tree.map(_cast, filled(model_state, nested(new)), model_state)

  def bind(params: Params, model_state: ModelState) -> Any:
    return bind_fn(filled(like[0], params), filled(like[1], model_state))

  return PureModule(init, apply, bind)


def accepted(function: Callable[..., PyTree], **arguments: object) -> dict[str, object]:
  """Returns the arguments that a function has, or all if it takes any."""
  names = parameters(function)
  return {name: value for name, value in arguments.items() if takes_any(function) or name in names}


def nested(tree: PyTree) -> dict[str, PyTree]:
  """Returns the leaves of a tree as nested dicts, by the parts of their names."""
  named = jax.tree_util.tree_leaves_with_path(tree)
  return traverse_util.unflatten_dict({_parts(path): leaf for path, leaf in named})


def filled(like: PyTree, leaves: Mapping[str, PyTree]) -> PyTree:
  """Puts the leaves of nested dicts into a tree with the structure of `like`."""
  flat = traverse_util.flatten_dict(leaves)

  def leaf(path: tuple[object, ...], _: Array) -> PyTree:
    return flat[_parts(path)]

  return jax.tree_util.tree_map_with_path(leaf, like)


def check_kept(before: PyTree, after: PyTree) -> None:
  """Checks that a pass with `use_running_average` has replaced no array of the state."""
  old = jax.tree.leaves(before)
  new = jax.tree_util.tree_leaves_with_path(after)
  changed = ["/".join(_parts(path)) for (path, leaf), kept in zip(new, old, strict=True) if leaf is not kept]
  if changed:
    raise statistics_error(changed)


def statistics_error(names: list[str]) -> ArgumentError:
  """Returns the error of a network whose statistics only training mode moves; `names` are the statistics."""
  return ArgumentError(
    "mc_samples",
    f"must be 0 for this network: with noise, training mode also moves {', '.join(names)}; let BatchNorm and "
    "SpectralNorm own all statistics, and leave their mode to the trainer",
  )


def _parts(path: tuple[object, ...]) -> tuple[str, ...]:
  return tuple(jax.tree_util.keystr(path, simple=True, separator="/").split("/"))


def _cast(new: Array, old: Array) -> Array:
  return new if jnp.issubdtype(old.dtype, jax.dtypes.prng_key) else new.astype(old.dtype)

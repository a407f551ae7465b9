"""Trees that `optax.masked` and `optax.partition` show in part, and the whole trees behind them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import optax

from jaxreg import paths
from jaxreg._errors import ArgumentTypeError
from jaxreg._leaves import wide
from jaxreg.optim._trust_region import on_floating
from jaxreg.typing import Mask, Params


def part(tree: Any, like: Any) -> Any:
  """Returns the part of `tree` that `like` shows: a leaf that is masked in `like` is masked in the result."""
  return jax.tree.map(lambda to, x: to if _is_masked(to) else x, like, tree, is_leaf=_is_masked)


def gradient_part(gradient: Any, like: Any) -> Any:
  """Returns the part of a gradient by `grad_fn` that `like` shows."""
  try:
    shown = part(gradient, like)
  except ValueError:
    shown = None
  if jax.tree.structure(shown) != jax.tree.structure(like):
    raise ArgumentTypeError(
      "grad_fn",
      "must return a tree like the gradients given to update; within nnx.Optimizer these are arrays, as "
      "nnx.as_pure(gradients) returns them",
    )
  return shown


def whole(params: Params, all_params: Params | None) -> Params:
  """Fills the masked leaves of `params` from `all_params`, in float32 or wider."""
  if all_params is None:
    return params
  if _has_masked(all_params):
    raise ValueError("all_params must be the whole tree of parameters, got one with masked leaves")
  wider = on_floating(wide, all_params)
  try:
    return jax.tree.map(lambda w, full: full if _is_masked(w) else w, params, wider, is_leaf=_is_masked)
  except ValueError as error:
    raise ValueError("all_params must have the structure of the whole tree of parameters") from error


def on_whole(
  function: Callable[[Params], Any], name: str, all_params: Params | None
) -> Callable[[Params], Any]:
  """Makes `function` see the whole tree of parameters if `params` is only a part of it."""

  def call(params: Params) -> Any:
    full = whole(params, all_params)
    try:
      return function(full)
    except Exception as error:
      if not _has_masked(full):
        raise
      raise TypeError(
        f"{name} must take params with a part hidden by optax.masked or optax.partition; "
        "it takes the whole tree if update also gets all_params=params"
      ) from error

  return call


def train_only(tx: optax.GradientTransformationExtraArgs, trained: Mask | None) -> Any:
  """Runs `tx` on the parameters that `trained` selects; updates of the others are 0. None selects all."""
  if trained is None:
    return tx

  def labels(params: Params) -> Any:
    try:
      taken = paths.chosen(params, trained)
    except (TypeError, ValueError) as error:
      raise type(error)(f"trained: {error}") from error
    names = ["trained" if each else "frozen" for each in taken]
    return jax.tree.unflatten(jax.tree.structure(params), names)

  parts = optax.partition({"trained": tx, "frozen": optax.set_to_zero()}, labels)

  def update(updates, state, params=None, *, all_params: Params | None = None, **extra_args):
    full = params if all_params is None else all_params
    return parts.update(updates, state, params, all_params=full, **extra_args)

  return optax.GradientTransformationExtraArgs(parts.init, update)


def _is_masked(x: Any) -> bool:
  return isinstance(x, optax.MaskedNode)


def _has_masked(tree: Any) -> bool:
  return any(map(_is_masked, jax.tree.leaves(tree, is_leaf=_is_masked)))

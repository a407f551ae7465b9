"""What every analysis has in common: products in full precision, functions as arguments, noise held fixed."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from jaxreg.typing import Array, Batch, Key, LossFn, Params, check_key, check_loss_fn

F = TypeVar("F", bound=Callable[..., Any])


def analysis(function: F) -> F:
  """Runs, and traces, a function with matrix products in the precision of their operands.

  The defaults of accelerators are TF32 or bfloat16, which leave a curvature of few digits.
  """

  @functools.wraps(function)
  def run(*args: Any, **kwargs: Any) -> Any:
    with jax.default_matmul_precision("highest"):
      return function(*args, **kwargs)

  return run  # type: ignore[return-value]


def as_pytree(function: Callable[..., Any]) -> Any:
  """A function as an argument of what is compiled: one that carries arrays is a pytree already."""
  return jax.tree_util.Partial(function) if jax.tree_util.all_leaves([function]) else function


def same(key: Key | None) -> Key | None:
  """The key again, on purpose: every evaluation of an analysis sees the same noise."""
  return None if key is None else jax.random.clone(check_key(key))


def scalar_loss(loss_fn: LossFn, params: Params, batch: Batch, key: Key | None) -> Array:
  """The loss, with the same noise in every call.

  Raises:
    TypeError: if `key` is no typed key, there is none and the loss wants one, or `loss_fn` takes none.
    ValueError: if the loss is no scalar.
  """
  check_loss_fn(loss_fn)
  try:
    loss = loss_fn(params, batch, key=same(key))
  except TypeError as error:
    if key is None and "PRNG key" in str(error):
      raise TypeError("key must be given, because loss_fn draws noise, got None") from error
    raise
  shapes = jax.tree.map(jnp.shape, loss)
  if shapes != ():
    raise ValueError(f"loss_fn must return a scalar, a mean over the examples, got shape {shapes}")
  return loss

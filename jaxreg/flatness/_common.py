"""Parts common to all analyses: products in full precision, functions as arguments, fixed noise."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from jaxreg.typing import Array, Batch, Key, LossFn, Params, check_key, check_loss_fn

F = TypeVar("F", bound=Callable[..., Any])


def analysis(function: F) -> F:
  """Runs and traces a function with matrix products in the precision of their operands.

  Accelerators default to TF32 or bfloat16, which leaves few correct digits of a curvature.
  """

  @functools.wraps(function)
  def run(*args: Any, **kwargs: Any) -> Any:
    with jax.default_matmul_precision("highest"):
      return function(*args, **kwargs)

  return run  # type: ignore[return-value]


def as_pytree(function: Callable[..., Any]) -> Any:
  """Wraps a function as an argument of compiled code; a function that carries arrays is a pytree already."""
  return jax.tree_util.Partial(function) if jax.tree_util.all_leaves([function]) else function


def same(key: Key | None) -> Key | None:
  """Clones the key, on purpose: every evaluation of an analysis sees the same noise."""
  return None if key is None else jax.random.clone(check_key(key))


def scalar_loss(loss_fn: LossFn, params: Params, batch: Batch, key: Key | None) -> Array:
  """Computes the loss, with the same noise in every call.

  Raises:
    TypeError: if `key` is no typed key, the loss needs a key and gets None, or `loss_fn` takes no key.
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

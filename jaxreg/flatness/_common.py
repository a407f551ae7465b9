"""What every analysis has in common: products in full precision, functions as arguments, noise held fixed."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax

from jaxreg.typing import Key

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
  return None if key is None else jax.random.clone(key)

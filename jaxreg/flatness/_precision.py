"""What every analysis has in common: products in full precision."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax

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

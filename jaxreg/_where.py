"""The keyword `where` of losses and measures, which says which examples count."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxreg._checks import check_array, check_range, known_values

P = ParamSpec("P")
R = TypeVar("R")


def only_where(
  end: int | None = -1, *, shared: tuple[str, ...] = ()
) -> Callable[[Callable[P, R]], Callable[P, R]]:
  """Implements the keyword `where` for a function that only names it in its signature.

  Each example that does not count gets harmless arguments before the call, and its results are 0 after it.
  Both are needed: a gradient of 0 times NaN or infinity would be NaN. `where` has the shape `x.shape[:end]`
  of the first array `x`. The arguments `shared`, such as a kernel, belong to no example and stay as they are;
  their shapes may look like the examples' by chance.
  """
  constant = {"where", "key", *shared}

  def decorate(function: Callable[P, R]) -> Callable[P, R]:
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
      where: Any = kwargs.get("where")
      if where is None:
        return function(*args, **kwargs)
      try:
        bound = signature.bind(*args, **kwargs)
      except TypeError as error:
        raise TypeError(f"{function.__name__}() {error}") from None
      examples = {name: value for name, value in bound.arguments.items() if name not in constant}
      first: Any = next(iter(jax.tree.leaves(next(iter(examples.values())))), None)
      where = check_where(where, np.shape(first)[:end])
      for name, value in examples.items():
        otherwise = functools.partial(_harmless, where, name, signature.parameters[name].default)
        bound.arguments[name] = jax.tree.map(otherwise, value)
      return jax.tree.map(functools.partial(zero_elsewhere, where), function(*bound.args, **bound.kwargs))

    return call

  return decorate


def check_where(where: Any, shape: tuple[int, ...], name: str = "where") -> Any:
  """Returns `where` as an array of NumPy or JAX."""
  where = where if isinstance(where, jax.Array) else np.asarray(where)
  if where.dtype != bool:
    raise TypeError(f"{name} must be bool, got {where.dtype}")
  if where.shape != shape:
    raise ValueError(f"{name} must have shape {shape}, got {where.shape}")
  return where


def check_weights(weights: Any) -> Any:
  """Returns the weights of examples; known ones must be finite and at least 0."""
  if (known := known_values(weights)) is not None:
    check_range(known, "weights", low=0)
  return weights


def zero_elsewhere(where: Any, x: Any, value: float = 0) -> Any:
  """Returns `x` `[..., any]` where `where` `[...]` is true, else `value`."""
  numpy = jnp
  if isinstance(x, np.ndarray):
    # NumPy keeps known values known, also inside of `jit`.
    known = known_values(where)
    numpy, where, x = (jnp, where, check_array(x, "x")) if known is None else (np, known, x)
  else:
    x = jnp.asarray(x)
  mask = numpy.expand_dims(where, tuple(range(where.ndim, x.ndim)))
  return numpy.where(mask, x, numpy.asarray(value, x.dtype))


def _harmless(where: Any, name: str, default: Any, x: Any) -> Any:
  """Returns an argument with a harmless value for each example that does not count."""
  if not isinstance(x, jax.Array | np.ndarray) or x.shape[: where.ndim] != where.shape:
    return x  # a scalar; the function refuses other shapes
  if name in ("labels", "log_probs") and x.ndim > where.ndim and jnp.issubdtype(x.dtype, jnp.floating):
    share = 1 / max(x.shape[-1], 1)
    return zero_elsewhere(where, x, share if name == "labels" else math.log(share))
  return zero_elsewhere(where, x, default if isinstance(default, int | float) else 0)

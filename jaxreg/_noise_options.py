"""The options of noise functions that layers of several libraries hold."""

import inspect
from collections.abc import Callable
from typing import Any

import jax
import numpy as np


def is_array(option: Any) -> bool:
  """Says whether an option is an array, which can be trained."""
  return isinstance(option, jax.Array | np.ndarray)


def check_options(function: Callable[..., Any], options: dict[str, Any]) -> dict[str, Any]:
  """Returns the options of a noise function, which must have them; lists become tuples, which have a hash."""
  try:
    inspect.signature(function).bind_partial(None, None, **options)
  except TypeError as error:
    name = getattr(function, "__name__", "function")
    raise TypeError(f"{name} does not take {', '.join(options) or 'a key and x'}: {error}") from None
  return {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}

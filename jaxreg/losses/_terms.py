"""Losses that are the sum of their terms."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec

import jax.numpy as jnp

from jaxreg.typing import Array

P = ParamSpec("P")


def sum_of(terms: Callable[P, Mapping[str, Array]]) -> Callable[[Callable[[], None]], Callable[P, Array]]:
  """Gives a function that has only a name and a docstring its body: the sum of `terms`."""
  signature = inspect.signature(terms).replace(return_annotation="Array")

  def decorate(named: Callable[[], None]) -> Callable[P, Array]:
    @functools.wraps(terms)  # its source has the signature
    def loss(*args: P.args, **kwargs: P.kwargs) -> Array:
      try:
        signature.bind(*args, **kwargs)
      except TypeError as error:
        raise TypeError(f"{named.__name__}() {error}") from None
      return functools.reduce(jnp.add, terms(*args, **kwargs).values())

    described: Any = functools.update_wrapper(loss, named, updated=())
    described.__signature__, described.__wrapped__ = signature, terms
    return loss

  return decorate

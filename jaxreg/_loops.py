"""Loops over functions of users: compiled in a program, and step by step in eager calls.

An eager `jax.lax` loop compiles its body in each call, because the body closes over the user's function. A
cache by function would keep what the function closes over, and would not see that it has changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from jaxreg._sharding import sharding_like


def in_program() -> bool:
  """Tells whether operations are recorded for a program, as in `jax.jit`, instead of being run."""
  return isinstance(jnp.zeros(()), Tracer)


def _compiles(value: Any) -> bool:
  """Tells whether a loop from this value is one program: on explicit axes eager derivatives need a mesh."""
  return in_program() or any(sharding_like(x) is not None for x in jax.tree.leaves(value))


def repeat(num_steps: Any, step: Callable[[Any], Any], value: Any) -> Any:
  """Applies `step` to the value `num_steps` times."""
  if _compiles(value) or isinstance(num_steps, Tracer):
    return jax.lax.fori_loop(0, num_steps, lambda _, value: step(value), value)
  for _ in range(int(num_steps)):
    value = step(value)
  return value


def while_loop(condition: Callable[[Any], Any], step: Callable[[Any], Any], value: Any) -> Any:
  """Applies `step` while the condition holds."""
  if _compiles(value) or isinstance(go_on := condition(value), Tracer):
    return jax.lax.while_loop(condition, step, value)
  while go_on:
    value = step(value)
    go_on = condition(value)
  return value


def by_chunks(function: Callable[[Any], Any], rows: Any, chunk_size: int) -> Any:
  """Applies `function` to each of the rows, `chunk_size` at once."""
  if in_program():
    return jax.lax.map(function, rows, batch_size=chunk_size)
  number = len(jax.tree.leaves(rows)[0])
  firsts = range(0, number, chunk_size)
  parts = [jax.vmap(function)(jax.tree.map(lambda x, i=i: x[i : i + chunk_size], rows)) for i in firsts]
  return jax.tree.map(lambda *x: jnp.concatenate(x), *parts)

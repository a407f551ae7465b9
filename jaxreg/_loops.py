"""Loops over functions of users in eager calls: short ones step by step, long ones in a program that is kept.

An eager `jax.lax` loop compiles its body in each call, because the body closes over the user's function. A
cache by function would keep what the function closes over, and would not see that it has changed. So each
call traces the function, and programs are compared.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer, eval_jaxpr
from jax.extend.core import jaxprs_in_params

from jaxreg._sharding import sharding_like

MAX_PROGRAMS = 32
_programs: dict[Any, Any] = {}  # compiled programs of eager calls, the oldest first


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


def map_rows(function: Callable[[Any], Any], rows: Any, batch_size: int) -> Any:
  """Applies `function` to each of the rows, `batch_size` at once."""
  if in_program():
    return jax.lax.map(function, rows, batch_size=batch_size)
  number = len(jax.tree.leaves(rows)[0])
  firsts = range(0, number, batch_size)
  parts = [jax.vmap(function)(jax.tree.map(lambda x, i=i: x[i : i + batch_size], rows)) for i in firsts]
  return jax.tree.map(lambda *x: jnp.concatenate(x), *parts)


def in_one_program(function: Callable[..., Any], *arguments: Any) -> Any:
  """Computes `function(*arguments)`; eager calls with equal programs and shardings compile once.

  Arrays that `function` captures are arguments of the program, so no data are kept.
  """
  config = jax.config
  step_by_step = config.jax_disable_jit or config.jax_debug_nans or config.jax_debug_infs
  if step_by_step or in_program() or _has_tracer(arguments):
    return function(*arguments)
  arguments = jax.tree.map(jnp.asarray, arguments)
  # JAX keeps traces by function: a new function is traced, whatever the given one captures by now.
  traced, result = jax.make_jaxpr(lambda *x: function(*x), return_shape=True)(*arguments)
  if _has_tracer(traced.consts):
    return function(*arguments)
  if _calls_python(traced.jaxpr):  # a compiled program does not say which function it calls
    return function(*arguments)
  consts, leaves = [jnp.asarray(x) for x in traced.consts], jax.tree.leaves(arguments)
  lowered = jax.jit(functools.partial(eval_jaxpr, traced.jaxpr)).lower(consts, *leaves)
  key = hashlib.sha256(lowered.as_text().encode()).digest(), *(x.sharding for x in (*consts, *leaves))
  if key not in _programs:
    if len(_programs) >= MAX_PROGRAMS:
      _programs.pop(next(iter(_programs)), None)
    _programs[key] = lowered.compile()  # unlike the jitted function, it does not hold the user's functions
  return jax.tree.unflatten(jax.tree.structure(result), _programs[key](consts, *leaves))


def _calls_python(jaxpr: Any) -> bool:
  """Tells whether a program has a primitive that calls a Python function, such as `pure_callback`."""
  return any(
    eqn.primitive.name.endswith(("_callback", "debug_print"))
    or any(map(_calls_python, jaxprs_in_params(eqn.params)))
    for eqn in jaxpr.eqns
  )


def _has_tracer(tree: Any) -> bool:
  return any(isinstance(x, Tracer) for x in jax.tree.leaves(tree))

"""A linear operator from any function of a vector, whose algorithms are compiled as a whole."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._analyses import as_pytree, widened
from jaxreg._checks import check_floating
from jaxreg.flatness._subset import check_no_tree
from jaxreg.flatness._vectors import Basis, Vector
from jaxreg.typing import Array

Matvec = Callable[[Array], Array]


class LinearOperator(Protocol):
  """A square matrix as a function of a vector, which also knows how an algorithm runs its loops.

  An algorithm, such as Lanczos, is written once: a plain function of an operator. `run` compiles it, or calls
  it in Python if the products need the host. Inside, it loops by `for_each`, `repeat_while` and `map`.
  """

  @property
  def like(self) -> Any:
    """A vector with the shapes, dtypes and shardings of all vectors."""
    ...

  def __call__(self, vector: Vector) -> Vector:
    """Multiplies a vector by the matrix."""
    ...

  def run(self, algorithm: Callable[..., Any], static: tuple[Any, ...], *args: Any) -> Any:
    """Computes `algorithm(operator, *static, *args)`, in which `static` are no arrays."""
    ...

  def for_each(
    self,
    first: int,
    stop: int,
    step: Callable[[Any, Any], Any],
    state: Any,
    enough: Callable[[int, Any], bool] | None = None,
  ) -> Any:
    """Repeats `state = step(number, state)` for the numbers from `first` to `stop - 1`."""
    ...

  def repeat_while(self, condition: Callable[[Any], Any], step: Callable[[Any], Any], state: Any) -> Any:
    """Repeats `state = step(state)` as long as `condition(state)` is true."""
    ...

  def map(self, function: Callable[[Array], tuple[Array, ...]], values: Array) -> tuple[Array, ...]:
    """Computes a function of each value and stacks the results."""
    ...

  def zero_rows(self, number: int) -> Basis:
    """Returns a basis of at least `number` zero vectors."""
    ...


@partial(jax.tree_util.register_dataclass, data_fields=["matvec", "like"], meta_fields=["dtype"])
@dataclasses.dataclass(frozen=True)
class Compiled:
  """The operator of a function `[size] -> [size]`, which `jax.jit` can trace."""

  matvec: Matvec  # a pytree
  like: Vector  # one array, in float32 or wider
  dtype: Any  # the dtype of the function's argument

  def __call__(self, vector: Vector) -> Vector:
    (flat,) = vector
    return (self.matvec(flat.astype(self.dtype)).astype(flat.dtype),)

  def run(self, algorithm: Callable[..., Any], static: tuple[Any, ...], *args: Any) -> Any:
    """Compiles an algorithm and calls it."""
    return _run(algorithm, static, self, *args)

  def for_each(self, first, stop, step, state, enough=None):
    """Loops in compiled code, which cannot end early."""
    if enough is not None:
      raise ValueError(
        "until_converged must be False unless matvec is a Curvature: compiled loops do not end early"
      )
    return jax.lax.fori_loop(first, stop, step, state)

  def repeat_while(self, condition, step, state):
    """Loops in compiled code."""
    return jax.lax.while_loop(condition, step, state)

  def map(self, function, values):
    """Loops in compiled code."""
    return jax.lax.map(function, values)

  def zero_rows(self, number: int) -> Basis:
    """Returns a basis of zero vectors."""
    return tuple(jnp.zeros((number, *x.shape), x.dtype) for x in self.like)


@partial(jax.jit, static_argnums=(0, 1))
def _run(algorithm: Callable[..., Any], static: tuple[Any, ...], operator: Compiled, *args: Any) -> Any:
  return algorithm(operator, *static, *args)


def as_operator(matvec: Any, like: ArrayLike | None) -> LinearOperator:
  """Returns the operator of a function of a flat vector, or the own operator of a `Curvature`."""
  if hasattr(matvec, "_flat_operator"):
    return matvec._flat_operator
  like = getattr(matvec, "like", None) if like is None else like
  if like is None:
    raise TypeError("like must be a vector [size] if matvec has no attribute like, got None")
  check_no_tree(like, "like", "a vector [size], as hvp(...).like is", "flat")
  like = check_floating(like, "like")
  if like.ndim != 1 or not like.size:
    raise ValueError(f"like must be a vector [size], got shape {like.shape}")
  matvec = as_pytree(matvec)
  shape = jnp.shape(jax.eval_shape(matvec, like))
  if shape != like.shape:
    raise ValueError(f"matvec must return shape {like.shape}, as like has, got {shape}")
  return Compiled(matvec, (widened(like),), like.dtype)


def product_rounding(matvec: Any, like: ArrayLike | None) -> float:
  """Returns the relative difference of equal products that rounding explains.

  Some accelerators add in a varying order.
  """
  like = getattr(matvec, "like", None) if like is None else like
  return 1e3 * float(jnp.finfo(jnp.result_type(like)).eps)

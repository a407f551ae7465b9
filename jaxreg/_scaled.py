"""Norms whose squares neither overflow nor vanish, and whose gradient at 0 is 0."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxreg.typing import Array


def power_of_two(x: Array, axes: tuple[int, ...]) -> Array:
  """A power of two that brings the largest entry over `axes` near 1, kept as axes of size 1.

  Multiplication by it rounds nothing. A division by the largest entry would, and compilers turn two divisions
  in a row into one by a product, which overflows. No gradient flows through the power: what is made of
  `scaled` does not depend on it.
  """
  largest = jax.lax.stop_gradient(jnp.abs(x).max(axis=axes, keepdims=True, initial=0))
  bound = jnp.finfo(x.dtype).maxexp - 2  # the power and its inverse are normal numbers
  exponent = jnp.clip(jnp.frexp(largest)[1], -bound, bound)
  return jnp.ldexp(jnp.ones_like(largest), -exponent)


def scaled(x: Array, axes: tuple[int, ...]) -> tuple[Array, Array, Array]:
  """`x * power`, the Euclidean norms of that over `axes`, and `power`; the last two with axes of size 1.

  The direction of `x` is the first over the second, its norm the second over the third.
  """
  power = power_of_two(x, axes)
  x = x * power
  square = jnp.square(x).sum(axis=axes, keepdims=True)
  # Not `square > 0`, which is false for NaN: its norm would be 0.
  return x, jnp.where(square == 0, 0, jnp.sqrt(jnp.where(square == 0, 1, square))), power


def norm(x: Array, axes: tuple[int, ...]) -> Array:
  """Euclidean norms over `axes`, kept as axes of size 1; the gradient of a zero norm is 0."""
  _, length, power = scaled(x, axes)
  return length / power

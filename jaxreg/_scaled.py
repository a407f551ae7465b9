"""Norms without over- or underflow of the squares, with gradient 0 at 0."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxreg.typing import Array


def power_of_two(x: Array, axes: tuple[int, ...]) -> Array:
  """Returns a power of two that brings the largest entry over `axes` near 1, with these axes at size 1.

  Multiplication by a power of two does not round. Division by the largest entry would, and compilers turn two
  successive divisions into one by a product, which overflows. No gradient flows through the power: results
  computed from `scaled` do not depend on it.
  """
  largest = jax.lax.stop_gradient(jnp.abs(x).max(axis=axes, keepdims=True, initial=0))
  bound = jnp.finfo(x.dtype).maxexp - 2  # keeps the power and its inverse normal numbers
  exponent = jnp.clip(jnp.frexp(largest)[1], -bound, bound)
  return jnp.ldexp(jnp.ones_like(largest), -exponent)


def scaled(x: Array, axes: tuple[int, ...]) -> tuple[Array, Array, Array]:
  """Returns `x * power`, its Euclidean norms over `axes`, and `power`; the last two with axes of size 1.

  The direction of `x` is the first result over the second; its norm is the second over the third.
  """
  power = power_of_two(x, axes)
  x = x * power
  square = jnp.square(x).sum(axis=axes, keepdims=True)
  # Not `square > 0`, which is false for NaN: the norm of NaN would be 0.
  return x, jnp.where(square == 0, 0, jnp.sqrt(jnp.where(square == 0, 1, square))), power


def norm(x: Array, axes: tuple[int, ...]) -> Array:
  """Returns Euclidean norms over `axes`, kept as axes of size 1; the gradient of a zero norm is 0."""
  _, length, power = scaled(x, axes)
  return length / power


def unit_length(x: Array, axes: tuple[int, ...], otherwise: Array | float = 0.0) -> Array:
  """Returns `x` divided by its norms over `axes`; `otherwise`, without a gradient, where a norm is 0."""
  near_one, length, _ = scaled(x, axes)
  return jnp.where(length == 0, otherwise, near_one / jnp.where(length == 0, 1, length))

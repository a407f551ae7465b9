"""Parts shared by the attacks: checks, input gradients, lengths of perturbations."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxreg._checks import check_ends, check_option, known_values
from jaxreg._errors import ArgumentError
from jaxreg._leaves import wide
from jaxreg._scaled import norm, unit_length
from jaxreg.typing import Array

LossOfInputs = Callable[[Array], Array]
Bounds = tuple[float, float] | None


def per_example(value: ArrayLike, name: str, x: Array) -> Array:
  """A length of at least 0, a scalar or `[batch]`, ready for arithmetic with `x`."""
  check_option(value, name, x.shape[:1], low=0)
  value = jnp.asarray(value, wide(x).dtype)
  return value.reshape(-1, *[1] * (x.ndim - 1)) if value.ndim else value


def check_clip(clip: Bounds, x: Array) -> None:
  """Checks the ends, and that known inputs lie between them: clipping would move others out of the ball."""
  if clip is None:
    return
  low, high, known = map(known_values, (*check_ends(clip, "clip"), x))
  if low is None or high is None:
    return
  if np.any(low > high):
    raise ArgumentError("clip", f"must be two numbers, the smaller one first, got {clip}")
  if known is not None:
    room = 4 * float(jnp.finfo(x.dtype).eps) * np.maximum(abs(low), abs(high))
    if np.any((known < low - room) | (known > high + room)):
      raise ArgumentError("x", f"must lie in clip {clip}, got values from {known.min():g} to {known.max():g}")


def input_gradient(loss_of_inputs: LossOfInputs, x: Array) -> Array:
  """The gradient of each example's loss in its own input, as a constant to differentiation."""

  def total(x):
    losses = loss_of_inputs(x)
    if losses.shape != x.shape[:1]:
      raise ValueError(f"loss_of_inputs must give [batch] for a batch of {x.shape[0]}, got {losses.shape}")
    return losses.sum()

  return wide(jax.lax.stop_gradient(jax.grad(total)(x)))


def perturbed(x: Array, delta: ArrayLike, clip: Bounds) -> Array:
  """`x + delta`, clipped to the bounds, in the dtype of `x`; rounded towards `x`."""
  moved = wide(x) + delta
  moved = moved if clip is None else jnp.clip(moved, *clip)
  rounded = moved.astype(x.dtype)
  # To the nearest would leave the ball: bfloat16 has two or three digits, and `x + delta` is rounded, too.
  outside = jnp.abs(wide(rounded) - wide(x)) > jnp.minimum(jnp.abs(delta), jnp.abs(moved - wide(x)))
  back = jax.lax.stop_gradient(jnp.nextafter(rounded, x) - rounded)
  return rounded + jnp.where(outside, back, 0)


def lengths(delta: Array) -> Array:
  """The Euclidean norm of each example, `[batch, 1, ...]`, without under- or overflow of the squares."""
  return norm(delta, tuple(range(1, delta.ndim)))


def unit(delta: Array, otherwise: Array | float = 0.0) -> Array:
  """Each example divided by its norm; `otherwise` if the norm is 0, NaN if it is NaN."""
  return unit_length(delta, tuple(range(1, delta.ndim)), otherwise)

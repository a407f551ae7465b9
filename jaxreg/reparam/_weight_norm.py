"""Weight normalisation: length and direction of each unit's weights apart."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg.typing import Array, check_floating


def weight_norm(v: ArrayLike, g: ArrayLike) -> Array:
  r"""The kernel whose units' incoming weights have the directions of `v` and the lengths `g`.

  .. math:: w_u = g_u \frac{v_u}{\|v_u\|}

  Start with `g = weight_norm_init(v)`, which gives `v` back.

  Args:
    v: `[..., units]`, floating.
    g: `[units]`, floating; a negative one turns the direction round.

  Returns:
    The kernel, of the shape and dtype of `v`. A unit whose `v` is zero has zero weights and no gradient.

  Raises:
    TypeError: if an array is not floating.
    ValueError: if shapes do not fit.

  Example:
    >>> weight_norm(jnp.array([[3., 0.], [4., 2.]]), jnp.array([1., 5.]))
    Array([[0.6, 0. ],
           [0.8, 5. ]], dtype=float32)

  References:
    Salimans and Kingma, `Weight Normalization: A Simple Reparameterization to Accelerate Training of Deep
    Neural Networks`, 2016, section 2.
  """
  v = _check(v)
  g = check_floating(g, "g", shape=v.shape[-1:])
  scaled, norm, _ = _scaled(v)
  length = jnp.where(norm == 0, 0, g / jnp.where(norm == 0, 1, norm))
  return (scaled * jnp.broadcast_to(length, v.shape)).astype(v.dtype)


def weight_norm_init(v: ArrayLike) -> Array:
  r"""The lengths `[units]` of the units' weights: `weight_norm(v, weight_norm_init(v))` is `v`.

  Raises:
    TypeError: if `v` is not floating.
    ValueError: if `v` has no axis of inputs.

  Example:
    >>> weight_norm_init(jnp.array([[3., 0.], [4., 2.]]))
    Array([5., 2.], dtype=float32)

  References:
    Salimans and Kingma, `Weight Normalization: A Simple Reparameterization to Accelerate Training of Deep
    Neural Networks`, 2016.
  """
  v = _check(v)
  _, norm, largest = _scaled(v)
  return (largest * norm).astype(v.dtype)


def _check(v: ArrayLike) -> Array:
  v = check_floating(v, "v")
  if v.ndim < 2:
    raise ValueError(f"v must have shape [..., units] with at least one axis of inputs, got {v.shape}")
  return v


def _scaled(v: Array) -> tuple[Array, Array, Array]:
  """`v` over each unit's largest entry, the norms `[units]` of that, and the entries.

  So the squares neither overflow nor vanish. What is made of the three does not depend on the largest entry,
  which is why no gradient has to go through it. The norm's root has a gradient at 0 too.
  """
  wide = v.astype(jnp.promote_types(v.dtype, jnp.float32))
  inputs = tuple(range(v.ndim - 1))
  largest = jax.lax.stop_gradient(jnp.abs(wide).max(axis=inputs))
  wide = wide / jnp.broadcast_to(jnp.where(largest == 0, 1, largest), v.shape)
  square = jnp.square(wide).sum(axis=inputs)
  return wide, jnp.where(square == 0, 0, jnp.sqrt(jnp.where(square == 0, 1, square))), largest

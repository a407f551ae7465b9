"""Weight normalisation: separate length and direction for each unit's weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg import paths
from jaxreg._checks import check_floating
from jaxreg._leaves import unit_axes, wide
from jaxreg._scaled import norm, scaled
from jaxreg.typing import Array

Axis = int | tuple[int, ...] | None


def weight_norm(v: Any, g: Any, *, axis: Axis = None) -> Any:
  r"""Builds a kernel whose incoming weights per unit have the directions of `v` and the lengths `g`.

  .. math:: w_u = g_u \frac{v_u}{\|v_u\|}

  Start with `g = weight_norm_init(v)`, which returns `v`. A single kernel is `[..., units]`. In a tree the
  name of a kernel determines the axis of its units, as for the penalties: the first axis for Equinox's and
  PyTorch's `weight`. The tree must hold only kernels, so partition the model first::

    kernels, rest = eqx.partition(model, paths.kernels_only(model))
    model = eqx.combine(weight_norm(kernels, g), rest)

  Args:
    v: a kernel, or a pytree of kernels; each has two axes or more, and is floating.
    g: the lengths `[units]` of each kernel, floating; a negative length reverses the direction.
    axis: axes of one unit's weights, the same for all kernels; by default the axes of its incoming weights
      (`paths.incoming_axes`).

  Returns:
    The kernels, of the shapes and dtypes of `v`. A unit whose `v` is zero has zero weights and no gradient.

  Example:
    >>> v, g = jnp.array([[3., 0.], [4., 2.]]), jnp.array([1., 5.])
    >>> weight_norm(v, g)
    Array([[0.6, 0. ],
           [0.8, 5. ]], dtype=float32)
    >>> weight_norm({"weight": v}, {"weight": g})["weight"].round(4)
    Array([[1.    , 0.    ],
           [4.4721, 2.2361]], dtype=float32)

  References:
    Salimans and Kingma, `Weight Normalization: A Simple Reparameterization to Accelerate Training of Deep
    Neural Networks`, 2016, section 2.
  """

  def with_lengths(name: str, v: ArrayLike, g: ArrayLike) -> Array:
    v, axes = check_kernel(name, v, axis)
    near_one, length, _ = scaled(wide(v), axes)
    units = tuple(size for i, size in enumerate(v.shape) if i not in axes)
    g = check_floating(g, f"g/{name}" if name else "g", shape=units).reshape(length.shape)
    factor = jnp.where(length == 0, 0, g / jnp.where(length == 0, 1, length))
    return (near_one * factor).astype(v.dtype)

  return each_kernel(with_lengths, v, g)


def weight_norm_init(v: Any, *, axis: Axis = None) -> Any:
  r"""Computes the lengths `[units]` of the units' weights: `weight_norm(v, weight_norm_init(v))` is `v`.

  Args:
    v: a kernel, or a pytree of kernels.
    axis: as for `weight_norm`.

  Example:
    >>> weight_norm_init(jnp.array([[3., 0.], [4., 2.]]))
    Array([5., 2.], dtype=float32)

  References:
    Salimans and Kingma, `Weight Normalization: A Simple Reparameterization to Accelerate Training of Deep
    Neural Networks`, 2016.
  """

  def lengths(name: str, v: ArrayLike) -> Array:
    v, axes = check_kernel(name, v, axis)
    return norm(wide(v), axes).squeeze(axes).astype(v.dtype)

  return each_kernel(lengths, v)


def each_kernel(function: Callable[..., Array], v: Any, *rest: Any) -> Any:
  """Applies `function(name, kernel, ...)` to each kernel and the leaves of `rest` with the same name."""
  names = jax.tree.unflatten(jax.tree.structure(v), paths.leaf_names(v))
  return jax.tree.map(function, names, v, *rest)


def check_kernel(name: str, v: ArrayLike, axis: Axis, root: str = "v") -> tuple[Array, tuple[int, ...]]:
  """Returns a kernel as an array, and the axes of one unit's weights."""
  full = f"{root}/{name}" if name else root
  v = check_floating(v, full)
  if v.ndim < 2:
    raise ValueError(f"{full} must have shape [..., units] with at least one axis of inputs, got {v.shape}")
  return v, unit_axes(name, v, axis)

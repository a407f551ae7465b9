"""Weight standardisation: each unit's weights have mean 0 and variance 1."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg import paths
from jaxreg._leaves import unit_axes
from jaxreg.reparam._weight_norm import Axis
from jaxreg.typing import Array, check_floating, check_range


def weight_standardization(v: Any, *, eps: float = 1e-5, axis: Axis = None) -> Any:
  r"""Builds a kernel whose incoming weights per unit have mean 0 and variance nearly 1.

  .. math:: w_u = \frac{v_u - \bar v_u}{\sqrt{\operatorname{var}(v_u) + \epsilon}}

  The layer needs a normalisation after it, or a gain of its own, because the scale of `v` is lost. A tree
  must hold only kernels, as for `weight_norm`. The arithmetic is `jax.nn.standardize`.

  Args:
    v: a kernel `[..., units]`, or a pytree of kernels; each has two axes or more, and is floating.
    eps: `epsilon`, above 0.
    axis: as for `weight_norm`.

  Returns:
    The kernels, of the shapes and dtypes of `v`. A unit whose weights are all equal has zero weights.

  Raises:
    TypeError: if an array is not floating.
    ValueError: if a kernel has fewer than two axes, `axis` is not an axis of it, or `eps` is not above 0.

  Example:
    >>> weight_standardization(jnp.array([[3., 7.], [5., 7.]])).round(3)
    Array([[-1.,  0.],
           [ 1.,  0.]], dtype=float32)

  References:
    Qiao et al., `Micro-Batch Training with Batch-Channel Normalization and Weight Standardization`, 2019,
    section 3; the source adds `eps` to the deviation, and timm and big_vision to the variance.
  """
  check_range(eps, "eps", low=0, open_low=True)
  leaves, tree = jax.tree.flatten(v)
  return tree.unflatten([_one(name, leaf, eps, axis) for name, leaf in zip(paths.leaf_names(v), leaves)])


def _one(name: str, v: ArrayLike, eps: float, axis: Axis) -> Array:
  where = f"v/{name}" if name else "v"
  v = check_floating(v, where)
  if v.ndim < 2:
    raise ValueError(f"{where} must have shape [..., units] with at least one axis of inputs, got {v.shape}")
  wide = v.astype(jnp.promote_types(v.dtype, jnp.float32))
  axes = unit_axes(name, v, axis)
  # Centred first: if all weights of a unit are equal, `eps` would enlarge the rounding of their mean.
  centred = wide - wide.mean(axes, keepdims=True)
  return jax.nn.standardize(centred, axis=axes, epsilon=eps).astype(v.dtype)

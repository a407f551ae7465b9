"""Weight standardisation: each unit's weights have mean 0 and variance 1."""

from __future__ import annotations

from typing import Any

import jax
from jax.typing import ArrayLike

from jaxreg._checks import check_option
from jaxreg._leaves import wide
from jaxreg.reparam._weight_norm import Axis, check_kernel, each_kernel
from jaxreg.typing import Array


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

  Example:
    >>> weight_standardization(jnp.array([[3., 7.], [5., 7.]])).round(3)
    Array([[-1.,  0.],
           [ 1.,  0.]], dtype=float32)

  References:
    Qiao et al., `Micro-Batch Training with Batch-Channel Normalization and Weight Standardization`, 2019,
    section 3; the source adds `eps` to the deviation, and timm and big_vision to the variance.
  """
  check_option(eps, "eps", (), low=0, open_low=True)

  def standardized(name: str, v: ArrayLike) -> Array:
    v, axes = check_kernel(name, v, axis)
    # Centred first: if all weights of a unit are equal, `eps` would enlarge the rounding of their mean.
    centred = wide(v) - wide(v).mean(axes, keepdims=True)
    return jax.nn.standardize(centred, axis=axes, epsilon=eps).astype(v.dtype)

  return each_kernel(standardized, v)

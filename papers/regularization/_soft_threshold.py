"""The L1-regularised minimiser for a diagonal Hessian."""

from __future__ import annotations

import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_range, check_wide
from jaxreg.constraints import soft_threshold
from jaxreg.typing import Array


def l1_solution(w_star: ArrayLike, hessian_diagonal: ArrayLike, *, alpha: ArrayLike) -> Array:
  r"""Computes the minimiser of a separable quadratic with an L1 penalty.

  .. math:: w_i = \operatorname{sign}(w^*_i) \max\Bigl(|w^*_i| - \frac{\alpha}{H_{ii}}, 0\Bigr)
    = \arg\min_w \tfrac12 H_{ii} (w - w^*_i)^2 + \alpha |w|

  An entry with `|w*| <= alpha / H` becomes 0; any other entry moves towards 0 by `alpha / H`. A direction
  without curvature is 0 for every `alpha` above 0. The lecture prints the two cases for positive `w*`.

  Args:
    w_star: the minimiser without the penalty, any shape, floating.
    hessian_diagonal: `H_ii`, at least 0, of the same shape.
    alpha: at least 0.

  Returns:
    An array of the shape of `w_star`, float32 or wider.

  Raises:
    TypeError: if `w_star` or `hessian_diagonal` is not floating.
    ValueError: if the shapes do not fit or `alpha` is negative.

  Example:
    >>> l1_solution(jnp.array([-1.0, 0.25, 3.0]), jnp.array([1.0, 1.0, 0.5]), alpha=0.5)
    Array([-0.5,  0. ,  2. ], dtype=float32)

  References:
    Na, `Regularization for Deep Learning`, lecture, Chonbuk National University, L1 regularization.
  """
  w_star = check_wide(w_star, "w_star")
  diagonal = check_wide(hessian_diagonal, "hessian_diagonal", shape=w_star.shape)
  check_range(alpha, "alpha", low=0)
  curved = diagonal > 0
  # A very large number instead of infinity: the derivative is then 0 and not NaN.
  flat = jnp.where(jnp.asarray(alpha) > 0, jnp.finfo(diagonal.dtype).max, 0)
  return soft_threshold(w_star, threshold=jnp.where(curved, alpha / jnp.where(curved, diagonal, 1), flat))

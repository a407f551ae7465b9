"""The L1 norm of the weights."""

from jaxreg._leaves import absolute, selected, total
from jaxreg.paths import kernels_only
from jaxreg.typing import Array, Mask, Params


def l1(params: Params, *, mask: Mask = kernels_only) -> Array:
  r"""Computes the sum of absolute weights.

  .. math:: \Omega(w) = \sum_i |w_i|, \qquad \nabla \Omega = \operatorname{sign}(w), \quad
    \operatorname{sign}(0) = 0

  A weight of exactly 0 stays 0. Gradient steps oscillate around 0 without reaching it; for exact zeros use
  `constraints.proximal` with `constraints.prox_l1`.

  Args:
    params, mask: as in `l2`.

  Returns:
    A scalar, float32 or wider.

  Example:
    >>> l1({"kernel": jnp.array([3.0, -4.0]), "bias": jnp.array([9.0])})
    Array(7., dtype=float32)

  References:
    Tibshirani, `Regression shrinkage and selection via the lasso`, 1996, section 2.
    Na, `Regularization for Deep Learning`, lecture, Chonbuk National University, L1 regularization.
  """
  return total(absolute(w).sum() for _, w in selected(params, mask))

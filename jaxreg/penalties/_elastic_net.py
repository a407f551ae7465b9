"""A mixture of the L1 and the squared L2 norm."""

from __future__ import annotations

import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_option
from jaxreg.paths import kernels_only
from jaxreg.penalties._l1 import l1
from jaxreg.penalties._l2 import l2
from jaxreg.typing import Array, Mask, Params


def elastic_net(params: Params, *, ratio: ArrayLike, mask: Mask = kernels_only) -> Array:
  r"""Computes `ratio` times the L1 norm plus `1 - ratio` times half the squared L2 norm.

  .. math:: \Omega(w) = \rho \|w\|_1 + \frac{1 - \rho}{2} \|w\|_2^2

  Args:
    params, mask: as in `l2`.
    ratio: `rho` in [0, 1]; 1 is `l1`, 0 is `l2`.

  Returns:
    A scalar, float32 or wider.

  Example:
    >>> elastic_net({"kernel": jnp.array([3.0, -4.0])}, ratio=0.5)
    Array(9.75, dtype=float32)

  References:
    Zou and Hastie, `Regularization and variable selection via the elastic net`, 2005.
    Friedman, Hastie and Tibshirani, `Regularization Paths for Generalized Linear Models via Coordinate
    Descent`, 2010 (this parameterisation).
  """
  check_option(ratio, "ratio", (), low=0, high=1)
  return jnp.multiply(ratio, l1(params, mask=mask)) + jnp.multiply(1 - ratio, l2(params, mask=mask))

"""Norms of the weights."""

from __future__ import annotations

import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_option
from jaxreg._leaves import absolute, selected, total
from jaxreg.paths import kernels_only
from jaxreg.typing import Array, Mask, Params


def l2(params: Params, *, mask: Mask = kernels_only) -> Array:
  r"""Computes half the sum of squared weights.

  .. math:: \Omega(w) = \tfrac12 \sum_i w_i^2, \qquad \nabla \Omega = w

  `alpha * l2(params)` is the convention :math:`(\alpha/2) \|w\|^2`, whose SGD step at rate `eps` is `(1 - eps
  alpha) w - eps grad`. Keras' `L2` and `optax.tree.norm(squared=True)` lack the half. Under an adaptive
  optimizer this is not decoupled weight decay: the optimizer rescales the penalty's gradient together with
  the loss's.

  Args:
    params: any pytree.
    mask: which leaves count; by default kernels and embeddings, no biases and no normalisation scales.

  Returns:
    A scalar, float32 or wider.

  Example:
    >>> l2({"kernel": jnp.array([3.0, 4.0]), "bias": jnp.array([9.0])})
    Array(12.5, dtype=float32)

  References:
    Na, `Regularization for Deep Learning`, lecture, Chonbuk National University, L2 parameter regularization.
  """
  return total(0.5 * jnp.square(w).sum() for _, w in selected(params, mask))


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

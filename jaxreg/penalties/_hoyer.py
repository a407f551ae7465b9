"""The squared ratio of the L1 norm to the L2 norm."""

import jax.numpy as jnp

from jaxreg._leaves import absolute, selected, total
from jaxreg._scaled import scaled
from jaxreg.paths import kernels_only
from jaxreg.typing import Array, Mask, Params


def hoyer(params: Params, *, mask: Mask = kernels_only) -> Array:
  r"""Computes the sum over leaves of Hoyer-Square, a measure of how many weights are not zero.

  .. math:: \Omega(w) = \sum_l \frac{\bigl(\sum_i |w_{l,i}|\bigr)^2}{\sum_i w_{l,i}^2}, \qquad
    \frac{\partial \Omega}{\partial w_{l,i}} = \frac{2 \|w_l\|_1}{\|w_l\|_2^2}
    \Bigl(\operatorname{sign}(w_{l,i}) - \frac{\|w_l\|_1}{\|w_l\|_2^2}\, w_{l,i}\Bigr)

  For `n` weights it lies between 1, if one weight alone is not zero, and `n`, if all have the same size. For
  a leaf of zeros the value and its gradient are 0. A common factor of all weights changes nothing: unlike
  `l1`, the penalty makes small weights smaller and large weights larger. Gradient steps reach no exact zero:
  cut off the small weights after the training.

  Args:
    params, mask: as in `l2`.

  Returns:
    A scalar, float32 or wider.

  Example:
    >>> hoyer({"kernel": jnp.array([[2.0, -2.0, 2.0, 2.0, 0.0]]), "bias": jnp.array([9.0])})  # 8^2 / 16
    Array(4., dtype=float32)

  References:
    Yang, Wen and Li, `DeepHoyer: Learning Sparser Neural Network with Differentiable Scale-Invariant Sparsity
    Measures`, 2020.
    Hoyer, `Non-negative Matrix Factorization with Sparseness Constraints`, 2004.
  """

  def leaf_penalty(w: Array) -> Array:
    w, length, _ = scaled(w.ravel(), (0,))
    return jnp.square(absolute(w).sum() / jnp.where(length[0] == 0, 1, length[0]))

  return total(leaf_penalty(w) for _, w in selected(params, mask))

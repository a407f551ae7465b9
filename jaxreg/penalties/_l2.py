"""The squared L2 norm of the weights."""

import jax.numpy as jnp

from jaxreg._leaves import selected, total
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

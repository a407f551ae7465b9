"""The index of stationary points: the fraction of negative eigenvalues."""

from typing import NamedTuple

import jax.numpy as jnp

from jaxreg import flatness
from jaxreg._checks import check_range
from jaxreg.typing import Array, Batch, LossFn, Params


class HessianIndex(NamedTuple):
  """The result of `hessian_index`."""

  negative: Array
  zero: Array


def hessian_index(loss_fn: LossFn, params: Params, batch: Batch, *, tol: float = 1e-6) -> HessianIndex:
  r"""Computes the fraction of negative eigenvalues of the Hessian.

  .. math:: \alpha = \frac1n \#\{i : \lambda_i(H) < -\tau \max_j |\lambda_j|\}, \qquad
    f(x + \Delta) \approx f(x) + J \Delta + \tfrac12 \Delta^\top H \Delta

  The lecture prints the last term without the half.

  Args:
    loss_fn, params, batch: as in `flatness.hvp`; the loss is called with `key=None`.
    tol: `tau`, at least 0, relative to the largest absolute eigenvalue.

  Returns:
    A NamedTuple of fractions: `negative`, the index, which is 0 at a minimum, 1 at a maximum and between them
    at a saddle; `zero`, the eigenvalues within the tolerance of 0, from symmetries, dead units, or more
    parameters than data. NaN if the Hessian is not finite.

  Example:
    >>> saddle = lambda x, batch, *, key: x[0] ** 2 - x[1] ** 2 + 2 * x[2] ** 2
    >>> hessian_index(saddle, jnp.zeros(3), None).negative
    Array(0.33333334, dtype=float32)

  References:
    Dauphin et al., `Identifying and attacking the saddle point problem in high-dimensional non-convex
    optimization`, 2014.
    Pennington and Bahri, `Geometry of Neural Network Loss Surfaces via Random Matrix Theory`, 2017.
    Lecture 8 of Deep Learning (BEV033DLE, CTU Prague), Stationary Points in High Dimensions.
  """
  check_range(tol, "tol", low=0)
  values = jnp.linalg.eigvalsh(flatness.hvp(loss_fn, params, batch).matrix())
  largest = jnp.abs(values).max()
  # Every comparison with NaN is false: NaN would count as positive, and a NaN Hessian as a minimum.
  unknown = jnp.where(jnp.isfinite(largest), 0, jnp.nan)
  negative, zero = values < -tol * largest, jnp.abs(values) <= tol * largest
  return HessianIndex(negative.mean() + unknown, zero.mean() + unknown)

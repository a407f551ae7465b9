"""The index of stationary points: the fraction of negative eigenvalues."""

from __future__ import annotations

from typing import Literal, NamedTuple

import jax.numpy as jnp

from jaxreg._analyses import full_precision
from jaxreg._checks import check_choice, check_range
from jaxreg.flatness._eigen import quadrature
from jaxreg.flatness._operators import hvp
from jaxreg.flatness._products import as_operator
from jaxreg.typing import Array, Batch, Key, LossFn, Mask, Params


class HessianIndex(NamedTuple):
  """The result of `hessian_index`."""

  negative: Array
  zero: Array
  standard_error: Array


@full_precision
def hessian_index(
  loss_fn: LossFn,
  params: Params,
  batch: Batch,
  *,
  mask: Mask = "*",
  tol: float = 1e-6,
  method: Literal["dense", "lanczos"] = "dense",
  key: Key | None = None,
  num_samples: int = 8,
  num_steps: int | None = None,
) -> HessianIndex:
  r"""Computes the fraction of negative eigenvalues of the Hessian.

  .. math:: \alpha = \frac1n \#\{i : \lambda_i(H) < -\tau \max_j |\lambda_j|\}, \qquad
    f(x + \Delta) \approx f(x) + J \Delta + \tfrac12 \Delta^\top H \Delta

  The lecture prints the last term without the half.

  Args:
    loss_fn, params, batch, mask: as in `hvp`; the loss is called with `key=None`.
    tol: `tau`, at least 0, relative to the largest absolute eigenvalue.
    method: `dense` computes all eigenvalues, `lanczos` the mass of the spectral density by random probes.
    key: draws the probes of `lanczos`.
    num_samples: number of probes, at least 2.
    num_steps: products per probe; by default 64, or the size if that is smaller.

  Returns:
    A NamedTuple of fractions: `negative`, the index, which is 0 at a minimum, 1 at a maximum and between them
    at a saddle; `zero`, the eigenvalues within the tolerance of 0, from symmetries, dead units, or more
    parameters than data; `standard_error` of `negative`, 0 if it is exact. NaN if the Hessian is not finite.

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
  check_choice(method, "method", ("dense", "lanczos"))
  operator = hvp(loss_fn, params, batch, mask=mask)
  if method == "dense":
    values = jnp.linalg.eigvalsh(operator.matrix())
    negative, zero = _shares(values, jnp.full(values.shape, 1 / values.size, values.dtype), tol)
    return HessianIndex(negative, zero, 0 * negative)  # the error is 0, or NaN if `negative` is
  if key is None:
    raise TypeError("key must be given with method='lanczos', got None")
  steps = min(64, operator.like.size) if num_steps is None else num_steps
  nodes, weights, _ = quadrature(as_operator(operator, None), num_samples, steps, key)
  negative, zero = _shares(nodes, weights, tol)
  return HessianIndex(negative.mean(), zero.mean(), negative.std(ddof=1) / num_samples**0.5)


def _shares(values: Array, weights: Array, tol: float) -> tuple[Array, Array]:
  """Sums the weights of the negative values, and of the values near 0, over the last axis."""
  largest = jnp.abs(values).max()
  bound = tol * largest
  # Every comparison with NaN is false: NaN would count as positive, and a NaN Hessian as a minimum.
  unknown = jnp.where(jnp.isfinite(largest), 0, jnp.nan)
  negative, zero = values < -bound, jnp.abs(values) <= bound
  return tuple(jnp.where(part, weights, 0).sum(axis=-1) + unknown for part in (negative, zero))  # type: ignore[return-value]

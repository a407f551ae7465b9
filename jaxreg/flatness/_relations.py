"""The alignment of noise and curvature: the trace of their product."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg.flatness._common import analysis
from jaxreg.flatness._dense import DenseBlock
from jaxreg.flatness._lanczos import Matvec
from jaxreg.typing import Array, check_wide


class Alignment(NamedTuple):
  r"""The alignment of noise and curvature.

  Attributes:
    trace: :math:`\mathrm{Tr}(H \Sigma)`.
    isotropic: the same for isotropic noise of the same size, :math:`\mathrm{Tr}(H) \mathrm{Tr}(\Sigma) / D`.
    ratio: the first over the second.
  """

  trace: Array
  isotropic: Array
  ratio: Array


@analysis
def hessian_variance_alignment(
  hessian: Array | DenseBlock | Matvec,
  covariance: ArrayLike | DenseBlock | None = None,
  *,
  samples: ArrayLike | None = None,
  hessian_trace: ArrayLike | None = None,
) -> Alignment:
  r"""Computes how much more curvature the noise meets than isotropic noise of the same size.

  .. math:: T = \mathrm{Tr}(H \Sigma), \qquad \bar T = \mathrm{Tr}(H) \, \mathrm{Tr}(\Sigma) / D

  Args:
    hessian: a matrix `[size, size]`, a `DenseBlock`, or with `samples` any function that multiplies by it.
    covariance: `[size, size]`, or a `DenseBlock` if `hessian` is one.
    samples: `[num, size]`, instead of a covariance, which is then never built.
    hessian_trace: the trace, needed if `hessian` is an operator; see `operator_trace`.

  Returns:
    `Alignment`; the ratio does not depend on the scale of noise or curvature.

  Raises:
    TypeError: if `covariance` or `samples` are not floating.
    ValueError: if arguments are missing, too many, or do not fit.

  Example:
    >>> hessian_variance_alignment(jnp.diag(jnp.array([3.0, 1.0])), jnp.diag(jnp.array([3.0, 1.0]))).ratio
    Array(1.25, dtype=float32)

  References:
    Zhang, Zhou and Xu, `Dropout in training neural networks`, 2021, sections 3.6 and 7.
    Zhu et al., `The Anisotropic Noise in Stochastic Gradient Descent`, 2019.
  """
  if (covariance is None) == (samples is None):
    raise ValueError("one of covariance and samples must be given, not both and not neither")
  if isinstance(hessian, DenseBlock) != isinstance(covariance, DenseBlock) and samples is None:
    raise ValueError(
      "hessian and covariance must both be DenseBlock or both matrices; call matrix() on the block"
    )
  if isinstance(hessian, DenseBlock) and isinstance(covariance, DenseBlock):
    return _alignment(hessian.inner(covariance), hessian.trace(), covariance.trace(), hessian.size)
  if isinstance(hessian, DenseBlock):
    hessian = hessian.matrix()
  is_matrix = isinstance(hessian, jax.Array) or hasattr(hessian, "__array__")
  if not is_matrix and (samples is None or hessian_trace is None):
    raise ValueError("samples and hessian_trace must be given when hessian is an operator")
  if is_matrix and hessian_trace is None:
    hessian_trace = jnp.trace(jnp.asarray(hessian))
  if samples is None:
    covariance = check_wide(covariance, "covariance")  # type: ignore[arg-type]
    hessian = jnp.asarray(hessian)
    if hessian.ndim != 2 or hessian.shape != covariance.shape:
      raise ValueError(
        f"hessian and covariance must have one shape [size, size], got {hessian.shape} and {covariance.shape}"
      )
    trace, size = jnp.sum(hessian * covariance), hessian.shape[0]
    return _alignment(trace, jnp.asarray(hessian_trace), jnp.trace(covariance), size)
  samples = check_wide(samples, "samples")
  if samples.ndim != 2 or (is_matrix and jnp.asarray(hessian).shape != (samples.shape[1],) * 2):
    raise ValueError(f"samples must be [num, size] with the size of hessian, got {samples.shape}")
  centred = samples - samples.mean(axis=0, keepdims=True)
  if is_matrix:
    products = centred @ jnp.asarray(hessian)
  else:
    products = jax.lax.map(hessian, centred)  # type: ignore[arg-type]
  number, size = samples.shape
  trace = jnp.sum(centred * products) / number
  return _alignment(trace, jnp.asarray(hessian_trace), jnp.sum(centred**2) / number, size)


def _alignment(trace: Array, curvature: Array, noise: Array, size: int) -> Alignment:
  isotropic = curvature * noise / size
  return Alignment(trace, isotropic, trace / isotropic)

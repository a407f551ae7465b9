"""The alignment of noise and curvature: the trace of their product."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg.flatness._common import analysis, as_pytree
from jaxreg.flatness._dense import DenseBlock
from jaxreg.flatness._lanczos import Matvec
from jaxreg.flatness._lazy import LazySamples, sum_of_rows
from jaxreg.flatness._streamed import Streamed
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
  samples: ArrayLike | LazySamples | None = None,
  hessian_trace: ArrayLike | None = None,
) -> Alignment:
  r"""Computes how much more curvature the noise meets than isotropic noise of the same size.

  .. math:: T = \mathrm{Tr}(H \Sigma), \qquad \bar T = \mathrm{Tr}(H) \, \mathrm{Tr}(\Sigma) / D

  Args:
    hessian: a matrix `[size, size]`, a `DenseBlock`, or with `samples` any function that multiplies by it,
      such as a `Curvature`.
    covariance: `[size, size]`, or a `DenseBlock` if `hessian` is one.
    samples: `[num, size]`, instead of a covariance, which is then never built; no copy of them is made.
      Samples from `lazy_gradients` or `lazy_trajectory` are never together in memory.
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
  if not isinstance(samples, LazySamples):
    samples = check_wide(samples, "samples")
  shape = (samples.num, samples.size) if isinstance(samples, LazySamples) else samples.shape
  if len(shape) != 2 or (is_matrix and jnp.asarray(hessian).shape != (shape[1],) * 2):
    raise ValueError(f"samples must be [num, size] with the size of hessian, got {shape}")
  if isinstance(hessian, Streamed):
    moments = _moments_on_host(hessian, samples)
  else:
    operator: Any = hessian
    moments = _moments(jnp.asarray(operator) if is_matrix else as_pytree(operator), samples)
  trace, noise = (moment / shape[0] for moment in moments)
  return _alignment(trace, jnp.asarray(hessian_trace), noise, shape[1])


@jax.jit
def _moments(hessian, samples):
  """The sums of `g' H g` and `g' g` over centred samples."""
  matrix = hessian
  if isinstance(matrix, jax.Array):
    hessian = lambda v: v @ matrix
  if isinstance(samples, LazySamples):
    zeros = jnp.zeros(samples.size, samples.dtype)
    start = (jnp.int32(0), zeros, zeros, jax.eval_shape(lambda v: v @ hessian(v), zeros), zeros[0])
    start = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), start)
    number, _, mean, curved, square = samples.fold(lambda c, sample: _add(c, sample, hessian), start)
    return curved - number * (mean @ hessian(mean)), square - number * (mean @ mean)
  mean = samples.mean(axis=0)

  def both(rows):
    centred = rows - mean[None]
    products = centred @ matrix if isinstance(matrix, jax.Array) else jax.lax.map(hessian, centred)
    return jnp.stack([jnp.sum(centred * products), jnp.sum(centred**2)])

  return sum_of_rows(both, samples, jnp.zeros(2, samples.dtype), rows=16)


def _add(carry, sample, hessian):
  # Relative to the first sample, because positions may be far from 0.
  number, first, mean, curved, square = carry
  first = jnp.where(number == 0, sample, first)
  away = sample - first
  mean = mean + (away - mean) / (number + 1)
  return number + 1, first, mean, curved + away @ hessian(away), square + away @ away


def _moments_on_host(hessian, samples):
  count, mean, curved, square = 0, 0.0, 0.0, 0.0
  rows = _rows(samples)
  first = next(rows)
  for sample in itertools.chain([first], rows):
    count, away = count + 1, sample - first
    mean = mean + (away - mean) / count
    curved, square = curved + away @ hessian(away), square + away @ away
  return curved - count * (mean @ hessian(mean)), square - count * (mean @ mean)  # type: ignore[operator]


def _rows(samples):
  if not isinstance(samples, LazySamples):
    # To iterate over an array copies a hundred rows at once.
    yield from (jax.lax.dynamic_index_in_dim(samples, n, keepdims=False) for n in range(len(samples)))
    return
  state = samples.state
  for number in range(samples.num):
    state, sample = _next(samples, state, number)
    yield sample


_next = jax.jit(lambda samples, state, number: samples.next(state, number))


def _alignment(trace: Array, curvature: Array, noise: Array, size: int) -> Alignment:
  isotropic = curvature * noise / size
  return Alignment(trace, isotropic, trace / isotropic)

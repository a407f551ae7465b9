"""How noise and curvature go together: traces, and power laws with their intervals."""

import statistics
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg.flatness._common import analysis
from jaxreg.flatness._dense import DenseBlock
from jaxreg.flatness._lanczos import Matvec
from jaxreg.typing import Array, check_floating, check_range


class Alignment(NamedTuple):
  r"""`trace`: :math:`\mathrm{Tr}(H \Sigma)`; `isotropic`: the same for isotropic noise of the same size,
  :math:`\mathrm{Tr}(H) \mathrm{Tr}(\Sigma) / D`; `ratio`: of the two."""

  trace: Array
  isotropic: Array
  ratio: Array


class PowerLaw(NamedTuple):
  """A straight line in the logarithms of both coordinates.

  Attributes:
    slope, intercept: of `log y = intercept + slope log x`, natural logarithms.
    slope_interval: `[2]`, for the slope.
    correlation: of the logarithms.
    correlation_interval: `[2]`.
    num: how many points counted.
  """

  slope: Array
  intercept: Array
  slope_interval: Array
  correlation: Array
  correlation_interval: Array
  num: Array


@analysis
def hessian_variance_alignment(
  hessian: Array | DenseBlock | Matvec,
  covariance: ArrayLike | DenseBlock | None = None,
  *,
  samples: ArrayLike | None = None,
  hessian_trace: ArrayLike | None = None,
) -> Alignment:
  r"""How much more curvature the noise meets than isotropic noise of the same size would.

  .. math:: T = \mathrm{Tr}(H \Sigma), \qquad \bar T = \mathrm{Tr}(H) \, \mathrm{Tr}(\Sigma) / D

  Args:
    hessian: a matrix `[size, size]`, a `DenseBlock`, or with `samples` any product with it.
    covariance: `[size, size]`, or a `DenseBlock` if `hessian` is one.
    samples: `[num, size]` instead of a covariance, which then is never built.
    hessian_trace: of an operator, which does not know its own; see `operator_trace`.

  Returns:
    `Alignment`; the ratio does not depend on the scale of either.

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
    raise ValueError("give either covariance or samples")
  if isinstance(hessian, DenseBlock) != isinstance(covariance, DenseBlock) and samples is None:
    raise ValueError("hessian and covariance must both be DenseBlock, or both matrices; matrix() gives one")
  if isinstance(hessian, DenseBlock) and isinstance(covariance, DenseBlock):
    return _alignment(hessian.inner(covariance), hessian.trace(), covariance.trace(), hessian.size)
  if isinstance(hessian, DenseBlock):
    hessian = hessian.matrix()
  is_matrix = isinstance(hessian, jax.Array) or hasattr(hessian, "__array__")
  if not is_matrix and (samples is None or hessian_trace is None):
    raise ValueError("with hessian as an operator give samples and hessian_trace")
  if is_matrix and hessian_trace is None:
    hessian_trace = jnp.trace(jnp.asarray(hessian))
  if samples is None:
    covariance = check_floating(covariance, "covariance")  # type: ignore[arg-type]
    hessian = jnp.asarray(hessian)
    if hessian.ndim != 2 or hessian.shape != covariance.shape:
      raise ValueError(
        f"hessian and covariance must have one shape [size, size], got {hessian.shape} and {covariance.shape}"
      )
    trace, size = jnp.sum(hessian * covariance), hessian.shape[0]
    return _alignment(trace, jnp.asarray(hessian_trace), jnp.trace(covariance), size)
  samples = check_floating(samples, "samples")
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


def power_law_fit(
  x: ArrayLike, y: ArrayLike, *, mask: ArrayLike | None = None, confidence: float = 0.95
) -> PowerLaw:
  r"""Least squares in logarithms, :math:`\log y = a + b \log x`, with confidence intervals.

  The slope's interval allows for scatter that changes along the line (White's standard error, corrected for
  the degrees of freedom), the correlation's is Fisher's; both take points as independent and normal
  quantiles. Points that are not positive and finite in both coordinates do not count.

  Args:
    x, y: `[points]`.
    mask: `[points]`, which ones count.
    confidence: of the intervals.

  Returns:
    `PowerLaw`; NaN with fewer than 4 points or an `x` that does not vary.

  Raises:
    TypeError: if `x` or `y` are not floating.
    ValueError: if shapes do not fit or `confidence` is outside (0, 1).

  Example:
    >>> x = jnp.array([1.0, 2.0, 4.0, 8.0])
    >>> power_law_fit(x, 3 * x**-2).slope.round(3)
    Array(-2., dtype=float32)
  """
  x = check_floating(x, "x")
  y = check_floating(y, "y", shape=x.shape)
  check_range(confidence, "confidence", low=0, high=1 - 1e-9, open_low=True)
  counts = jnp.isfinite(x) & jnp.isfinite(y) & (x > 0) & (y > 0)
  if mask is not None:
    mask = jnp.asarray(mask)
    if mask.shape != x.shape or mask.dtype != bool:
      raise ValueError(f"mask must be booleans of shape {x.shape}, got {mask.dtype} {mask.shape}")
    counts &= mask
  weight = counts.astype(x.dtype)
  u, v = (jnp.log(jnp.where(counts, value, 1)) for value in (x, y))
  number = weight.sum()
  enough = jnp.where(number >= 4, 1.0, jnp.nan)
  mean = lambda value: (weight * value).sum() / number
  du, dv = (weight * (value - mean(value)) for value in (u, v))
  spread = (du**2).sum()
  slope = (du * dv).sum() / spread * enough
  intercept = mean(v) - slope * mean(u)
  left = weight * (v - intercept - slope * u)
  error = jnp.sqrt((du**2 * left**2).sum() * number / (number - 2)) / spread
  correlation = (du * dv).sum() / jnp.sqrt(spread * (dv**2).sum()) * enough
  quantile = statistics.NormalDist().inv_cdf((1 + confidence) / 2)
  sides = jnp.array([-1, 1], x.dtype) * quantile
  # Rounding may leave a perfect correlation a little above 1.
  z = jnp.arctanh(jnp.clip(correlation, -1, 1))
  interval = jnp.tanh(z[None] + sides / jnp.sqrt(number - 3)[None])
  return PowerLaw(slope, intercept, slope[None] + sides * error[None], correlation, interval, counts.sum())

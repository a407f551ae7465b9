"""The covariance of samples, its principal components, and the variance along directions."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg.flatness._common import analysis
from jaxreg.flatness._interval import check_directions
from jaxreg.flatness._lazy import LazySamples, sum_of_rows
from jaxreg.typing import Array, check_count, check_wide


class PrincipalComponents(NamedTuple):
  """Eigenpairs of a covariance, the largest first.

  Attributes:
    variances: `[k]`, eigenvalues; exactly 0 from `rank` on.
    directions: `[k, size]`, orthonormal rows; zeros from `rank` on.
    mean: `[size]`.
    rank: the number of variances above the tolerance.
  """

  variances: Array
  directions: Array
  mean: Array
  rank: Array


@analysis
def noise_covariance(samples: ArrayLike, *, ddof: int = 0) -> Array:
  r"""Computes the covariance of samples.

  .. math:: \Sigma = \frac1{N - \mathrm{ddof}} \sum_j (g_j - \bar g)(g_j - \bar g)^\top

  Args:
    samples: `[num, size]`, floating.
    ddof: 0 divides by the number of samples, as in the paper; 1 is unbiased.

  Returns:
    `[size, size]`.

  Raises:
    TypeError: if `samples` are not floating.
    ValueError: if `samples` is not two-dimensional, or too few rows for `ddof`.

  Example:
    >>> noise_covariance(jnp.array([[1.0, 0.0], [-1.0, 0.0]]))
    Array([[1., 0.],
           [0., 0.]], dtype=float32)

  References:
    Zhang, Zhou and Xu, `Dropout in training neural networks`, 2021, definitions 1 and 3.
  """
  centred, _, count = _centred(samples, ddof)
  return centred.T @ centred / count


@analysis
def principal_components(
  samples: ArrayLike, *, num: int | None = None, ddof: int = 0, tol: float | None = None
) -> PrincipalComponents:
  """Computes eigenpairs of the covariance of samples, by the smaller of the two Gram matrices.

  With fewer samples than parameters, the covariance is never built. Beware of bias: unless there are many
  more samples than parameters, the large eigenvalues come out too large and the small ones much too small. So
  the slope of a fit through them changes with the number of samples. `projected_variance` along directions
  that were found without the samples, and `per_example_noise_covariance`, have no such bias.

  Args:
    samples: `[num, size]`, floating.
    num: number of pairs; by default and at most `min(number of samples - 1, size)`.
    ddof: as in `noise_covariance`.
    tol: variances up to `tol` times the largest count as 0; by default 10 times the square root of the number
      of samples times the dtype's rounding error.

  Returns:
    `PrincipalComponents`.

  Raises:
    TypeError: if `samples` are not floating or `num` is no integer.
    ValueError: if `samples` is not two-dimensional, or `num` is out of range.

  Example:
    >>> found = principal_components(jnp.array([[3.0, 0.0], [-3.0, 0.0], [0.0, 0.0]]))
    >>> found.variances, int(found.rank)
    (Array([6., 0.], dtype=float32), 1)

  References:
    Zhang, Zhou and Xu, `Dropout in training neural networks`, 2021, section 6.1.
  """
  centred, mean, count = _centred(samples, ddof)
  most = min(centred.shape[0] - 1, centred.shape[1])
  if num is not None:
    check_count(num, "num")
  number = most if num is None else num
  if not 1 <= number <= most:
    raise ValueError(f"num must be at most {most} for samples of shape {centred.shape}, got {num}")
  if tol is None:
    tol = 10 * float(jnp.finfo(centred.dtype).eps) * centred.shape[0] ** 0.5
  return _principal(number, centred, mean, count, tol)


@partial(jax.jit, static_argnums=0)
def _principal(number, centred, mean, count, tol):
  samples, size = centred.shape
  if samples <= size:
    values, vectors = jnp.linalg.eigh(centred @ centred.T / count)
    directions = vectors.T[::-1][:number] @ centred
  else:
    values, vectors = jnp.linalg.eigh(centred.T @ centred / count)
    directions = vectors.T[::-1][:number]
  values = values[::-1][:number]
  kept = values > tol * values[0]
  norms = jnp.linalg.norm(directions, axis=1, keepdims=True)
  directions = jnp.where(kept[:, None], directions / jnp.where(norms > 0, norms, 1), 0)
  return PrincipalComponents(jnp.where(kept, values, 0), directions, mean, kept.sum())


@analysis
def projected_variance(samples: ArrayLike | LazySamples, directions: ArrayLike, *, ddof: int = 0) -> Array:
  r"""Computes the variance of samples along directions, without building their covariance.

  .. math:: \mathrm{Var}(v^\top S) = \frac1N \sum_j (v^\top \theta_j - \mu)^2 = v^\top \Sigma v

  Args:
    samples: `[num, size]`, floating, of which no copy is made; or samples that are drawn one at a time and
      never together in memory, from `lazy_gradients` or `lazy_trajectory`.
    directions: `[k, size]`, one direction per row.
    ddof: as in `noise_covariance`.

  Returns:
    `[k]`.

  Raises:
    TypeError: if `samples` or `directions` are not floating.
    ValueError: if the shapes do not fit.

  Example:
    >>> projected_variance(jnp.array([[3.0, 1.0], [-3.0, 1.0]]), jnp.eye(2))
    Array([9., 0.], dtype=float32)

  References:
    Zhang, Zhou and Xu, `Dropout in training neural networks`, 2021, definition 3.
  """
  if isinstance(samples, LazySamples):
    _check_shape((samples.num, samples.size), ddof)
    return _lazy_variance(samples, check_directions(directions, samples.size), samples.num - ddof)
  samples = check_wide(samples, "samples")
  _check_shape(samples.shape, ddof)
  return _variance(samples, check_directions(directions, samples.shape[1]), len(samples) - ddof)


@jax.jit
def _variance(samples, directions, count):
  mean = samples.mean(axis=0)
  square = lambda rows: jnp.sum(((rows - mean[None]) @ directions.T) ** 2, axis=0)
  return sum_of_rows(square, samples, jnp.zeros(len(directions), samples.dtype)) / count


@jax.jit
def _lazy_variance(samples, directions, count):
  directions = directions.astype(jnp.promote_types(directions.dtype, samples.dtype))

  def add(carry, sample):
    number, first, mean, squares = carry
    # Relative to the first sample, because positions may be far from 0; then Welford's recurrence.
    first = jnp.where(number == 0, sample, first)
    along = directions @ (sample - first)
    away = along - mean
    mean = mean + away / (number + 1)
    return number + 1, first, mean, squares + away * (along - mean)

  zeros = jnp.zeros(len(directions), directions.dtype)
  start = (jnp.int32(0), jnp.zeros(samples.size, directions.dtype), zeros, zeros)
  return samples.fold(add, start)[3] / count


def _centred(samples: ArrayLike, ddof: int) -> tuple[Array, Array, int]:
  samples = check_wide(samples, "samples")
  _check_shape(samples.shape, ddof)
  mean = samples.mean(axis=0)
  return samples - mean[None], mean, samples.shape[0] - ddof


def _check_shape(shape: tuple[int, ...], ddof: int) -> None:
  if len(shape) != 2 or shape[0] - ddof < 1:
    raise ValueError(f"samples must be [num, size] with num above ddof={ddof}, got {shape}")

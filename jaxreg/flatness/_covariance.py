"""The covariance of samples: its components, variances along directions, alignment with the curvature."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._analyses import full_precision
from jaxreg._checks import check_count, check_wide
from jaxreg._sums import Compensated, add, compensated, gram, sum_of_rows, total
from jaxreg.flatness._products import LinearOperator, Matvec, as_operator
from jaxreg.flatness._subset import check_directions
from jaxreg.flatness._vectors import inner
from jaxreg.typing import Array

Sums = tuple[Compensated, Compensated]


class PrincipalComponents(NamedTuple):
  """The result of `principal_components`."""

  variances: Array
  directions: Array
  mean: Array
  rank: Array


@full_precision
def noise_covariance(samples: ArrayLike, *, ddof: int = 0) -> Array:
  r"""Computes the covariance of samples, `[size, size]`.

  .. math:: \Sigma = \frac1{N - \mathrm{ddof}} \sum_j (g_j - \bar g)(g_j - \bar g)^\top

  Args:
    samples: `[num, size]`, floating.
    ddof: 0 divides by the number of samples, as in the paper; 1 is unbiased.

  Example:
    >>> noise_covariance(jnp.array([[1.0, 0.0], [-1.0, 0.0]]))
    Array([[1., 0.],
           [0., 0.]], dtype=float32)

  References:
    Zhang, Zhou and Xu, `Dropout in training neural networks`, 2021, definitions 1 and 3.
  """
  centred, _, count = _centred(samples, ddof)
  return gram(centred) / count


@full_precision
def principal_components(
  samples: ArrayLike, *, num_components: int | None = None, ddof: int = 0, tol: float | None = None
) -> PrincipalComponents:
  """Computes eigenpairs of the covariance of samples, by the smaller of the two Gram matrices.

  Unless there are many more samples than parameters, the eigenvalues are biased: the large ones are too large
  and the small ones much too small. So the slope of a fit through them changes with the number of samples.
  `per_example_noise_covariance`, and `projected_variance` along directions that do not depend on the samples,
  have no such bias.

  Args:
    samples, ddof: as in `noise_covariance`.
    num_components: how many pairs to compute; by default and at most `min(number of samples - 1, size)`.
    tol: variances up to `tol` times the largest count as 0; by default 10 times the square root of the number
      of samples times the dtype's rounding error.

  Returns:
    A NamedTuple, the largest variance first: `variances` `[k]`; `directions` `[k, size]`, orthonormal rows;
    `mean` `[size]`; `rank`, the number of variances above the tolerance. From `rank` on, both are zeros.

  Example:
    >>> components = principal_components(jnp.array([[3.0, 0.0], [-3.0, 0.0], [0.0, 0.0]]))
    >>> components.variances, int(components.rank)
    (Array([6., 0.], dtype=float32), 1)

  References:
    Zhang, Zhou and Xu, `Dropout in training neural networks`, 2021, section 6.1.
  """
  centred, mean, count = _centred(samples, ddof)
  most = min(centred.shape[0] - 1, centred.shape[1])
  number = most if num_components is None else num_components
  check_count(number, "num_components")
  if number > most:
    raise ValueError(f"num_components must be at most {most} for samples {centred.shape}, got {number}")
  if tol is None:
    tol = 10 * float(jnp.finfo(centred.dtype).eps) * centred.shape[0] ** 0.5
  return _principal(number, centred, mean, count, tol)


@partial(jax.jit, static_argnums=0)
def _principal(number, centred, mean, count, tol):
  samples, size = centred.shape
  if samples <= size:
    values, vectors = jnp.linalg.eigh(gram(centred.T) / count)
    directions = vectors.T[::-1][:number] @ centred
  else:
    values, vectors = jnp.linalg.eigh(gram(centred) / count)
    directions = vectors.T[::-1][:number]
  values = values[::-1][:number]
  kept = values > tol * values[0]
  norms = jnp.linalg.norm(directions, axis=1, keepdims=True)
  directions = jnp.where(kept[:, None], directions / jnp.where(norms > 0, norms, 1), 0)
  return PrincipalComponents(jnp.where(kept, values, 0), directions, mean, kept.sum())


@full_precision
def projected_variance(samples: ArrayLike, directions: ArrayLike, *, ddof: int = 0) -> Array:
  r"""Computes the variance of samples along directions, without building their covariance.

  .. math:: \mathrm{Var}(v^\top S) = \frac1N \sum_j (v^\top \theta_j - \mu)^2 = v^\top \Sigma v

  Args:
    samples: `[num, size]`, which are not copied.
    directions: `[k, size]`, one direction per row.
    ddof: as in `noise_covariance`.

  Returns:
    `[k]`.

  Example:
    >>> projected_variance(jnp.array([[3.0, 1.0], [-3.0, 1.0]]), jnp.eye(2))
    Array([9., 0.], dtype=float32)

  References:
    Zhang, Zhou and Xu, `Dropout in training neural networks`, 2021, definition 3.
  """
  samples = check_wide(samples, "samples")
  _check_shape(samples.shape, ddof)
  return _variance(samples, check_directions(directions, samples.shape[1]), len(samples) - ddof)


@jax.jit
def _variance(samples, directions, count):
  mean, dtype = samples.mean(axis=0), jnp.result_type(samples, directions)

  def squares(rows: Array) -> Array:
    return jnp.sum(((rows - mean[None]) @ directions.T) ** 2, axis=0)

  return sum_of_rows(squares, 64, jnp.zeros(len(directions), dtype), samples) / count


def _centred(samples: ArrayLike, ddof: int) -> tuple[Array, Array, int]:
  samples = check_wide(samples, "samples")
  _check_shape(samples.shape, ddof)
  mean = samples.mean(axis=0)
  return samples - mean[None], mean, samples.shape[0] - ddof


def _check_shape(shape: tuple[int, ...], ddof: int) -> None:
  if len(shape) != 2 or shape[0] - ddof < 1:
    raise ValueError(f"samples must be [num, size] with num above ddof={ddof}, got {shape}")


class Alignment(NamedTuple):
  """The result of `hessian_variance_alignment`."""

  trace: Array
  isotropic: Array
  ratio: Array


@full_precision
def hessian_variance_alignment(
  hessian: Array | Matvec,
  covariance: ArrayLike | None = None,
  *,
  samples: ArrayLike | None = None,
  hessian_trace: ArrayLike | None = None,
) -> Alignment:
  r"""Computes how much more curvature the noise meets than isotropic noise of the same size.

  .. math:: T = \mathrm{Tr}(H \Sigma), \qquad \bar T = \mathrm{Tr}(H) \, \mathrm{Tr}(\Sigma) / D

  Args:
    hessian: a matrix `[size, size]`, or with `samples` any function that multiplies a vector by it, such as a
      `Curvature`.
    covariance: `[size, size]`.
    samples: as in `projected_variance`, instead of a covariance, which is then never built.
    hessian_trace: the trace, needed if `hessian` is a function; see `operator_trace`.

  Returns:
    A NamedTuple: `trace`, which is `T`; `isotropic`, :math:`\bar T`; and `ratio`, the first over the second,
    which does not depend on the scale of noise or curvature.

  Example:
    >>> hessian_variance_alignment(jnp.diag(jnp.array([3.0, 1.0])), jnp.diag(jnp.array([3.0, 1.0]))).ratio
    Array(1.25, dtype=float32)

  References:
    Zhang, Zhou and Xu, `Dropout in training neural networks`, 2021, sections 3.6 and 7.
    Zhu et al., `The Anisotropic Noise in Stochastic Gradient Descent`, 2019.
  """
  if (covariance is None) == (samples is None):
    raise ValueError("exactly one of covariance and samples must be given")
  is_matrix = isinstance(hessian, jax.Array) or hasattr(hessian, "__array__")
  if not is_matrix and (samples is None or hessian_trace is None):
    raise ValueError("samples and hessian_trace must be given when hessian is a function")
  matrix: Any = jnp.asarray(hessian) if is_matrix else None
  if hessian_trace is None:
    hessian_trace = jnp.trace(matrix)
  if covariance is not None:
    covariance = check_wide(covariance, "covariance")
    if matrix.ndim != 2 or matrix.shape != covariance.shape:
      raise ValueError(
        f"hessian and covariance must have one shape [size, size], got {matrix.shape} and {covariance.shape}"
      )
    trace = jnp.sum(matrix * covariance)
    return _alignment(trace, jnp.asarray(hessian_trace), jnp.trace(covariance), len(matrix))
  samples = check_wide(samples, "samples")  # type: ignore[arg-type]
  if samples.ndim != 2 or (is_matrix and matrix.shape != (samples.shape[1],) * 2):
    raise ValueError(f"samples must be [num, size] with the size of hessian, got {samples.shape}")
  if is_matrix:
    curved, squares = _matrix_moments(matrix, samples)
  else:
    operator = as_operator(hessian, getattr(hessian, "like", samples[0]))
    curved, squares = operator.run(_moments, (), samples)
  number, size = samples.shape
  return _alignment(curved / number, jnp.asarray(hessian_trace), squares / number, size)


@jax.jit
def _matrix_moments(matrix, samples):
  """Sums `g' H g` and `g' g` over centred samples, with one matrix product per block of samples."""
  mean = samples.mean(axis=0)

  def moments(rows: Array) -> Array:
    centred = rows - mean[None]
    return jnp.stack([jnp.sum(centred * (centred @ matrix)), jnp.sum(centred**2)])

  return sum_of_rows(moments, 16, jnp.zeros(2, jnp.result_type(matrix, samples)), samples)


def _moments(operator: LinearOperator, samples: Array) -> tuple[Array, Array]:
  """Sums `g' H g` and `g' g` over centred samples, one after another."""
  mean, dtype = samples.mean(axis=0), operator.like[0].dtype

  def add_sample(number: Array | int, sums: Sums) -> Sums:
    row = jax.lax.dynamic_index_in_dim(samples, number, keepdims=False)  # indexing may copy more rows
    centred = ((row - mean).astype(dtype),)
    curved, squares = sums
    return add(curved, inner(centred, operator(centred))), add(squares, inner(centred, centred))

  zero = jnp.zeros((), dtype)
  sums = operator.for_each(0, len(samples), add_sample, (compensated(zero), compensated(zero)))
  return total(sums[0]), total(sums[1])


def _alignment(trace: Array, curvature: Array, noise: Array, size: int) -> Alignment:
  isotropic = curvature * noise / size
  return Alignment(trace, isotropic, trace / isotropic)

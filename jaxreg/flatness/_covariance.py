"""The covariance of samples: its components, variances along directions, alignment with the curvature."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_count, check_wide
from jaxreg._sums import add, compensated, gram, sum_of_rows, total
from jaxreg.flatness._batches import Streamed
from jaxreg.flatness._common import analysis, as_pytree
from jaxreg.flatness._layers import DenseBlock
from jaxreg.flatness._noise import LazySamples
from jaxreg.flatness._subset import check_directions
from jaxreg.flatness._trace import Matvec
from jaxreg.typing import Array


class PrincipalComponents(NamedTuple):
  """The result of `principal_components`."""

  variances: Array
  directions: Array
  mean: Array
  rank: Array


@analysis
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


@analysis
def principal_components(
  samples: ArrayLike, *, num_components: int | None = None, ddof: int = 0, tol: float | None = None
) -> PrincipalComponents:
  """Computes eigenpairs of the covariance of samples, by the smaller of the two Gram matrices.

  Beware of bias: unless there are many more samples than parameters, the large eigenvalues come out too large
  and the small ones much too small. So the slope of a fit through them changes with the number of samples.
  `projected_variance` along directions that were found without the samples, and
  `per_example_noise_covariance`, have no such bias.

  Args:
    samples, ddof: as in `noise_covariance`.
    num_components: number of pairs; by default and at most `min(number of samples - 1, size)`.
    tol: variances up to `tol` times the largest count as 0; by default 10 times the square root of the number
      of samples times the dtype's rounding error.

  Returns:
    A NamedTuple, the largest variance first: `variances` `[k]`; `directions` `[k, size]`, orthonormal rows;
    `mean` `[size]`; `rank`, the number of variances above the tolerance. From `rank` on, both are zeros.

  Example:
    >>> found = principal_components(jnp.array([[3.0, 0.0], [-3.0, 0.0], [0.0, 0.0]]))
    >>> found.variances, int(found.rank)
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


@analysis
def projected_variance(samples: ArrayLike | LazySamples, directions: ArrayLike, *, ddof: int = 0) -> Array:
  r"""Computes the variance of samples along directions, without building their covariance.

  .. math:: \mathrm{Var}(v^\top S) = \frac1N \sum_j (v^\top \theta_j - \mu)^2 = v^\top \Sigma v

  Args:
    samples: `[num, size]`, not copied; or from `sample_gradients(..., lazy=True)`, never together in memory.
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
  if isinstance(samples, LazySamples):
    _check_shape((samples.num_samples, samples.size), ddof)
    return _lazy_variance(samples, check_directions(directions, samples.size), samples.num_samples - ddof)
  samples = check_wide(samples, "samples")
  _check_shape(samples.shape, ddof)
  return _variance(samples, check_directions(directions, samples.shape[1]), len(samples) - ddof)


@jax.jit
def _variance(samples, directions, count):
  mean = samples.mean(axis=0)
  square = lambda rows: jnp.sum(((rows - mean[None]) @ directions.T) ** 2, axis=0)
  return sum_of_rows(square, 64, jnp.zeros(len(directions), samples.dtype), samples) / count


@jax.jit
def _lazy_variance(samples, directions, count):
  directions = directions.astype(jnp.promote_types(directions.dtype, samples.dtype))

  def step(carry, sample):
    number, first, mean, squares = carry
    # Relative to the first sample, because positions may be far from 0; then Welford's recurrence.
    first = jnp.where(number == 0, sample, first)
    # A reduction adds in pairs; a product with a vector adds one entry after the other.
    along = (directions * (sample - first)[None]).sum(axis=1)
    away = along - mean
    mean = mean + away / (number + 1)
    return number + 1, first, mean, add(squares, away * (along - mean))

  zeros = jnp.zeros(len(directions), directions.dtype)
  start = (jnp.int32(0), jnp.zeros(samples.size, directions.dtype), zeros, compensated(zeros))
  return total(samples.fold(step, start)[3]) / count


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
    samples: as in `projected_variance`, instead of a covariance, which is then never built.
    hessian_trace: the trace, needed if `hessian` is an operator; see `operator_trace`.

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
  shape = (samples.num_samples, samples.size) if isinstance(samples, LazySamples) else samples.shape
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
    start = (*start[:3], *map(compensated, start[3:]))
    number, _, mean, curved, square = samples.fold(lambda c, sample: _add_sample(c, sample, hessian), start)
    return total(curved) - number * (mean @ hessian(mean)), total(square) - number * (mean @ mean)
  mean = samples.mean(axis=0)

  def both(rows):
    centred = rows - mean[None]
    products = centred @ matrix if isinstance(matrix, jax.Array) else jax.lax.map(hessian, centred)
    return jnp.stack([jnp.sum(centred * products), jnp.sum(centred**2)])

  return sum_of_rows(both, 16, jnp.zeros(2, samples.dtype), samples)


def _add_sample(carry, sample, hessian):
  # Relative to the first sample, because positions may be far from 0.
  number, first, mean, curved, square = carry
  first = jnp.where(number == 0, sample, first)
  away = sample - first
  mean = mean + (away - mean) / (number + 1)
  return number + 1, first, mean, add(curved, away @ hessian(away)), add(square, away @ away)


def _moments_on_host(hessian, samples):
  # Python's floats keep the digits of float64.
  count, mean, curved, square = 0, 0.0, 0.0, 0.0
  rows = _rows(samples)
  first = next(rows)
  for sample in itertools.chain([first], rows):
    count, away = count + 1, sample - first
    mean = mean + (away - mean) / count
    curved, square = curved + float(away @ hessian(away)), square + float(away @ away)
  return curved - count * (mean @ hessian(mean)), square - count * (mean @ mean)  # type: ignore[operator]


def _rows(samples):
  if not isinstance(samples, LazySamples):
    # Iterating over a JAX array would copy a hundred rows at once.
    yield from (jax.lax.dynamic_index_in_dim(samples, n, keepdims=False) for n in range(len(samples)))
    return
  state = samples.state
  for number in range(samples.num_samples):
    state, sample = _next(samples, state, number)
    yield sample


_next = jax.jit(lambda samples, state, number: samples.next(state, number))


def _alignment(trace: Array, curvature: Array, noise: Array, size: int) -> Alignment:
  isotropic = curvature * noise / size
  return Alignment(trace, isotropic, trace / isotropic)

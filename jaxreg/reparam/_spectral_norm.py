"""Spectral normalisation: kernels with largest singular value 1."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_count, check_floating
from jaxreg._sharding import partitioned, placed_like
from jaxreg.reparam._weight_norm import Axis, check_kernel
from jaxreg.typing import Array


def spectral_norm(
  kernel: ArrayLike, u: ArrayLike, *, num_steps: int = 1, axis: Axis = None
) -> tuple[Array, Array]:
  r"""Divides a kernel by the current power iteration estimate of its largest singular value.

  .. math:: v \leftarrow \frac{W u}{\|W u\|}, \quad u \leftarrow \frac{W^\top v}{\|W^\top v\|}, \qquad
    \bar W = \frac{W}{\sigma}, \quad \sigma = v^\top W u

  with `W` the kernel as a matrix, `[inputs, units]`. Keep the returned `u` with the parameters for the next
  step; one iteration is enough if the kernel changes little from step to step. At test time pass `u` and drop
  the returned one. The stored kernel does not change. For a convolution this is the norm of the matrix, not
  of the linear map.

  Args:
    kernel: `[..., units]`, floating; with `axis`, the units are on the other axes.
    u: `[units]`, from the last call, and at first random: `jax.random.normal(key, [units])`;
      carries no gradient.
    num_steps: number of iterations.
    axis: axes of one unit's weights; by default all but the last. For the convolutions of Equinox and
      PyTorch, `[out, in, height, width]`, give `(1, 2, 3)`.

  Returns:
    The normalised kernel, in the shape and dtype of `kernel`, and the next `u`. `sigma` is never above the
    largest singular value, so the largest singular value of the result is never below 1. A zero kernel stays
    zero and does not change `u`.

  Example:
    >>> kernel = jnp.diag(jnp.array([2., 4.]))
    >>> spectral_norm(kernel, jnp.array([0.6, 0.8]), num_steps=20)[0]
    Array([[0.5, 0. ],
           [0. , 1. ]], dtype=float32)

  References:
    Miyato et al., `Spectral Normalization for Generative Adversarial Networks`, 2018, algorithm 1.
  """
  kernel, axes = check_kernel("", kernel, axis, "kernel")
  # Moves the inputs first, to a matrix [inputs, units].
  inputs = math.prod(kernel.shape[axis] for axis in axes)
  shape = inputs, math.prod(size for i, size in enumerate(kernel.shape) if i not in axes)
  u = check_floating(u, "u", shape=shape[1:])
  check_count(num_steps, "num_steps")
  if kernel.size == 0:
    return kernel, u

  def normalise(kernel: Array, u: Array) -> tuple[Array, Array]:
    wide = jnp.promote_types(kernel.dtype, jnp.float32)
    moved = jnp.moveaxis(kernel, axes, range(len(axes)))
    matrix = moved.reshape(shape).astype(wide)
    # Scale entries to at most 1, so that squares neither overflow nor vanish. The quotient does not change.
    matrix = matrix / _or_one(jax.lax.stop_gradient(jnp.abs(matrix).max()))
    fixed = jax.lax.stop_gradient(matrix)
    # Power iteration cannot leave a zero vector, so it then starts from the column with the largest entry.
    left = _unit(fixed[:, jnp.abs(fixed).max(axis=0).argmax()])
    right = placed_like(jax.lax.stop_gradient(u).astype(wide), fixed)
    _, left, right = jax.lax.fori_loop(0, num_steps, _iterate, (fixed, left, right))
    sigma = left @ (matrix @ right)
    normalised = (matrix / _or_one(sigma)).reshape(moved.shape).astype(kernel.dtype)
    return jnp.moveaxis(normalised, range(len(axes)), axes), right.astype(u.dtype)

  return partitioned(normalise, kernel, u, kept=(slice(None), slice(0)))


# The matrix is carried, so that the loop's body is one function, which calls outside of `jit` compile once.
def _iterate(_: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
  matrix, left, right = carry
  left = _unit(matrix @ right, otherwise=left)
  return matrix, left, _unit(matrix.T @ left, otherwise=right)


def _unit(x: Array, otherwise: Array | float = 0.0) -> Array:
  """The vector divided by its length; `otherwise` if the length is 0."""
  length = jnp.sqrt(jnp.square(x).sum())
  return jnp.where(length == 0, otherwise, x / _or_one(length))


def _or_one(x: Array) -> Array:
  return jnp.where(x > 0, x, 1)

"""Spectral normalisation: a kernel of largest singular value 1."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg.typing import Array, Key, check_count, check_floating, check_key


def spectral_norm(kernel: ArrayLike, u: ArrayLike, *, num_iters: int = 1) -> tuple[Array, Array]:
  r"""Divides a kernel by its largest singular value, as power iteration has it so far.

  .. math:: v \leftarrow \frac{W u}{\|W u\|}, \quad u \leftarrow \frac{W^\top v}{\|W^\top v\|}, \qquad
    \bar W = \frac{W}{\sigma}, \quad \sigma = v^\top W u

  with `W` the kernel as a matrix, `[inputs, units]`. Keep the returned `u` beside the parameters for the next
  step; one iteration is enough where the kernel changes little from step to step. At test time pass `u` and
  drop the one that is returned. The stored kernel stays as it is. For a convolution it is the norm of this
  matrix, not of the linear map.

  Args:
    kernel: `[..., units]`, floating.
    u: `[units]`, from `spectral_norm_init` or the last call; carries no gradient.
    num_iters: how many iterations.

  Returns:
    The normalised kernel, in the shape and dtype of `kernel`, and the next `u`. `sigma` is never above the
    largest singular value, so the result's is never below 1. A zero kernel stays zero
    and leaves `u` as it is.

  Raises:
    TypeError: if an array is not floating or `num_iters` not an integer.
    ValueError: if shapes do not fit or `num_iters` is below 1.

  Example:
    >>> kernel = jnp.diag(jnp.array([2., 4.]))
    >>> spectral_norm(kernel, jnp.array([0.6, 0.8]), num_iters=20)[0]
    Array([[0.5, 0. ],
           [0. , 1. ]], dtype=float32)

  References:
    Miyato et al., `Spectral Normalization for Generative Adversarial Networks`, 2018, algorithm 1.
  """
  kernel = _check(kernel)
  u = check_floating(u, "u", shape=kernel.shape[-1:])
  check_count(num_iters, "num_iters")
  wide = jnp.promote_types(kernel.dtype, jnp.float32)
  matrix = kernel.reshape(-1, kernel.shape[-1]).astype(wide)
  # Scaled to entries of at most 1, so that squares neither overflow nor vanish. The quotient is the same.
  matrix = matrix / _or_one(jax.lax.stop_gradient(jnp.abs(matrix).max()))
  fixed = jax.lax.stop_gradient(matrix)
  # From a vector of 0 no iteration comes back: then it begins with the column that has the largest entry.
  left, right = _unit(fixed[:, jnp.abs(fixed).max(axis=0).argmax()]), jax.lax.stop_gradient(u).astype(wide)
  for _ in range(num_iters):
    left = _unit(fixed @ right, otherwise=left)
    right = _unit(fixed.T @ left, otherwise=right)
  sigma = left @ (matrix @ right)
  return (matrix / _or_one(sigma)).reshape(kernel.shape).astype(kernel.dtype), right.astype(u.dtype)


def spectral_norm_init(key: Key, kernel: ArrayLike) -> Array:
  """A random unit vector `[units]` to start power iteration with, in the dtype of `kernel`.

  Raises:
    TypeError: if `kernel` is not floating or `key` not a typed key.
    ValueError: if `kernel` has no axis of inputs.

  Example:
    >>> u = spectral_norm_init(jax.random.key(0), jnp.ones((3, 2)))
    >>> (u @ u).round(5)
    Array(1., dtype=float32)

  References:
    Miyato et al., `Spectral Normalization for Generative Adversarial Networks`, 2018, algorithm 1.
  """
  kernel = _check(kernel)
  wide = jnp.promote_types(kernel.dtype, jnp.float32)
  return _unit(jax.random.normal(check_key(key), kernel.shape[-1:], wide)).astype(kernel.dtype)


def _check(kernel: ArrayLike) -> Array:
  kernel = check_floating(kernel, "kernel")
  if kernel.ndim < 2:
    raise ValueError(f"kernel must have shape [..., units] with an axis of inputs, got {kernel.shape}")
  return kernel


def _unit(x: Array, otherwise: Array | float = 0.0) -> Array:
  length = jnp.sqrt(jnp.square(x).sum())
  return jnp.where(length == 0, otherwise, x / _or_one(length))


def _or_one(x: Array) -> Array:
  return jnp.where(x > 0, x, 1)

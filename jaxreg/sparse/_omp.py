"""Orthogonal matching pursuit: greedy sparse codes with a hard bound on the number of non-zeros."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg.typing import Array, check_count, check_wide


def omp(dictionary: ArrayLike, x: ArrayLike, *, num_nonzero: int) -> Array:
  r"""Computes a code with at most `num_nonzero` entries, greedily, one atom after the other.

  .. math:: \min_h \|x - W h\|^2, \quad \|h\|_0 \le \text{num\_nonzero}

  Each step adds the atom with the largest :math:`|w_i^\top r| / \|w_i\|` that is not yet in the code, where
  `r` is the residual, and refits all atoms of the code by least squares. For orthogonal atoms this reaches
  the minimum, but `topk_code` is faster. For other atoms it is only good: with random atoms, about half of
  the codes can be improved. It stops before `num_nonzero` if nothing is left to explain.

  The lecture writes a strict bound, :math:`\|h\|_0 < k`; this is `num_nonzero = k - 1`.

  Args:
    dictionary: `W`, `[inputs, atoms]`, floating; atoms may have any length; an atom of length 0 is not used.
    x: `[inputs]`, floating; `jax.vmap` for several.
    num_nonzero: at most the number of inputs and the number of atoms.

  Returns:
    `[atoms]`, float32 or wider. Its gradient is the gradient of the least squares fit with fixed atoms.

  Raises:
    TypeError: if an array is not floating or `num_nonzero` not an integer.
    ValueError: if shapes do not fit, or `num_nonzero` is below 1 or too large.

  Example:
    >>> dictionary = jnp.array([[1.0, 0.0, 3.0], [0.0, 1.0, 4.0]])
    >>> omp(dictionary, jnp.array([6.0, 8.0]), num_nonzero=1)
    Array([0., 0., 2.], dtype=float32)

  References:
    Pati, Rezaiifar and Krishnaprasad, `Orthogonal matching pursuit`, 1993.
    Na, `Regularization for Deep Learning`, lecture, Chonbuk National University, sparse representations.
  """
  dictionary, x = check_wide(dictionary, "dictionary"), check_wide(x, "x")
  if dictionary.ndim != 2 or x.shape != dictionary.shape[:1]:
    raise ValueError(
      f"x must be [inputs] for dictionary [inputs, atoms], got {x.shape} for {dictionary.shape}"
    )
  check_count(num_nonzero, "num_nonzero")
  if num_nonzero > min(dictionary.shape):
    raise ValueError(
      f"num_nonzero must be at most the inputs and the atoms, {dictionary.shape}, got {num_nonzero}"
    )
  dtype = jnp.promote_types(dictionary.dtype, x.dtype)
  W, x = dictionary.astype(dtype), x.astype(dtype)
  length = jnp.sqrt(jax.lax.stop_gradient(jnp.square(W).sum(axis=0)))
  # A residual at the level of rounding explains nothing.
  floor = 10 * jnp.finfo(dtype).eps * jnp.sqrt(jax.lax.stop_gradient(jnp.square(x).sum()))

  def add(i: int, carry: tuple[Array, ...]) -> tuple[Array, ...]:
    """Writes the next atom's part orthogonal to the others into column `i` of `W[:, atoms] = Q R`."""
    Q, R, atoms, free, residual = carry
    score = jnp.where(free, jnp.abs(W.T @ residual) / jnp.where(length > 0, length, 1), 0)
    best = jnp.argmax(jax.lax.stop_gradient(score)).astype(jnp.int32)
    used = score[best] > floor
    w = jnp.where(used, W[:, best], 0)
    # Twice: for nearly parallel atoms, one pass leaves a part due to rounding. The second pass subtracts from
    # what the first left, because `first + second` rounds to `first`.
    first = Q.T @ w
    apart = w - Q @ first
    second = Q.T @ apart
    apart = apart - Q @ second
    norm = jnp.sqrt(jnp.where(used, jnp.square(apart).sum(), 1))
    q = apart / norm
    Q, R = Q.at[:, i].set(q), R.at[:, i].set((first + second).at[i].set(norm))
    return Q, R, atoms.at[i].set(best), free.at[best].set(False), residual - q * (q @ residual)

  n, (inputs, num_atoms) = num_nonzero, W.shape
  start = (
    jnp.zeros((inputs, n), dtype),
    jnp.zeros((n, n), dtype),
    jnp.zeros(n, jnp.int32),
    jnp.ones(num_atoms, bool),
    x,
  )
  Q, R, atoms, *_ = jax.lax.fori_loop(0, n, add, start)
  values = jax.scipy.linalg.solve_triangular(R, Q.T @ x)
  return jnp.zeros(num_atoms, dtype).at[atoms].add(values)

"""Sparse codes of a dictionary, with a hard bound on the number of non-zeros."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_count, check_wide
from jaxreg.typing import Array


def omp(dictionary: ArrayLike, x: ArrayLike, *, num_nonzero: int) -> Array:
  r"""Computes a code with at most `num_nonzero` entries, greedily, one atom after the other.

  .. math:: \min_h \|x - W h\|^2, \quad \|h\|_0 \le \mathrm{num\_nonzero}

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
    TypeError: for arrays that are not floating.
    ValueError: for shapes that do not fit, or a `num_nonzero` out of range.

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
    # Twice: for nearly parallel atoms, one pass leaves a part due to rounding. The second pass starts from
    # what the first left: `w - Q @ (first + second)` would round as the first did.
    first = Q.T @ w
    rest = w - Q @ first
    second = Q.T @ rest
    apart = rest - Q @ second
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


def topk_code(dictionary: ArrayLike, x: ArrayLike, *, num_nonzero: int, strict: bool = False) -> Array:
  r"""Computes the best code with at most `num_nonzero` entries, for orthogonal atoms.

  .. math:: \arg\min_{\|h\|_0 \le \mathrm{num\_nonzero}} \|x - W h\|^2, \qquad
    h_i = \frac{w_i^\top x}{\|w_i\|^2} \text{ for the largest } \frac{|w_i^\top x|}{\|w_i\|}

  The code is exact if the columns of `W` are orthogonal, of any length; for orthonormal columns it keeps the
  largest entries of :math:`W^\top x`. Orthogonality is not checked: for other dictionaries use `omp`. Among
  equal entries the first ones are kept.

  Args:
    dictionary: `W`, `[inputs, atoms]`, floating; an atom of length 0 has the coefficient 0.
    x: `[..., inputs]`, floating.
    num_nonzero: at most the number of atoms.
    strict: whether to use the lecture's bound, :math:`\|h\|_0 < \mathrm{num\_nonzero}`: one entry fewer.

  Returns:
    `[..., atoms]`, float32 or wider.

  Raises:
    TypeError: for arrays that are not floating.
    ValueError: for shapes that do not fit, or a `num_nonzero` out of range.

  Example:
    >>> topk_code(jnp.eye(3), jnp.array([1.0, -3.0, 2.0]), num_nonzero=2)
    Array([ 0., -3.,  2.], dtype=float32)
    >>> topk_code(jnp.eye(3), jnp.array([1.0, -3.0, 2.0]), num_nonzero=2, strict=True)
    Array([ 0., -3.,  0.], dtype=float32)

  References:
    Na, `Regularization for Deep Learning`, lecture, Chonbuk National University, sparse representations.
  """
  dictionary, x = check_wide(dictionary, "dictionary"), check_wide(x, "x")
  if dictionary.ndim != 2 or x.ndim == 0 or x.shape[-1] != dictionary.shape[0]:
    raise ValueError(
      f"x must be [..., inputs] for dictionary [inputs, atoms], got {x.shape} for {dictionary.shape}"
    )
  check_count(num_nonzero, "num_nonzero")
  num_atoms = dictionary.shape[1]
  if num_nonzero > num_atoms:
    raise ValueError(f"num_nonzero must be at most the number of atoms, {num_atoms}, got {num_nonzero}")
  square = jnp.square(dictionary).sum(axis=0)
  square = jnp.where(square > 0, square, 1)
  products = x @ dictionary
  scale = lambda v: jnp.broadcast_to(v, products.shape)
  score = jax.lax.stop_gradient(jnp.abs(products) / scale(jnp.sqrt(square)))
  _, kept = jax.lax.top_k(score, num_nonzero - 1 if strict else num_nonzero)
  mask = (kept[..., None] == jnp.arange(num_atoms).reshape(*[1] * kept.ndim, -1)).any(axis=-2)
  return jnp.where(mask, products / scale(square), 0)

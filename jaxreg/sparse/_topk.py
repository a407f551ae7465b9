"""The sparse code for a dictionary of orthogonal atoms: the largest coefficients."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg.typing import Array, check_count, check_wide


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
    TypeError: if an array is not floating or `num_nonzero` not an integer.
    ValueError: if shapes do not fit, or `num_nonzero` is below 1 or too large.

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

"""Products with the inverse of a damped curvature, by conjugate gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.sparse.linalg import cg
from jax.typing import ArrayLike

from jaxreg.flatness._common import analysis, as_pytree
from jaxreg.flatness._streamed import Streamed
from jaxreg.flatness._subset import check_no_tree
from jaxreg.typing import Array, check_count, check_range, check_wide


class Solution(NamedTuple):
  """The solution of a linear system.

  Attributes:
    x: `[size]`.
    residual: the norm of what is left, relative to that of the right side.
    converged: whether it is at most twice the tolerance, which leaves room for rounding.
  """

  x: Array
  residual: Array
  converged: Array


@analysis
def damped_solve(
  matvec: Callable[[Array], Array],
  vector: ArrayLike,
  *,
  damping: float,
  tol: float = 1e-5,
  max_products: int = 100,
) -> Solution:
  r"""Solves :math:`(A + \lambda I) x = b` by conjugate gradients.

  Args:
    matvec: `[size] -> [size]`, symmetric, with eigenvalues above `-damping`: a `Curvature`, the result of
      `gauss_newton` or `fisher`, or any function. A Hessian may need more damping than its least eigenvalue.
    vector: `b`, `[size]`.
    damping: :math:`\lambda`, at least 0.
    tol: tolerance of the relative residual.
    max_products: the most iterations.

  Returns:
    `Solution`.

  Raises:
    TypeError: if `vector` is not floating, or `max_products` no integer.
    ValueError: if `vector` is no vector, or a number is out of range.

  Example:
    >>> found = damped_solve(lambda v: jnp.array([1.0, 3.0]) * v, jnp.ones(2), damping=1.0)
    >>> found.x.round(4), bool(found.converged)
    (Array([0.5 , 0.25], dtype=float32), True)

  References:
    Martens, `Deep Learning via Hessian-free Optimization`, 2010.
  """
  check_no_tree(vector, "vector", "[size]", "flat")
  vector = check_wide(vector, "vector")
  if vector.ndim != 1:
    raise ValueError(f"vector must be [size], got {vector.shape}")
  check_range(damping, "damping", low=0)
  check_range(tol, "tol", low=0, open_low=True)
  check_count(max_products, "max_products")
  if isinstance(matvec, Streamed):
    x, left = _on_host(matvec, vector, damping, tol, max_products)
  else:
    x, left = _solve(as_pytree(matvec), vector, damping, tol, max_products)
  residual = jnp.linalg.norm(left) / jnp.maximum(jnp.linalg.norm(vector), jnp.finfo(vector.dtype).tiny)
  return Solution(x, residual, residual <= 2 * tol)


@jax.jit
def _solve(matvec, vector, damping, tol, max_products):
  damped = lambda v: matvec(v) + damping * v
  x = cg(damped, vector, tol=tol, maxiter=max_products)[0]
  return x, vector - damped(x)


def _on_host(matvec, vector, damping, tol, max_products):
  # JAX's own cg traces its products.
  from scipy.sparse.linalg import LinearOperator, cg

  def damped(v):
    v = jnp.asarray(v, vector.dtype).reshape(-1)
    return matvec(v) + damping * v

  product = lambda v: np.asarray(damped(v))
  operator = LinearOperator((vector.size,) * 2, matvec=product, dtype=vector.dtype)  # type: ignore
  x = jnp.asarray(cg(operator, np.asarray(vector), rtol=tol, maxiter=max_products)[0], vector.dtype)
  return x, vector - damped(x)

"""Gradient descent in a given metric: preconditioning, Newton, natural gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.core import Tracer
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import cho_factor, cho_solve

from jaxreg._checks import check_range, check_wide
from jaxreg._leaves import wide
from jaxreg._sharding import partitioned
from jaxreg.optim._masked import part
from jaxreg.optim._trust_region import as_updates, with_learning_rate
from jaxreg.typing import Array

# `(updates, params, **extra_args) -> M(params)^-1 updates`.
Solve = Callable[..., Any]


def mahalanobis(
  learning_rate: optax.ScalarOrSchedule,
  *,
  dense: Any = None,
  diagonal: Any = None,
  solve: Solve | None = None,
) -> optax.GradientTransformationExtraArgs:
  r"""Builds gradient descent in a metric, given in one of three forms.

  .. math:: \Delta = -\alpha M^{-1} g
    = \arg\min_\Delta \langle g, \Delta \rangle + \frac{1}{2 \alpha} \Delta^\top M \Delta

  The lecture prints the penalty without the square; that problem has no minimiser of this form. With the
  Hessian as `M` this is Newton's method, with the Fisher matrix the natural gradient; `path_sgd` has a
  diagonal. Gradient descent in `y`, where `x = A y`, has `M^-1 = A A^T`.

  Args:
    learning_rate: `alpha`, a number or an Optax schedule.
    dense: `[size, size]`, symmetric and positive definite, over all parameters in the order of
      `jax.flatten_util.ravel_pytree`; or a tree of such matrices, one for each leaf.
    diagonal: a tree like the parameters, or a number, above 0; entries where it is 0 do not move.
    solve: `(updates, params, **extra_args) -> updates`, the product with the inverse of a metric that depends
      on the parameters or is too large to store.

  Raises:
    ValueError: for none or several forms, or a known matrix that is not positive definite.

  Example:
    Newton's method on a quadratic arrives in one step:

    >>> hessian, w = jnp.array([[4.0, 2.0], [2.0, 5.0]]), jnp.array([3.0, -1.0])
    >>> tx = mahalanobis(1.0, dense=hessian)
    >>> w + tx.update(hessian @ w, tx.init(w), w)[0]
    Array([0., 0.], dtype=float32)

    Natural gradient, with the Fisher matrix at the parameters, here of a mean with a learned precision:

    >>> fisher = lambda params: {"mean": params["precision"], "precision": 0.5 / params["precision"] ** 2}
    >>> natural = lambda g, params: jax.tree.map(lambda g, f: g / f, g, fisher(params))
    >>> tx, params = mahalanobis(0.5, solve=natural), {"mean": jnp.ones(()), "precision": jnp.array(2.0)}
    >>> tx.update(params, tx.init(params), params)[0]
    {'mean': Array(-0.25, dtype=float32), 'precision': Array(-8., dtype=float32)}

  References:
    Amari, `Natural Gradient Works Efficiently in Learning`, 1998.
    Lecture 8 of Deep Learning (BEV033DLE), Czech Technical University in Prague, Proximal Problem.
  """
  forms = {"dense": dense, "diagonal": diagonal, "solve": solve}
  forms_passed = [name for name, form in forms.items() if form is not None]
  if len(forms_passed) != 1:
    raise ValueError(
      f"one of dense, diagonal and solve must be given, got {', '.join(forms_passed) or 'none'}"
    )
  if solve is None:
    apply = _dense(dense) if diagonal is None else _diagonal(diagonal)
  elif not callable(solve):
    raise TypeError(f"solve must be a function (updates, params) -> updates, got {type(solve).__name__}")
  else:
    apply = solve

  def update(updates, state, params=None, **extra_args):
    return as_updates(apply(jax.tree.map(wide, updates), params, **extra_args), updates), state

  direction = optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)
  return with_learning_rate(direction, learning_rate)


def _dense(dense: Any) -> Solve:
  if jax.tree_util.all_leaves([dense]):
    factor = _factor(dense)

    def on_flat(updates: Any, factor: Array) -> Any:
      flat, unravel = ravel_pytree(updates)
      return unravel(_solve(factor, flat))

    def on_all(updates: Any, params: Any, **extra_args: Any) -> Any:
      del params, extra_args
      return partitioned(on_flat, updates, factor, like=updates)

    return on_all
  factors = jax.tree.map(_factor, dense)

  def by_leaf(updates: Any, params: Any, **extra_args: Any) -> Any:
    def on_flat(g, factor):
      return _solve(factor, g.reshape(-1)).reshape(g.shape)

    def solved(g, factor):
      return partitioned(on_flat, g, factor)

    return jax.tree.map(solved, updates, part(factors, updates))

  return by_leaf


def _factor(matrix: Any) -> Array:
  matrix = check_wide(matrix, "dense")
  if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
    raise ValueError(f"dense must be square, got shape {matrix.shape}")
  factor = cho_factor(matrix, lower=True)[0]
  if not isinstance(factor, Tracer):
    asymmetry = np.abs(np.asarray(matrix - matrix.T)).max(initial=0)
    close = asymmetry <= 1e-4 * np.abs(np.asarray(matrix)).max(initial=0)
    if not (np.isfinite(np.asarray(factor)).all() and close):
      raise ValueError("dense must be symmetric and positive definite, got a matrix that is not")
  return factor


def _solve(factor: Array, flat: Array) -> Array:
  if flat.shape != factor.shape[:1]:
    raise ValueError(f"dense must be [{flat.size}, {flat.size}] for these parameters, got {factor.shape}")
  return cho_solve((factor, True), flat)


def _diagonal(diagonal: Any) -> Solve:
  for entry in jax.tree.leaves(diagonal):
    check_range(entry, "diagonal", low=0)

  def divide(updates: Any, params: Any, **extra_args: Any) -> Any:
    number = jax.tree_util.all_leaves([diagonal]) and jnp.ndim(diagonal) == 0
    entries = jax.tree.map(lambda _: diagonal, updates) if number else part(diagonal, updates)
    return jax.tree.map(quotient, updates, entries)

  return divide


def quotient(g: Array, by: Any) -> Array:
  """Computes `g / by`; entries where the metric `by` is 0 do not move, and NaN in it gives NaN."""
  by = jnp.asarray(by, g.dtype)
  return jnp.where(by <= 0, 0, g / jnp.where(by <= 0, 1, by))

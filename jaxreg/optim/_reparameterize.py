"""An optimizer in other coordinates."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.core import Tracer
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import lu_factor, lu_solve
from jax.typing import ArrayLike

from jaxreg._checks import check_wide
from jaxreg._leaves import wide
from jaxreg._sharding import partitioned
from jaxreg.optim._trust_region import as_updates, check_transform
from jaxreg.typing import Array, Params

Map = Callable[[Params], Params]


def reparameterize(
  inner: optax.GradientTransformation, forward: ArrayLike | Map, inverse: Map | None = None
) -> optax.GradientTransformationExtraArgs:
  r"""Runs an optimizer in the coordinates `y` of the parameters `x = phi(y)`.

  .. math:: g_y = J_\varphi(y)^\top g_x, \qquad x \leftarrow \varphi(y + \Delta_y), \qquad
    x \leftarrow x - \alpha A A^\top g_x \text{ for } x = A y \text{ and gradient descent}

  An orthogonal `A` does not change gradient descent. Optimizers that are not linear in the gradient, such as
  Adam or sign descent, become other methods, which no matrix describes.

  Args:
    inner: the optimizer in `y`. It sees `y` as its parameters.
    forward: `A`, `[size, size]` over all parameters in the order of `jax.flatten_util.ravel_pytree`, which
      must be invertible; or a function `y -> x`, differentiable, between trees of the same structure.
    inverse: `x -> y`, the inverse of a function `forward`. Without it, `forward` must be linear up to a
      constant, and `inner` must not need parameters.

  Raises:
    ValueError: for a matrix that is known to be singular, or a missing `inverse`.

  Example:
    With y = 2x gradient descent takes a quarter of the step:

    >>> tx = reparameterize(optax.sgd(1.0), lambda y: y / 2)
    >>> tx.update(jnp.array([4.0]), tx.init(jnp.zeros(1)))[0]
    Array([-1.], dtype=float32)

  References:
    Lecture 8 of Deep Learning (BEV033DLE), Czech Technical University in Prague, Gradient Descent under
    Reparameterization.
  """
  check_transform(inner)
  tx = optax.with_extra_args_support(inner)
  linear = inverse is None
  if not callable(forward):
    if inverse is not None:
      raise ValueError("inverse must be None when forward is a matrix, which is inverted here")
    forward, inverse = linear_maps(_matrix(forward))
    linear = True

  def init(params: Params) -> optax.OptState:
    y = jax.tree.map(wide, params)
    return tx.init(y if inverse is None else inverse(y))

  def update(updates, state, params=None, **extra_args):
    gradient = jax.tree.map(wide, updates)
    y = None
    if params is not None and inverse is not None:
      y = inverse(jax.tree.map(wide, params))
    if linear:
      pulled = _transposed(forward, gradient)
      steps, state = tx.update(pulled, state, y, **extra_args)
      # Not forward(steps), which would add the constant of an affine map at every step.
      new = jax.jvp(forward, (jax.tree.map(jnp.zeros_like, steps),), (steps,))[1]
    else:
      if y is None:
        raise ValueError("params must be given to update when forward is not linear, got None")
      x, pull = jax.vjp(forward, y)
      steps, state = tx.update(pull(gradient)[0], state, y, **extra_args)
      moved = forward(jax.tree.map(jnp.add, y, steps))
      # Not the difference to params: a step of 0 must stay 0, although the inverse rounds.
      new = jax.tree.map(jnp.subtract, moved, x)
    return as_updates(new, updates), state

  return optax.GradientTransformationExtraArgs(init, update)


def linear_maps(matrix: Array) -> tuple[Map, Map]:
  """Builds `y -> A y` over all parameters at once, and its inverse."""
  inverse = functools.partial(_on_flat, lu_solve, lu_factor(matrix))
  return functools.partial(_on_flat, jnp.matmul, matrix), inverse


def _on_flat(function: Callable[[Any, Array], Array], factors: Any, tree: Params) -> Params:
  def run(tree: Params, factors: Any) -> Params:
    flat, unravel = ravel_pytree(tree)
    return unravel(function(factors, flat).astype(flat.dtype))

  return partitioned(run, tree, factors, like=tree)


def _transposed(forward: Map, gradient: Params) -> Params:
  try:
    return jax.linear_transpose(forward, gradient)(gradient)[0]
  except (NotImplementedError, ValueError, AssertionError) as error:
    raise ValueError("forward must be linear when no inverse is given") from error


def _matrix(matrix: Any) -> Array:
  if isinstance(matrix, str | dict):
    raise TypeError(f"forward must be a matrix or a function, got {type(matrix).__name__}")
  matrix = check_wide(matrix, "forward")
  if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
    raise ValueError(f"forward must be square, got shape {matrix.shape}")
  if not isinstance(matrix, Tracer) and np.linalg.matrix_rank(np.asarray(matrix, np.float64)) < len(matrix):
    raise ValueError("forward must be invertible, got a singular matrix")
  return matrix

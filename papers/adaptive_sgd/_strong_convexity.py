"""The constants of strongly convex functions at a point: of the PL inequality and of two more properties."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg import flatness
from jaxreg._checks import check_wide
from jaxreg.typing import Array, Batch, LossFn, Params


class LandscapeConstants(NamedTuple):
  """The result of `landscape_constants`."""

  pl: Array
  error_bound: Array
  monotonicity: Array


def pl_ratio(loss_fn: LossFn, params: Params, batch: Batch, *, minimum: ArrayLike = 0.0) -> Array:
  r"""Computes half the squared gradient divided by the excess loss: at least `mu` under the PL inequality.

  .. math:: \frac{\tfrac12 \|\nabla f(x)\|^2}{f(x) - f^*} \ge \mu

  If `mu > 0`, all stationary points of the function are minima. The lecture's constant, without the half, is
  twice this one. For a quadratic it lies between the smallest and the largest eigenvalue.

  Args:
    loss_fn, params, batch: as in `flatness.hvp`; the loss is called with `key=None`.
    minimum: `f*`; the ratio is infinite at the minimum.

  Example:
    >>> pl_ratio(lambda x, batch, *, key: 0.5 * (batch * x**2).sum(), jnp.ones(2), jnp.array([1.0, 3.0]))
    Array(2.5, dtype=float32)

  References:
    Polyak, `Gradient methods for minimizing functionals`, 1963.
    Karimi, Nutini and Schmidt, `Linear Convergence of Gradient and Proximal-Gradient Methods Under the
    Polyak-Lojasiewicz Condition`, 2016.
    Lecture 8 of Deep Learning (BEV033DLE, CTU Prague), Differences of Convex vs. Non-Convex.
  """
  _, value, gradient = _value_and_gradient(loss_fn, params, batch)
  return _ratio(0.5 * jnp.square(gradient).sum(), value - minimum)


def landscape_constants(
  loss_fn: LossFn, params: Params, batch: Batch, *, minimiser: Params
) -> LandscapeConstants:
  r"""Computes the constants of the lecture's three properties of a strongly convex function at a point.

  .. math:: \tfrac12 \|\nabla f\|^2 \ge \mu_1 (f - f^*), \qquad \|\nabla f\| \ge \mu_2 \|x - x^*\|, \qquad
    \langle -\nabla f, x^* - x \rangle \ge f - f^* + \mu_3 \|x - x^*\|^2

  Each is the largest constant for which its inequality holds at this point; the smallest over many points
  (`vmap`) bounds the constant of the function. A negative constant means that the property fails. For a
  quadratic they are at least the smallest eigenvalue, the same, and half of it.

  Args:
    loss_fn, params, batch: as in `pl_ratio`.
    minimiser: `x*`, a tree like `params`.

  Returns:
    A NamedTuple of the three scalars: `pl` of the Polyak-Lojasiewicz inequality; `error_bound`, by which the
    gradient bounds the distance to the minimiser; `monotonicity`. They are infinite at the minimiser.

  Example:
    >>> loss = lambda x, batch, *, key: 0.5 * (batch * x**2).sum()
    >>> x, h, star = jnp.array([1.0, 0.0]), jnp.array([1.0, 4.0]), jnp.zeros(2)
    >>> constants = landscape_constants(loss, x, h, minimiser=star)
    >>> [float(constant) for constant in constants]
    [1.0, 1.0, 0.5]

  References:
    Karimi, Nutini and Schmidt, 2016, and the lecture, as in `pl_ratio`.
  """
  x, value, gradient = _value_and_gradient(loss_fn, params, batch)
  star, least, _ = _value_and_gradient(loss_fn, minimiser, batch)
  excess, offset = value - least, x - star
  squares, distance = jnp.square(gradient).sum(), jnp.square(offset).sum()
  return LandscapeConstants(
    _ratio(0.5 * squares, excess),
    jnp.sqrt(_ratio(squares, distance)),
    _ratio(gradient @ offset - excess, distance),
  )


def _value_and_gradient(loss_fn: LossFn, params: Params, batch: Batch) -> tuple[Array, Array, Array]:
  """Returns the flat parameters, the loss and its gradient, in at least float32."""
  part = flatness.subset(params)

  def loss(flat: Array) -> Array:
    return loss_fn(part.merge(flat), batch, key=None)

  value, gradient = jax.value_and_grad(loss)(part.flat)
  return check_wide(part.flat, "params"), check_wide(value, "loss"), check_wide(gradient, "params")


def _ratio(x: Array, y: Array) -> Array:
  return jnp.where(y == 0, jnp.inf, x / jnp.where(y == 0, 1, y))

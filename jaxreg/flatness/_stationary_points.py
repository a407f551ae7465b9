"""The index of stationary points, and the constants of strongly convex functions at a point."""

from __future__ import annotations

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_choice, check_range, check_wide
from jaxreg.flatness._common import analysis
from jaxreg.flatness._eigen import quadrature
from jaxreg.flatness._operators import hvp
from jaxreg.flatness._subset import flat_loss, selected, subset
from jaxreg.typing import Array, Batch, Key, LossFn, Mask, Params


class HessianIndex(NamedTuple):
  """The result of `hessian_index`."""

  negative: Array
  zero: Array
  standard_error: Array


class LandscapeConstants(NamedTuple):
  """The result of `landscape_constants`."""

  pl: Array
  error_bound: Array
  monotonicity: Array


@analysis
def hessian_index(
  loss_fn: LossFn,
  params: Params,
  batch: Batch,
  *,
  mask: Mask = "*",
  tol: float = 1e-6,
  method: Literal["dense", "lanczos"] = "dense",
  key: Key | None = None,
  num_samples: int = 8,
  num_steps: int | None = None,
) -> HessianIndex:
  r"""Computes the fraction of negative eigenvalues of the Hessian.

  .. math:: \alpha = \frac1n \#\{i : \lambda_i(H) < -\tau \max_j |\lambda_j|\}, \qquad
    f(x + \Delta) \approx f(x) + J \Delta + \tfrac12 \Delta^\top H \Delta

  The lecture prints the last term without the half.

  Args:
    loss_fn, params, batch, mask: as in `hvp`; the loss is called with `key=None`.
    tol: `tau`, at least 0, relative to the largest absolute eigenvalue.
    method: `dense`, all eigenvalues; or `lanczos`, the mass of the spectral density by random probes.
    key, num_samples: of the probes of `lanczos`, at least 2.
    num_steps: products per probe; by default 64, or the size if that is smaller.

  Returns:
    A NamedTuple of fractions: `negative`, the index: 0 at a minimum, 1 at a maximum, in between at a saddle;
    `zero`, within the tolerance of 0, from symmetries, dead units, or more parameters than data;
    `standard_error` of `negative`, 0 if it is exact. NaN if the Hessian is not finite.

  Example:
    >>> saddle = lambda x, batch, *, key: x[0] ** 2 - x[1] ** 2 + 2 * x[2] ** 2
    >>> hessian_index(saddle, jnp.zeros(3), None).negative
    Array(0.33333334, dtype=float32)

  References:
    Dauphin et al., `Identifying and attacking the saddle point problem in high-dimensional non-convex
    optimization`, 2014.
    Pennington and Bahri, `Geometry of Neural Network Loss Surfaces via Random Matrix Theory`, 2017.
    Lecture 8 of Deep Learning (BEV033DLE, CTU Prague), Stationary Points in High Dimensions.
  """
  check_range(tol, "tol", low=0)
  check_choice(method, "method", ("dense", "lanczos"))
  operator = hvp(loss_fn, params, batch, mask=mask)
  if method == "dense":
    values = jnp.linalg.eigvalsh(operator.matrix())
    negative, zero = _counts(values, tol, jnp.full(values.shape, 1 / values.size, values.dtype))
    return HessianIndex(negative, zero, 0 * negative)  # the error is 0, or NaN if `negative` is
  if key is None:
    raise TypeError("key must be given with method='lanczos', got None")
  like = operator.like
  steps = min(64, like.size) if num_steps is None else num_steps
  nodes, weights, _ = quadrature(num_samples, steps, operator, like, key)
  largest = jnp.abs(nodes).max()
  negative, zero = jax.vmap(lambda values, weights: _counts(values, tol, weights, largest))(nodes, weights)
  return HessianIndex(negative.mean(), zero.mean(), negative.std(ddof=1) / num_samples**0.5)


def pl_ratio(loss_fn: LossFn, params: Params, batch: Batch, *, minimum: ArrayLike = 0.0) -> Array:
  r"""Computes half the squared gradient over the excess loss: at least `mu` under the PL inequality.

  .. math:: \frac{\tfrac12 \|\nabla f(x)\|^2}{f(x) - f^*} \ge \mu

  If `mu > 0`, all stationary points of the function are minima. The lecture's constant, without the half, is
  twice this one. For a quadratic it lies between the smallest and the largest eigenvalue.

  Args:
    loss_fn, params, batch: as in `hvp`; the loss is called with `key=None`.
    minimum: `f*`, where the ratio is infinite.

  Example:
    >>> pl_ratio(lambda x, batch, *, key: 0.5 * (batch * x**2).sum(), jnp.ones(2), jnp.array([1.0, 3.0]))
    Array(2.5, dtype=float32)

  References:
    Polyak, `Gradient methods for minimizing functionals`, 1963.
    Karimi, Nutini and Schmidt, `Linear Convergence of Gradient and Proximal-Gradient Methods Under the
    Polyak-Lojasiewicz Condition`, 2016.
    Lecture 8 of Deep Learning (BEV033DLE, CTU Prague), Differences of Convex vs. Non-Convex.
  """
  flat, loss = flat_loss(loss_fn, params, selected(params, "*"), batch, None)
  value, gradient = jax.value_and_grad(loss)(flat)
  left = check_wide(value, "loss") - minimum
  return _over(0.5 * jnp.square(check_wide(gradient, "params")).sum(), left)


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
    >>> found = landscape_constants(loss, x, h, minimiser=star)
    >>> [float(constant) for constant in found]
    [1.0, 1.0, 0.5]

  References:
    Karimi, Nutini and Schmidt, 2016, and the lecture, as in `pl_ratio`.
  """
  x, loss = flat_loss(loss_fn, params, selected(params, "*"), batch, None)
  star = subset(minimiser).flat
  value, gradient = jax.value_and_grad(loss)(x)
  value, gradient = check_wide(value, "loss"), check_wide(gradient, "params")
  left, away = value - loss(star), check_wide(x, "params") - check_wide(star, "minimiser")
  squares, distance = jnp.square(gradient).sum(), jnp.square(away).sum()
  return LandscapeConstants(
    _over(0.5 * squares, left),
    jnp.sqrt(_over(squares, distance)),
    _over(gradient @ away - left, distance),
  )


def _over(x: Array, by: Array) -> Array:
  return jnp.where(by == 0, jnp.inf, x / jnp.where(by == 0, 1, by))


def _counts(values: Array, tol: float, weights: Array, largest: Array | None = None) -> tuple[Array, Array]:
  largest = jnp.abs(values).max() if largest is None else largest
  bound = tol * largest
  share = lambda chosen: jnp.where(jnp.isfinite(largest), jnp.where(chosen, weights, 0).sum(), jnp.nan)
  # Every comparison with NaN is false: NaN would count as positive, and a NaN Hessian as a minimum.
  return share(values < -bound), share(jnp.abs(values) <= bound)

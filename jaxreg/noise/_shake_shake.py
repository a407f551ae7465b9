"""Shake-shake and ShakeDrop: branches scaled by one random number forward and another backward."""

from __future__ import annotations

import functools
from typing import Literal

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_batched, check_choice, check_ends, check_floating, check_key, check_option
from jaxreg._sharding import drawn_like
from jaxreg.typing import Array, Key


def shake_shake(
  key: Key | None,
  x1: ArrayLike,
  x2: ArrayLike,
  *,
  forward: Literal["shake", "even"] = "shake",
  backward: Literal["shake", "even", "keep"] = "shake",
  per_example: bool = True,
) -> Array:
  r"""Mixes two residual branches at random, and their gradients by another draw.

  .. math:: y = \alpha x_1 + (1 - \alpha) x_2, \qquad \frac{\partial}{\partial x_1} := \beta, \quad
    \frac{\partial}{\partial x_2} := 1 - \beta, \qquad \alpha, \beta \sim \mathrm{U}(0, 1)

  At test time the result is `(x1 + x2) / 2`. In both modes of differentiation the derivative is the stated
  one, not the derivative of `y`, except with `backward="keep"`, where `beta = alpha`.

  Args:
    key: one draw for the whole batch; None for no noise, the mean of both branches.
    x1: `[batch, ...]`, floating.
    x2: the other branch, same shape and dtype.
    forward: whether `alpha` is drawn or is 1/2.
    backward: whether `beta` is drawn, is 1/2, or is `alpha`.
    per_example: whether each example has its own `alpha` and `beta`, or the batch shares them.

  Returns:
    An array of the shape and dtype of `x1`.

  Example:
    >>> shake_shake(jax.random.key(0), jnp.ones((3, 1)), jnp.zeros((3, 1))).round(1)
    Array([[0.8],
           [0.2],
           [0.2]], dtype=float32)
    >>> jax.grad(lambda x: shake_shake(jax.random.key(0), x, x, forward="even").sum())(jnp.ones((1, 2)))
    Array([[1., 1.]], dtype=float32)

  References:
    Gastaldi, `Shake-Shake regularization`, 2017, section 1.
  """
  x1 = check_batched(x1, "x1")
  x2 = check_floating(x2, "x2", shape=x1.shape)
  if x1.dtype != x2.dtype:
    raise TypeError(f"x2 must have the dtype of x1, got {x2.dtype} and {x1.dtype}")
  check_choice(forward, "forward", ("shake", "even"))
  check_choice(backward, "backward", ("shake", "even", "keep"))
  shape, wide = _coefficients(x1, per_example), jnp.promote_types(x1.dtype, jnp.float32)
  if key is None:
    return ((x1.astype(wide) + x2) / 2).astype(x1.dtype)
  keys = jax.random.split(check_key(key))
  half = jnp.full(shape, 0.5, wide)
  uniform = functools.partial(drawn_like, x1, jax.random.uniform, shape=shape, dtype=wide)
  alpha = uniform(keys[0]) if forward == "shake" else half
  beta = {"keep": alpha, "even": half}.get(backward)
  if beta is None:
    beta = uniform(keys[1])
  mixed = _scaled(x1.astype(wide), alpha, beta) + _scaled(x2.astype(wide), 1 - alpha, 1 - beta)
  return mixed.astype(x1.dtype)


def shake_drop(
  key: Key | None,
  x: ArrayLike,
  *,
  rate: ArrayLike,
  forward: tuple[float, float] = (-1.0, 1.0),
  backward: tuple[float, float] = (0.0, 1.0),
  per_example: bool = True,
) -> Array:
  r"""Disturbs a residual branch with probability `rate`, forward by one number and backward by another.

  .. math:: y = (b + (1 - b) \alpha)\, x, \qquad \frac{\partial}{\partial x} := b + (1 - b) \beta, \qquad
    b \sim \mathrm{Ber}(1 - \text{rate}), \ \alpha \sim \mathrm{U}, \ \beta \sim \mathrm{U}

  At test time multiply the branch by the mean factor, `1 - rate + rate * mean(alpha)`; with the default range
  this is `1 - rate`. The paper's rates grow linearly with depth.

  Args:
    key, per_example: as in `stochastic_depth`.
    x: the output of a residual branch, `[batch, ...]`, floating.
    rate: probability of disturbing the branch, in [0, 1]; may be traced.
    forward: range of `alpha`.
    backward: range of `beta`.

  Example:
    >>> shake_drop(jax.random.key(1), jnp.ones((4, 1)), rate=0.5).round(1).ravel()
    Array([-0.2,  1. , -0.6,  1. ], dtype=float32)

  References:
    Yamada et al., `ShakeDrop Regularization for Deep Residual Learning`, 2019, section 3.
  """
  x = check_batched(x, "x")
  shape, wide = _coefficients(x, per_example), jnp.promote_types(x.dtype, jnp.float32)
  check_option(rate, "rate", shape, low=0, high=1, entrywise=True)
  ends = check_ends(forward, "forward"), check_ends(backward, "backward")
  if key is None:
    return x
  keys = jax.random.split(check_key(key), 3)
  kept = jax.random.bernoulli(keys[0], 1 - jnp.asarray(rate, jnp.float32), shape)
  alpha = jax.random.uniform(keys[1], shape, wide, *ends[0])
  beta = jax.random.uniform(keys[2], shape, wide, *ends[1])
  return _scaled(x.astype(wide), jnp.where(kept, 1, alpha), jnp.where(kept, 1, beta)).astype(x.dtype)


@jax.custom_jvp
def _scaled(x: Array, forward: Array, backward: Array) -> Array:
  """Computes `forward * x` with derivative `backward`; a JVP rule serves both modes of differentiation."""
  del backward
  return forward * x


@_scaled.defjvp
def _scaled_jvp(primals, tangents):
  x, forward, backward = primals
  return forward * x, backward * tangents[0]


def _coefficients(x: Array, per_example: bool) -> tuple[int, ...]:
  return (x.shape[0] if per_example else 1, *[1] * (x.ndim - 1))

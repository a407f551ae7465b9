"""The steps of accelerated proximal gradient descent, alone or as an optimizer."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from jaxreg._loops import while_loop
from jaxreg._sharding import partitioned
from jaxreg.typing import Array, Params

Prox = Callable[[Params, ArrayLike], Params]


def backtracked(
  loss_fn: Callable[[Params], Array],
  loss: Array,
  gradient: Params,
  y: Params,
  prox: Prox,
  size: Array,
  shrink: ArrayLike,
) -> tuple[Params, Array]:
  """Takes the proximal step from `y`; shrinks `size` until the quadratic model bounds the loss."""
  tree = optax.tree
  # Near the solution the two sides differ only by rounding errors of the loss.
  slack = 8 * jnp.finfo(loss.dtype).eps * jnp.abs(loss)

  def moved(size: Array) -> Params:
    return prox(tree.add_scale(y, -size, gradient), size)

  def too_long(size: Array) -> Array:
    change = tree.sub(moved(size), y)
    along = partitioned(tree.vdot, gradient, change, kept=slice(0))
    bound = loss + along + tree.norm(change, squared=True) / (2 * size)
    return (loss_fn(moved(size)) > bound + slack) & (size > jnp.finfo(loss.dtype).tiny / shrink)

  size = while_loop(too_long, lambda size: size * shrink, size)
  return moved(size), size


def next_momentum(t: Array) -> tuple[Array, Array]:
  """Returns `t_{k+1}` for `t = t_k`, and the momentum `(t_k - 1) / t_{k+1}`."""
  after = (1 + jnp.sqrt(1 + 4 * t**2)) / 2
  return after, (t - 1) / after

"""Sharpness as the largest rise of the loss near the parameters: that of SAM, and that of Keskar et al."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from jaxreg.flatness._common import analysis, scalar_loss, widened
from jaxreg.flatness._subset import Where, selected, split
from jaxreg.typing import Array, Batch, Key, LossFn, Params, check_count, check_key, check_range


@analysis
def sam_sharpness(
  loss_fn: LossFn,
  params: Params,
  batch: Batch,
  *,
  rho: float = 0.05,
  where: Where = "*",
  key: Key | None = None,
) -> Array:
  r"""Computes the rise of the loss after a step of length `rho` along the gradient.

  .. math:: L(\theta + \rho\, g / \lVert g \rVert) - L(\theta), \qquad g = \nabla L(\theta)

  It is a first-order approximation of the largest rise in a ball. Where the gradient is 0 it is 0.

  Args:
    loss_fn: `(params, batch, *, key) -> scalar`; `key=None` asks for no noise.
    params: any pytree.
    batch: passed to `loss_fn`; the sharpness of the paper's `m`-sharpness is a mean over small batches.
    rho: radius of the ball.
    where: the parameters that move.
    key: passed to `loss_fn`.

  Returns:
    A scalar.

  Raises:
    TypeError: if a selected leaf is not floating, or `key` no typed key.
    ValueError: if `where` selects nothing, or `rho` is not above 0.

  Example:
    >>> loss = lambda params, batch, *, key: 0.5 * (params**2).sum()
    >>> sam_sharpness(loss, jnp.array([3.0, 4.0]), None, rho=1.0)
    Array(5.5, dtype=float32)

  References:
    Foret et al., `Sharpness-Aware Minimization for Efficiently Improving Generalization`, 2021, section 2.
  """
  check_range(rho, "rho", low=0, open_low=True)
  mask = selected(params, where)
  return _sam(loss_fn, mask, widened(params), widened(batch), key, rho)


@partial(jax.jit, static_argnums=(0, 1))
def _sam(loss_fn, mask, params, batch, key, rho):
  part = split(params, mask)
  loss = lambda flat: scalar_loss(loss_fn, part.merge(flat), batch, key)
  value, gradient = jax.value_and_grad(loss)(part.flat)
  norm = jnp.linalg.norm(gradient)
  step = jnp.where(norm > 0, rho / jnp.where(norm > 0, norm, 1), 0)
  return loss(part.flat + step * gradient) - value


@analysis
def keskar_sharpness(
  loss_fn: LossFn,
  params: Params,
  batch: Batch,
  *,
  key: Key,
  eps: float = 1e-3,
  num_starts: int = 4,
  steps: int = 20,
  where: Where = "*",
) -> Array:
  r"""Searches the largest relative rise of the loss in a box, in percent.

  .. math:: 100 \max_{|z_i| \le \epsilon (|\theta_i| + 1)} \frac{L(\theta + z) - L(\theta)}{1 + L(\theta)}

  The search takes projected steps along the gradient's sign from random points of the box, in place of the
  paper's ten iterations of L-BFGS-B. Like these it gives a lower bound.

  Args:
    loss_fn: `(params, batch, *, key) -> scalar`, called with `key=None`.
    params: any pytree.
    batch: passed to `loss_fn`.
    key: draws the points to start from.
    eps: the size of the box.
    num_starts: number of searches, of which the largest rise counts.
    steps: steps of a search, each as long as 2.5 half sides of the box over `steps`.
    where: the parameters that move.

  Returns:
    A scalar, at least 0.

  Raises:
    TypeError: if a selected leaf is not floating, `key` no typed key, or a count no integer.
    ValueError: if `where` selects nothing, or a number is out of range.

  Example:
    >>> loss = lambda params, batch, *, key: 0.5 * (params**2).sum()
    >>> keskar_sharpness(loss, jnp.zeros(2), None, key=jax.random.key(0), eps=0.1).round(3)
    Array(1., dtype=float32)

  References:
    Keskar et al., `On Large-Batch Training for Deep Learning: Generalization Gap and Sharp Minima`, 2017,
    metric 2.1, with the whole space.
  """
  check_key(key)
  check_range(eps, "eps", low=0, open_low=True)
  check_count(num_starts, "num_starts")
  check_count(steps, "steps")
  mask = selected(params, where)
  return _keskar(loss_fn, mask, num_starts, steps, widened(params), widened(batch), key, eps)


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _keskar(loss_fn, mask, num_starts, steps, params, batch, key, eps):
  part = split(params, mask)
  side = eps * (jnp.abs(part.flat) + 1)
  loss = lambda inside: scalar_loss(loss_fn, part.merge(part.flat + side * inside), batch, None)

  def search(key: Key) -> Array:
    def step(_: int, carry: tuple[Array, Array]) -> tuple[Array, Array]:
      inside, best = carry
      value, gradient = jax.value_and_grad(loss)(inside)
      return jnp.clip(inside + 2.5 / steps * jnp.sign(gradient), -1, 1), jnp.maximum(best, value)

    start = jax.random.uniform(key, part.flat.shape, part.flat.dtype, -1, 1)
    inside, best = jax.lax.fori_loop(0, steps, step, (start, loss(start)))
    return jnp.maximum(best, loss(inside))

  at_params = loss(jnp.zeros_like(part.flat))
  found = jax.lax.map(search, jax.random.split(key, num_starts)).max()
  return 100 * jnp.maximum(found - at_params, 0) / (1 + at_params)

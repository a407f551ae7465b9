"""Accelerated proximal gradient descent (FISTA) with backtracking, for losses without noise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from jaxreg._checks import check_count, check_function, check_range
from jaxreg._loops import in_one_program
from jaxreg._proximal import Prox, backtracked, next_momentum
from jaxreg.typing import Array, Params


class ProximalGradientResult(NamedTuple):
  """The result of `proximal_gradient`."""

  params: Params
  step: Array
  losses: Array


def proximal_gradient(
  loss_fn: Callable[[Params], Array],
  params: Params,
  prox: Prox,
  *,
  num_steps: int = 100,
  step: ArrayLike = 1.0,
  shrink: ArrayLike = 0.5,
) -> ProximalGradientResult:
  r"""Minimises `loss_fn(params)` plus the penalty of `prox`, with a step size found by backtracking.

  .. math:: x_k = \operatorname{prox}_{s}\bigl(y_k - s \nabla f(y_k)\bigr), \quad
    y_{k+1} = x_k + \frac{t_k - 1}{t_{k+1}} (x_k - x_{k-1}), \quad
    t_{k+1} = \frac{1 + \sqrt{1 + 4 t_k^2}}2

  The step size `s` shrinks until the quadratic model of the smooth loss `f` at `y_k`, with curvature `1 / s`,
  bounds `f` at `x_k`; it never grows again. `optim.fista` makes the same steps as an optimizer; `proximal` is
  the transform for stochastic gradients.

  Args:
    loss_fn: the smooth part, `params -> scalar`, without noise.
    params: the start, any pytree of floating arrays.
    prox: `(params, step) -> params`, such as `functools.partial(prox_l1, weight=0.1)`; it selects parameters
      by its own `mask`.
    num_steps: steps; static. A later eager call compiles nothing if only arrays, `step` or `shrink` change.
    step: the first step size to try, above 0.
    shrink: factor of the step size in backtracking, in (0, 1).

  Returns:
    By name: the solution `params`, the last step size `step`, and `losses`, the smooth loss before each step,
    `[num_steps]`.

  Example:
    >>> import functools
    >>> from jaxreg.constraints import prox_l1
    >>> loss = lambda params: 2 * jnp.square(params["kernel"] - jnp.array([3.0, 0.1])).sum()
    >>> proximal_gradient(loss, {"kernel": jnp.zeros(2)}, functools.partial(prox_l1, weight=1.0)).params
    {'kernel': Array([2.75, 0.  ], dtype=float32)}

  References:
    Beck and Teboulle, `A Fast Iterative Shrinkage-Thresholding Algorithm for Linear Inverse Problems`, 2009,
    section 4, with backtracking.
  """
  check_function(loss_fn, "loss_fn", "params -> scalar", takes=1)
  check_function(prox, "prox", "(params, step) -> params", takes=2)
  check_count(num_steps, "num_steps")
  check_range(step, "step", low=0, open_low=True)
  check_range(shrink, "shrink", low=0, high=1, open_low=True, open_high=True)

  dtype = jax.eval_shape(loss_fn, params).dtype

  def solve(params: Params, size: Array, shrink: Array) -> ProximalGradientResult:
    def one(carry: Any, _: None) -> tuple[Any, Array]:
      x, y, t, size = carry
      loss, gradient = jax.value_and_grad(loss_fn)(y)
      new, size = backtracked(loss_fn, loss, gradient, y, prox, size, shrink)
      t, momentum = next_momentum(t)
      return (new, optax.tree.add_scale(new, momentum, optax.tree.sub(new, x)), t, size), loss

    start = params, params, jnp.ones((), dtype), size
    (x, _, _, size), losses = jax.lax.scan(one, start, None, length=num_steps)
    return ProximalGradientResult(x, size, losses)

  return in_one_program(solve, params, jnp.asarray(step, dtype), shrink)

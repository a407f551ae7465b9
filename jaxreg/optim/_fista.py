"""FISTA as an optimizer: accelerated proximal gradient steps on a loss without noise."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from jaxreg._checks import check_function, check_range
from jaxreg._leaves import wide
from jaxreg._proximal import Prox, backtracked, next_momentum
from jaxreg.optim._masked import gradient_part, on_whole
from jaxreg.optim._sam import check_whole_batch
from jaxreg.typing import Array, Params


class FistaState(NamedTuple):
  """The parameters before the last step, `t` and the momentum of the next step, and the step size."""

  previous: Params
  t: Array
  momentum: Array
  step: Array


def fista(
  learning_rate: ArrayLike, *, prox: Prox | None = None, shrink: float = 0.5
) -> optax.GradientTransformationExtraArgs:
  r"""Minimises a loss plus the penalty of `prox` by the steps of `constraints.proximal_gradient`.

  .. math:: y = w + m (w - w'), \qquad w \leftarrow \operatorname{prox}_s(y - s \nabla L(y))

  Here `w'` are the parameters before the last step. The step size `s` shrinks by backtracking. `update`
  calls `value_fn` and `grad_fn` at `y`; it does not use the gradient at `w` that it is given. Both functions
  must use the whole training set without noise at every step. For minibatches take `constraints.proximal`
  after another optimizer. In `optax.masked` and `optax.partition`, give `update` also `all_params=params`, so
  that both functions get the whole tree.

  Args:
    learning_rate: the first step size to try, above 0.
    prox: `(params, step) -> params`, such as `functools.partial(constraints.prox_l1, weight=0.1)`, with its
      own mask; None for no penalty, which is Nesterov's accelerated gradient.
    shrink: factor of the step size in backtracking, in (0, 1).

  Returns:
    An Optax transform whose `update` needs `params`, `value_fn` and `grad_fn`, functions of parameters.

  Example:
    >>> import functools
    >>> from jaxreg.constraints import prox_l1
    >>> loss = lambda w: 2 * jnp.square(w["kernel"] - jnp.array([3.0, 0.1])).sum()
    >>> tx, w = fista(0.25, prox=functools.partial(prox_l1, weight=1.0)), {"kernel": jnp.zeros(2)}
    >>> updates, _ = tx.update(jax.grad(loss)(w), tx.init(w), w, value_fn=loss, grad_fn=jax.grad(loss))
    >>> optax.apply_updates(w, updates)["kernel"]
    Array([2.75, 0.  ], dtype=float32)

  References:
    Beck and Teboulle, `A Fast Iterative Shrinkage-Thresholding Algorithm for Linear Inverse Problems`, 2009,
    section 4, with backtracking.
  """
  if prox is not None:
    check_function(prox, "prox", "(params, step) -> params", takes=2)
  check_range(learning_rate, "learning_rate", low=0, open_low=True)
  check_range(shrink, "shrink", low=0, high=1, open_low=True, open_high=True)
  proximal = prox or (lambda params, step: params)

  def init(params: Params) -> FistaState:
    one = jnp.ones((), jnp.result_type(float))
    # Copies, because a state that holds one buffer twice cannot be donated.
    previous = jax.tree.map(lambda w: jnp.copy(wide(w)), params)
    return FistaState(previous, one, 0 * one, one * jnp.asarray(learning_rate, one.dtype))

  def update(
    updates,
    state,
    params=None,
    *,
    value_fn: Callable[[Params], Array] | None = None,
    grad_fn: Callable[[Params], Params] | None = None,
    all_params: Params | None = None,
    **extra_args,
  ):
    del extra_args
    if params is None or value_fn is None or grad_fn is None:
      raise ValueError("params, value_fn and grad_fn must be given to update, also by what wraps it")
    check_whole_batch("give optim.fista the functions of the whole batch")
    now = jax.tree.map(wide, params)
    y = jax.tree.map(lambda w, old: w + state.momentum.astype(w.dtype) * (w - old), now, state.previous)
    value_fn = on_whole(value_fn, "value_fn", all_params)
    gradient = gradient_part(on_whole(grad_fn, "grad_fn", all_params)(y), y)
    new, step = backtracked(value_fn, value_fn(y), gradient, y, proximal, state.step, shrink)
    t, momentum = next_momentum(state.t)
    # w + (0 - w) is 0 in every dtype: zeros of `prox` are exact.
    moves = jax.tree.map(lambda to, w, u: (to - w).astype(u.dtype), new, now, updates)
    return moves, FistaState(now, t, momentum, step.astype(state.step.dtype))

  return optax.GradientTransformationExtraArgs(init, update)

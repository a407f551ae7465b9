"""Samples of training noise: gradients at one point, or parameters along a trajectory."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxreg.flatness._common import analysis, scalar_loss, widened
from jaxreg.flatness._subset import Where, selected, split
from jaxreg.typing import Array, Batch, Key, LossFn, Params, check_count, check_key


@analysis
def sample_gradients(
  loss_fn: LossFn,
  params: Params,
  batch: Batch,
  *,
  key: Key,
  num: int,
  first: int = 0,
  where: Where = "*",
  batch_size: int = 1,
) -> Array:
  r"""Samples gradients at fixed parameters under independent noise: the paper's random gradient data.

  .. math:: g_j = \nabla_\theta L(\theta, \eta_j), \qquad j = 1 \dots N

  Args:
    loss_fn: `(params, batch, *, key) -> scalar`, which draws its noise from the key.
    params: any pytree.
    batch: passed to `loss_fn`; the whole training set in the paper.
    key: a typed key; sample `j` gets `fold_in(key, j)`, so a larger `num` starts with the same samples.
    num: `N`.
    first: number of the first sample, to split a long series.
    where: the parameters to keep the gradients of.
    batch_size: samples at once; 1 is fastest on a CPU.

  Returns:
    `[num, size]`.

  Raises:
    TypeError: if `key` is no typed key, `num` no integer or a selected leaf not floating.
    ValueError: if `where` selects nothing or `num` is below 1.

  Example:
    >>> loss = lambda params, batch, *, key: params @ (batch + jax.random.normal(key, (2,)))
    >>> sample_gradients(loss, jnp.ones(2), jnp.zeros(2), key=jax.random.key(0), num=5).shape
    (5, 2)

  References:
    Zhang, Zhou and Xu, `Dropout in training neural networks`, 2021, section 3.4.2.
  """
  check_key(key)
  check_count(num, "num")
  mask, params, batch = selected(params, where), widened(params), widened(batch)
  return _gradients(loss_fn, mask, num, batch_size, params, batch, key, jnp.int32(first))


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _gradients(loss_fn, mask, num, batch_size, params, batch, key, first):
  part = split(params, mask)

  def one(number: Array) -> Array:
    key_of_sample = jax.random.fold_in(key, number)
    return jax.grad(lambda flat: scalar_loss(loss_fn, part.merge(flat), batch, key_of_sample))(part.flat)

  return jax.lax.map(one, first + jnp.arange(num), batch_size=batch_size)


@analysis
def sample_trajectory(
  step_fn: Callable[..., Any],
  state: Any,
  batch: Batch,
  *,
  key: Key,
  num: int,
  where: Where = "*",
  params_of: Callable[[Any], Params] = lambda state: state.params,
) -> tuple[Any, Array]:
  """Samples parameters after each of `num` consecutive steps: the paper's random trajectory data.

  Args:
    step_fn: `(state, batch, *, key) -> state`.
    state: the current state of the training.
    batch: passed to `step_fn`.
    key: a typed key; step `j` gets `fold_in(key, j)`.
    num: number of steps.
    where: the parameters to keep.
    params_of: returns the parameters of a state.

  Returns:
    The final state, and samples `[num, size]`. Consecutive steps are correlated, and may drift.

  Raises:
    TypeError: if `key` is no typed key, `num` no integer or a selected leaf not floating.
    ValueError: if `where` selects nothing, `num` is below 1, or `step_fn` returns anything but a state.

  Example:
    >>> step = lambda w, batch, *, key: w + batch * jax.random.normal(key, (2,))
    >>> _, samples = sample_trajectory(
    ...   step, jnp.zeros(2), 0.1, key=jax.random.key(0), num=5, params_of=lambda w: w
    ... )
    >>> samples.shape
    (5, 2)

  References:
    Zhang, Zhou and Xu, `Dropout in training neural networks`, 2021, section 3.4.1.
  """
  check_key(key)
  check_count(num, "num")
  after = jax.eval_shape(lambda state, key: step_fn(state, batch, key=key), state, key)
  got, want = jax.tree.structure(after), jax.tree.structure(state)
  if got != want:
    raise ValueError(f"step_fn must return a state with the structure of state, {want}, got {got}")
  return _trajectory(step_fn, params_of, selected(params_of(state), where), num, state, batch, key)


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _trajectory(step_fn, params_of, mask, num, state, batch, key):
  def step(state: Any, number: Array) -> tuple[Any, Array]:
    state = step_fn(state, batch, key=jax.random.fold_in(key, number))
    return state, split(params_of(state), mask).flat

  return jax.lax.scan(step, state, jnp.arange(num))

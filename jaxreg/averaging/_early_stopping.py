"""Early stopping with a copy of the best parameters, as a state that goes through `jit` and checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg.typing import Array, Params, check_count, check_range, check_wide


class EarlyStoppingState(NamedTuple):
  """What early stopping remembers.

  Attributes:
    best_params: a copy of the parameters at the best evaluation; before it, those of the start.
    best_metric: the metric there; infinite before.
    best_step: the number of that evaluation, from 0; -1 before.
    num_evaluations: so far.
    num_worse: evaluations since the best one, all without improvement.
    should_stop: whether the patience has run out; nothing changes from then on.
  """

  best_params: Params
  best_metric: Array
  best_step: Array
  num_evaluations: Array
  num_worse: Array
  should_stop: Array


class EarlyStopping(NamedTuple):
  """`init(params) -> state` and `update(state, metric, params) -> state`."""

  init: Callable[[Params], EarlyStoppingState]
  update: Callable[[EarlyStoppingState, ArrayLike, Params], EarlyStoppingState]


def early_stopping(
  *, patience: int, min_delta: ArrayLike = 0.0, mode: Literal["min", "max"] = "min"
) -> EarlyStopping:
  r"""Stops after `patience` evaluations in a row without improvement, and keeps the best parameters.

  .. math:: \text{improved} \iff m_t < m_{\text{best}} - \delta \quad
    (\text{with mode "max": } m_t > m_{\text{best}} + \delta)

  A tie is no improvement, and neither is NaN, first or later. Use `state.best_params` afterwards: "the latest
  model" of the lecture is its latest stored copy, not the last iterate. Both functions are pure and run under
  `jit`, `scan` and `vmap`. Once stopped, a state stays as it is, so replicas may stop at different times.

  Args:
    patience: `P`; the state says stop at exactly the `P`-th evaluation in a row that did not improve.
    min_delta: at least 0, what an improvement must exceed.
    mode: whether the metric is to be small or large.

  Returns:
    An `EarlyStopping` pair. `update` raises TypeError if the metric is not floating and ValueError if it is
    not a scalar or the parameters are of another structure than those of `init`.

  Raises:
    TypeError: if `patience` is not an integer.
    ValueError: if `patience` is below 1, `min_delta` negative or `mode` neither.

  Example:
    >>> stopping = early_stopping(patience=2)
    >>> state = stopping.init(jnp.zeros(1))
    >>> for epoch, error in enumerate([0.5, 0.3, 0.4, 0.3]):
    ...   state = stopping.update(state, error, jnp.array([1.0 * epoch]))
    >>> state.best_params, state.best_step, state.should_stop
    (Array([1.], dtype=float32), Array(1, dtype=int32), Array(True, dtype=bool))

  References:
    Na, `Regularization for Deep Learning`, lecture, Chonbuk National University, early stopping.
  """
  check_count(patience, "patience")
  check_range(min_delta, "min_delta", low=0)
  if mode not in ("min", "max"):
    raise ValueError(f'mode must be "min" or "max", got {mode!r}')
  sign = 1 if mode == "min" else -1

  def init(params: Params) -> EarlyStoppingState:
    zero = jnp.zeros((), jnp.int32)
    params = jax.tree.map(jnp.asarray, params)
    # With its dtype said, so that it does not change with the first update, under scan.
    worst = jnp.asarray(sign * jnp.inf, jnp.result_type(float))
    return EarlyStoppingState(params, worst, zero - 1, zero, zero, jnp.zeros((), bool))

  def update(state: EarlyStoppingState, metric: ArrayLike, params: Params) -> EarlyStoppingState:
    given, kept = jax.tree.structure(params), jax.tree.structure(state.best_params)
    if given != kept:
      raise ValueError(f"params must have the structure of those of init, {kept}, got {given}")
    metric = check_wide(metric, "metric", shape=()).astype(state.best_metric.dtype)
    # Every comparison with NaN is false, so it never improves, and never becomes the best.
    improved = sign * metric < sign * state.best_metric - min_delta
    worse = jnp.where(improved, 0, state.num_worse + 1)
    new = EarlyStoppingState(
      best_params=jax.tree.map(lambda new, old: jnp.where(improved, new, old), params, state.best_params),
      best_metric=jnp.where(improved, metric, state.best_metric),
      best_step=jnp.where(improved, state.num_evaluations, state.best_step),
      num_evaluations=state.num_evaluations + 1,
      num_worse=worse,
      should_stop=worse >= patience,
    )
    return jax.tree.map(lambda old, new: jnp.where(state.should_stop, old, new), state, new)

  return EarlyStopping(init, update)

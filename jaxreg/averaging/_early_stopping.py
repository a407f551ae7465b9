"""Early stopping with a copy of the best parameters, as a state that works with `jit` and checkpoints."""

from __future__ import annotations

import functools
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_choice, check_count, check_range, check_wide
from jaxreg.averaging._average import Average, arrays, check_like, kept_params
from jaxreg.typing import Array, Params


class EarlyStoppingState(NamedTuple):
  """The state of `early_stopping`."""

  params: Params
  best_metric: Array
  best_step: Array
  num_evaluations: Array
  num_worse: Array
  should_stop: Array


def early_stopping(
  *, patience: int, min_delta: ArrayLike = 0.0, mode: Literal["min", "max"] = "min"
) -> Average:
  r"""Builds early stopping: the best parameters, and after how many evaluations to stop.

  .. math:: \text{improved} \iff m_t < m_{\text{best}} - \delta \quad
    (\text{with mode "max": } m_t > m_{\text{best}} + \delta)

  Neither a tie nor NaN counts as an improvement. Use the state's parameters afterwards: the
  lecture's "latest model" is its latest stored copy, not the last iterate. A stopped state no longer changes,
  so replicas may stop at different times.

  Args:
    patience: `P`; `should_stop` is set at exactly the `P`-th evaluation in a row without improvement.
    min_delta: at least 0; an improvement must exceed it.
    mode: whether a smaller or a larger metric is better.

  Returns:
    `init`, `update` and `params`, as `jaxreg.averaging` explains. `update` is `(state, params, metric) ->
    state`, with the parameters that were evaluated and their scalar `m` on the validation set, floating. A
    state has `params`, the parameters at the best evaluation, or the initial ones before any; `best_metric`
    and `best_step`, its metric and number from 0, or before any the worst metric, inf or -inf, and -1;
    `num_evaluations`, and `num_worse`, the number since the best one; `should_stop`, whether the patience has
    run out.

  Example:
    >>> stopping = early_stopping(patience=2)
    >>> state = stopping.init(jnp.zeros(1))
    >>> for epoch, error in enumerate([0.5, 0.3, 0.4, 0.3]):
    ...   state = stopping.update(state, jnp.array([1.0 * epoch]), error)
    >>> stopping.params(state), state.best_step, state.should_stop
    (Array([1.], dtype=float32), Array(1, dtype=int32), Array(True, dtype=bool))

  References:
    Na, `Regularization for Deep Learning`, lecture, Chonbuk National University, early stopping.
  """
  check_count(patience, "patience")
  check_range(min_delta, "min_delta", low=0)
  check_choice(mode, "mode", ("min", "max"))
  update = functools.partial(_update, patience=patience, min_delta=min_delta, mode=mode)
  return Average(functools.partial(_init, mode=mode), update, kept_params)


def _init(params: Params, *, mode: Literal["min", "max"]) -> EarlyStoppingState:
  zero = jnp.zeros((), jnp.int32)
  # An explicit dtype, so that the first update does not change it, as scan requires.
  worst = jnp.asarray(jnp.inf if mode == "min" else -jnp.inf, jnp.result_type(float))
  return EarlyStoppingState(
    jax.tree.map(jnp.copy, arrays(params)), worst, zero - 1, zero, zero, jnp.zeros((), bool)
  )


def _update(
  state: EarlyStoppingState,
  params: Params,
  metric: ArrayLike,
  *,
  patience: int,
  min_delta: ArrayLike,
  mode: Literal["min", "max"],
) -> EarlyStoppingState:
  params = check_like(params, state.params)
  sign = 1 if mode == "min" else -1
  metric = check_wide(metric, "metric", shape=()).astype(state.best_metric.dtype)
  # Every comparison with NaN is false, so NaN never improves and never becomes the best.
  improved = sign * metric < sign * state.best_metric - min_delta
  worse = jnp.where(improved, 0, state.num_worse + 1)
  new = EarlyStoppingState(
    params=jax.tree.map(lambda new, old: jnp.where(improved, new, old), params, state.params),
    best_metric=jnp.where(improved, metric, state.best_metric),
    best_step=jnp.where(improved, state.num_evaluations, state.best_step),
    num_evaluations=state.num_evaluations + 1,
    num_worse=worse,
    should_stop=worse >= patience,
  )
  return jax.tree.map(lambda old, new: jnp.where(state.should_stop, old, new), state, new)

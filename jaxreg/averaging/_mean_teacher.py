"""Mean teacher: an exponential average of the student's parameters, which gives its targets."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from jaxreg.typing import Array, Params, check_range, check_wide


class MeanTeacherState(NamedTuple):
  """The teacher's parameters, at least float32, and how many iterates they have seen."""

  params: Params
  count: Array


def mean_teacher_init(params: Params) -> MeanTeacherState:
  """A teacher that is a copy of the student, in float32 or wider.

  Raises:
    TypeError: if a leaf is not floating.

  Example:
    >>> mean_teacher_init(jnp.ones(2, jnp.bfloat16)).params
    Array([1., 1.], dtype=float32)
  """
  return MeanTeacherState(_copy(params), jnp.zeros((), jnp.int32))


def mean_teacher_update(
  state: MeanTeacherState, params: Params, *, decay: ArrayLike = 0.999, ramp: bool = True
) -> MeanTeacherState:
  r"""Moves the teacher towards the student, after each of its steps.

  .. math:: \theta'_t = d_t \theta'_{t-1} + (1 - d_t) \theta_t, \qquad
    d_t = \min\Bigl(d, 1 - \frac1t\Bigr) \text{ with the ramp, else } d, \qquad t = 1, 2, \dots

  With the ramp the teacher is the mean of all iterates while there are fewer than `1 / (1 - d)` of them, and
  forgets the start, its initial copy included; without it that copy keeps the weight `d^t`. The step is
  `optax.incremental_update`; `optax.ema` with its debiasing forgets the start too, but its weights fall from
  the first iterate on.

  The targets are the teacher's predictions, in a loss such as `losses.consistency`. It gets no gradient: none
  goes through this update. Its BatchNorm statistics are an average of the student's, taken with this too, or
  its own from running it in training mode.

  Args:
    state: from `mean_teacher_init`, or the update before.
    params: the student's, after its step.
    decay: `d` in [0, 1]; may be traced, so it can follow a schedule.
    ramp: whether to begin with the plain mean.

  Returns:
    The new state; `state.params` are the teacher.

  Raises:
    TypeError: if a leaf is not floating.
    ValueError: if `decay` is outside [0, 1].

  Example:
    >>> state = mean_teacher_init(jnp.zeros(1))
    >>> for params in (jnp.array([1.0]), jnp.array([3.0])):
    ...   state = mean_teacher_update(state, params)
    >>> state.params, mean_teacher_update(state, jnp.array([4.0]), decay=0.5).params
    (Array([2.], dtype=float32), Array([3.], dtype=float32))

  References:
    Tarvainen and Valpola, `Mean teachers are better role models`, 2017.
  """
  check_range(decay, "decay", low=0, high=1)
  count = state.count + 1
  number = count.astype(jnp.result_type(float))  # else float32 where x64 is on
  ramped = jnp.minimum(decay, 1 - 1 / number) if ramp else jnp.asarray(decay)
  student = jax.lax.stop_gradient(_copy(params))
  teacher = optax.incremental_update(student, state.params, 1 - ramped)
  return MeanTeacherState(jax.tree.map(lambda new, old: new.astype(old.dtype), teacher, state.params), count)


def _copy(params: Params) -> Params:
  return jax.tree.map(lambda leaf: check_wide(leaf, "params"), params)

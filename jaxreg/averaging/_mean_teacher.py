"""Mean teacher: an exponential average of the student's parameters gives the targets."""

from __future__ import annotations

from jax.typing import ArrayLike

from jaxreg.averaging._ema import EMAState, ema_init, ema_update
from jaxreg.typing import Params


def mean_teacher_init(params: Params) -> EMAState:
  """Returns a teacher that is a copy of the student: `ema_init`.

  Raises:
    TypeError: if a leaf is not an array.

  Example:
    >>> mean_teacher_init(jnp.ones(2, jnp.bfloat16)).params
    Array([1., 1.], dtype=float32)
  """
  return ema_init(params)


def mean_teacher_update(
  state: EMAState, params: Params, *, decay: ArrayLike = 0.999, ramp: bool = True
) -> EMAState:
  """Moves the teacher towards the student, after each step of the student: `ema_update`.

  The targets are the teacher's predictions, in a loss such as `losses.consistency`. The teacher gets no
  gradient: none flows through this update. Its BatchNorm statistics are either an average of the student's,
  by this function too, or its own from running it in training mode.

  Args:
    state: from `mean_teacher_init` or the preceding update.
    params: the student's parameters after its step.
    decay, ramp: as in `ema_update`.

  Returns:
    The new state; `state.params` are the teacher's.

  Raises:
    TypeError: if a leaf is not an array.
    ValueError: if `decay` is outside [0, 1].

  Example:
    >>> state = mean_teacher_update(mean_teacher_init(jnp.zeros(1)), jnp.array([1.0]))
    >>> mean_teacher_update(state, jnp.array([3.0])).params
    Array([2.], dtype=float32)

  References:
    Tarvainen and Valpola, `Mean teachers are better role models`, 2017.
  """
  return ema_update(state, params, decay=decay, ramp=ramp)

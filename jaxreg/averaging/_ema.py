"""The exponential moving average of parameters, whose decay warms up."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from jaxreg._checks import check_range
from jaxreg.averaging._averaged_leaves import Mean, is_averaged, start, wide
from jaxreg.typing import Array, Params


def ema_init(params: Params) -> Mean:
  """Returns an average that is a copy of the parameters, in float32 or wider.

  Example:
    >>> ema_init(jnp.ones(2, jnp.bfloat16)).params
    Array([1., 1.], dtype=float32)
  """
  return start(params)


def ema_decay(
  number: ArrayLike, *, decay: ArrayLike = 0.999, warmup: ArrayLike = 1.0, power: ArrayLike = 1.0
) -> Array:
  r"""Computes the decay of one step of an average, which grows to `decay`.

  .. math:: d_t = \min\Bigl(d, 1 - \Bigl(1 + \frac{t - 1}{\gamma}\Bigr)^{-p}\Bigr), \qquad t = 1, 2, \dots

  `warmup` 1 and `power` 1 give the plain mean of all iterates, `d_t = 1 - 1/t`, until `t = 1 / (1 - d)`. With
  `power` `p`, the average begins with a mean over about the last `t^p` iterates.

  Args:
    number: the number `t` of the iterate, from 1 on; any shape.
    decay: `d` in [0, 1].
    warmup: `gamma`, positive, in iterates: the larger it is, the slower the decay grows.
    power: `p`, at least 0; 0 gives the newest iterate.

  Returns:
    The decays, in the shape of `number`, floating.

  Example:
    >>> ema_decay(jnp.array([1, 2, 5]), decay=0.75)
    Array([0.  , 0.5 , 0.75], dtype=float32)

  References:
    timm 1.0.31, `ModelEmaV3`, whose `warmup_gamma` and `warmup_power` are `warmup` and `power` here.
  """
  check_range(decay, "decay", low=0, high=1)
  check_range(warmup, "warmup", low=0, open_low=True)
  check_range(power, "power", low=0)
  before = jnp.asarray(number, jnp.result_type(float)) - 1
  return jnp.minimum(decay, 1 - (1 + before / warmup) ** -jnp.asarray(power, before.dtype))


def ema_update(
  state: Mean,
  params: Params,
  *,
  decay: ArrayLike = 0.999,
  ramp: bool = True,
  warmup: ArrayLike = 1.0,
  power: ArrayLike = 1.0,
) -> Mean:
  r"""Moves the average towards one more iterate.

  .. math:: \bar\theta_t = d_t \bar\theta_{t-1} + (1 - d_t) \theta_t, \qquad
    d_t = \texttt{ema_decay}(t) \text{ with the ramp, else } d, \qquad t = 1, 2, \dots

  By default, the average is the mean of all iterates while there are fewer than `1 / (1 - d)`. It
  forgets the start, including its initial copy. Without the ramp, that copy keeps the weight `d^t`.

  A mean teacher is such an average of the student after each of its steps: the teacher's predictions are the
  targets of a loss such as `losses.consistency`. Its BatchNorm statistics are either an average of the
  student's, by this function too, or its own from running it in training mode.

  The step is `optax.incremental_update`. `optax.ema` with its debiasing also forgets the start, but its
  weights fall from the first iterate on. No gradient flows through.

  Args:
    state: from `ema_init` or the preceding update.
    params: the new iterate. Leaves that are not floating, such as counters, replace the old ones.
    decay: `d` in [0, 1]; may be traced, so it can follow a schedule.
    ramp: whether the decay warms up.
    warmup, power: as in `ema_decay`.

  Example:
    >>> state = ema_init(jnp.zeros(1))
    >>> for params in (jnp.array([1.0]), jnp.array([3.0])):
    ...   state = ema_update(state, params)
    >>> state.params, ema_update(state, jnp.array([4.0]), decay=0.5).params
    (Array([2.], dtype=float32), Array([3.], dtype=float32))

  References:
    Polyak and Juditsky, `Acceleration of Stochastic Approximation by Averaging`, 1992, for the plain mean.
    Tarvainen and Valpola, `Mean teachers are better role models`, 2017.
  """
  check_range(decay, "decay", low=0, high=1)
  count = state.count + 1
  warmed = ema_decay(count, decay=decay, warmup=warmup, power=power) if ramp else jnp.asarray(decay)

  def moved(old: Array, new: Array) -> Array:
    if not is_averaged(new):
      return new
    average = optax.incremental_update(jax.lax.stop_gradient(new), old, 1 - warmed)
    return jnp.asarray(average).astype(old.dtype)

  return Mean(jax.tree.map(moved, state.params, wide(params)), count)

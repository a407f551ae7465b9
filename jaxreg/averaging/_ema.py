"""The exponential moving average of parameters, whose decay warms up."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from jaxreg._checks import check_range
from jaxreg.averaging._average import Average, Mean, check_like, is_averaged, kept_params, start, wide
from jaxreg.typing import Array, Params


def ema(
  *, decay: ArrayLike = 0.999, ramp: bool = True, warmup: ArrayLike = 1.0, power: ArrayLike = 1.0
) -> Average:
  r"""Builds the exponential moving average of the iterates.

  .. math:: \bar\theta_t = d_t \bar\theta_{t-1} + (1 - d_t) \theta_t, \qquad
    d_t = \min\Bigl(d, 1 - \Bigl(1 + \frac{t - 1}{\gamma}\Bigr)^{-p}\Bigr), \qquad t = 1, 2, \dots

  By default, the average is the mean of all iterates while there are fewer than `1 / (1 - d)`. It
  forgets the start, including its initial copy. With `power` `p`, the average begins with a mean over about
  the last `t^p` iterates. Without the ramp, :math:`d_t = d`, and the initial copy keeps the weight `d^t`.

  A mean teacher is such an average of the student after each of its steps: the teacher's predictions are the
  targets of a loss such as `losses.consistency`. Its BatchNorm statistics are either an average of the
  student's, by the same average, or its own from running it in training mode.

  The step is `optax.incremental_update`. `optax.ema` with its debiasing also forgets the start, but its
  weights fall from the first iterate on. No gradient flows through. An average has no state of its own, so
  a `decay` that follows a schedule may be traced: build the average inside the step.

  Args:
    decay: `d` in [0, 1].
    ramp: whether the decay warms up.
    warmup: `gamma`, positive, in iterates: the larger it is, the slower the decay grows.
    power: `p`, at least 0; 0 gives the newest iterate.

  Returns:
    `init`, `update` and `params`, as `jaxreg.averaging` explains. `init` copies the parameters, in float32 or
    wider. Leaves that are not floating, such as counters, are the newest ones.

  Example:
    >>> average = ema(decay=0.999)
    >>> state = average.init(jnp.zeros(1))
    >>> for params in (jnp.array([1.0]), jnp.array([3.0])):
    ...   state = average.update(state, params)
    >>> average.params(state)
    Array([2.], dtype=float32)

  References:
    Polyak and Juditsky, `Acceleration of Stochastic Approximation by Averaging`, 1992, for the plain mean.
    Tarvainen and Valpola, `Mean teachers are better role models`, 2017.
    timm 1.0.31, `ModelEmaV3`, whose `warmup_gamma` and `warmup_power` are `warmup` and `power` here.
  """
  check_range(decay, "decay", low=0, high=1)
  check_range(warmup, "warmup", low=0, open_low=True)
  check_range(power, "power", low=0)
  options = {"decay": decay, "ramp": ramp, "warmup": warmup, "power": power}
  return Average(start, functools.partial(_update, **options), kept_params)


def _update(
  state: Mean, params: Params, *, decay: ArrayLike, ramp: bool, warmup: ArrayLike, power: ArrayLike
) -> Mean:
  params = check_like(params, state.params)
  count = state.count + 1
  if ramp:
    decay = warmed_decay(count, decay=decay, warmup=warmup, power=power)

  def moved(old: Array, new: Array) -> Array:
    if not is_averaged(new):
      return new
    average = optax.incremental_update(jax.lax.stop_gradient(new), old, 1 - jnp.asarray(decay))
    return jnp.asarray(average).astype(old.dtype)

  return Mean(jax.tree.map(moved, state.params, wide(params)), count)


def warmed_decay(number: ArrayLike, *, decay: ArrayLike, warmup: ArrayLike, power: ArrayLike) -> Array:
  """Computes the decay of the iterates with these numbers, from 1 on."""
  before = jnp.asarray(number, jnp.result_type(float)) - 1
  return jnp.minimum(decay, 1 - (1 + before / warmup) ** -jnp.asarray(power, before.dtype))

"""Means of the iterates: exponential and plain ones, and their BatchNorm statistics."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from jaxreg import _leaves
from jaxreg._checks import check_range, check_wide
from jaxreg.paths import leaf_names
from jaxreg.typing import ApplyFn, Array, Key, ModelState, Params


class Mean(NamedTuple):
  """The mean of the iterates, with floating leaves in at least float32, and their number."""

  params: Params
  count: Array


def ema_init(params: Params) -> Mean:
  """Returns an average that is a copy of the parameters, in float32 or wider.

  Example:
    >>> ema_init(jnp.ones(2, jnp.bfloat16)).params
    Array([1., 1.], dtype=float32)
  """
  return _start(params)


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


def swa_init(params: Params) -> Mean:
  """Returns a copy of `params` in float32 or wider with weight 0: the first update replaces it.

  Example:
    >>> swa_init(jnp.ones(2, jnp.bfloat16))
    Mean(params=Array([1., 1.], dtype=float32), count=Array(0, dtype=int32))
  """
  return _start(params)


def swa_update(state: Mean, params: Params) -> Mean:
  r"""Adds one iterate to the mean, for instance at the end of an epoch or of a learning rate cycle.

  .. math:: \bar\theta \leftarrow \bar\theta + \frac{\theta - \bar\theta}{n + 1}

  The averaged network needs its own BatchNorm statistics: `batch_norm_statistics`. `ema_update` is the
  exponential average, which forgets old iterates.

  Args:
    state: from `swa_init` or the preceding update.
    params: the new iterate. Leaves that are not floating, such as counters, replace the old ones.

  Example:
    >>> state = swa_init(jnp.zeros(2))
    >>> for params in (jnp.array([1.0, 2.0]), jnp.array([3.0, 6.0])):
    ...   state = swa_update(state, params)
    >>> state.params
    Array([2., 4.], dtype=float32)

  References:
    Izmailov et al., `Averaging Weights Leads to Wider Optima and Better Generalization`, 2018, algorithm 1.
  """
  count = state.count + 1

  def step(mean: Array, leaf: Array) -> Array:
    if not is_averaged(leaf):
      return leaf
    # The copy from `swa_init` is no iterate.
    return jnp.where(state.count > 0, mean + (leaf - mean) / count, leaf)

  return Mean(jax.tree.map(step, state.params, wide(params)), count)


def batch_norm_statistics(
  apply_fn: ApplyFn,
  params: Params,
  model_state: ModelState,
  batches: Iterable[Array],
  *,
  momentum: float = 0.99,
  key: Key | None = None,
) -> ModelState:
  r"""Computes BatchNorm statistics of the given parameters: the mean over batches of batch statistics.

  .. math:: \hat s = \frac1N \sum_{b=1}^N s_b, \qquad s_b = \frac{s' - \mu s}{1 - \mu}

  The model in training mode returns :math:`s' = \mu s + (1 - \mu) s_b`, from which `s_b` is recovered. The
  value of `s` has no effect. The variance lacks the variance of the batch means, like every running average
  of variances.

  Args:
    apply_fn: `(params, model_state, x, *, key, train) -> (outputs, model_state)`; called with `train=True`.
      For speed give it compiled, `jax.jit(apply_fn, static_argnames="train")`.
    params: for instance the mean of `swa_update`.
    model_state: all leaves must be running averages; bind other state in `apply_fn`.
    batches: inputs, batch by batch. All batches count equally, so they should have one size.
    momentum: `mu` in [0, 1), the share of its averages that the model's BatchNorm keeps in one step: Linen's
      default is 0.99; PyTorch's momentum is `1 - mu`.
    key: key of the model's noise, with the batch's number folded in; with None, `apply_fn` gets None.

  Returns:
    A pytree like `model_state`, in its dtypes.

  Raises:
    ValueError: for no batches.

  Example:
    >>> def apply_fn(params, mean, x, *, key, train):  # a running mean with momentum 0.9
    ...   return x, 0.9 * mean + 0.1 * x.mean()
    >>> batches = [jnp.array([1.0, 3.0]), jnp.array([4.0, 8.0])]
    >>> batch_norm_statistics(apply_fn, None, jnp.array(7.0), batches, momentum=0.9).round(3)
    Array(4., dtype=float32)

  References:
    Izmailov et al., `Averaging Weights Leads to Wider Optima and Better Generalization`, 2018, section 3.
  """
  check_range(momentum, "momentum", low=0, high=1, open_high=True)
  jax.tree.map(lambda leaf: check_wide(leaf, "model_state"), model_state)
  # Starting from 0 there is nothing to subtract, so nothing is lost to rounding.
  zeros = jax.tree.map(jnp.zeros_like, model_state)
  state = swa_init(model_state)
  number = 0
  for number, x in enumerate(batches, 1):
    noise = None if key is None else jax.random.fold_in(key, number)
    _, moved = apply_fn(params, zeros, x, key=noise, train=True)
    state = swa_update(state, jax.tree.map(lambda leaf: leaf / (1 - momentum), moved))
  if not number:
    raise ValueError("batches must hold at least one batch, got none")
  return jax.tree.map(lambda mean, old: mean.astype(old.dtype), state.params, model_state)


def _start(params: Params) -> Mean:
  """A copy of `params` that counts as no iterate."""
  return Mean(jax.tree.map(jnp.copy, wide(params)), jnp.zeros((), jnp.int32))


def is_averaged(leaf: Array) -> bool:
  """Whether a leaf is floating; counters, masks and keys come from the newest iterate instead."""
  return jnp.issubdtype(leaf.dtype, jnp.floating)


def arrays(params: Params) -> Params:
  """Returns `params` with every leaf as an array."""
  leaves, tree = jax.tree.flatten(params)
  return tree.unflatten([_array(leaf, name or "params") for leaf, name in zip(leaves, leaf_names(params))])


def wide(params: Params) -> Params:
  """`arrays` with averaged leaves in float32 or wider: in bfloat16 a mean loses its small steps."""
  return jax.tree.map(_leaves.wide, arrays(params))


def _array(leaf: Any, name: str) -> Array:
  try:
    return jnp.asarray(leaf)
  except TypeError:
    raise TypeError(
      f"{name} must be an array, got a {type(leaf).__name__}; give the arrays of a model only, "
      "for instance eqx.filter(model, eqx.is_array)"
    ) from None

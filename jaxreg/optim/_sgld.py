"""Stochastic gradient Langevin dynamics."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from jaxreg._checks import check_key, check_range
from jaxreg._leaves import wide
from jaxreg.optim._trust_region import as_updates
from jaxreg.typing import Array, Key


class SgldState(NamedTuple):
  """The number of steps taken, and the constant data of the key; `()` if the key comes with each step."""

  count: Array
  key_data: Array | tuple[()]


def sgld(
  learning_rate: optax.ScalarOrSchedule,
  *,
  key: Key | None = None,
  num_examples: ArrayLike = 1,
  temperature: ArrayLike = 1.0,
) -> optax.GradientTransformationExtraArgs:
  r"""Builds Langevin dynamics: half a gradient step plus noise with the variance of a step.

  .. math:: \Delta_t = -\frac{\epsilon_t}{2} N g_t + \sqrt{\epsilon_t T}\, \eta_t, \qquad \eta_t \sim N(0, I)

  If `g` is the gradient of minus the log posterior over `N`, the parameters are samples of the posterior, up
  to an error that falls with the step. A penalty must be the penalty of the prior divided by `N`. At
  `temperature` 0 this is gradient descent. It must be the last transform of a chain: rescaling its noise
  would sample another distribution. Leaves that are not floating do not move. Keep the parameters in float32:
  `optax.apply_updates` rounds them to their dtype, and in bfloat16 a step below 1/512 of a weight is lost
  with its noise.

  Args:
    learning_rate: `epsilon`, a number or an Optax schedule.
    key: typed key for all noise; each step folds in its number. Without it, `update` needs a new `key` in
      every step; this also gives several runs in one program their own noise.
    num_examples: `N`, for the gradient of a mean over the examples; 1 for the gradient of their sum.
    temperature: `T`, at least 0.

  Raises:
    ValueError: in `update`, without any key.

  Example:
    >>> tx = sgld(0.02, key=jax.random.key(0), num_examples=10, temperature=0.0)
    >>> tx.update(jnp.array([1.0, -1.0]), tx.init(jnp.zeros(2)))[0]
    Array([-0.1,  0.1], dtype=float32)

  References:
    Welling and Teh, `Bayesian Learning via Stochastic Gradient Langevin Dynamics`, 2011.
    Lecture 8 of Deep Learning (BEV033DLE), Czech Technical University in Prague, Injected Noises (gradient
    updates; Bayesian learning).
  """
  if key is not None:
    check_key(key)
  if not callable(learning_rate):
    check_range(learning_rate, "learning_rate", low=0)
  check_range(num_examples, "num_examples", low=0, open_low=True)
  check_range(temperature, "temperature", low=0)

  def init(params: Any) -> SgldState:
    del params
    if key is None:
      return SgldState(jnp.zeros((), jnp.int32), ())
    # Plain numbers, so that `optax.MultiSteps` can select between them and a checkpoint can hold them.
    return SgldState(jnp.zeros((), jnp.int32), jax.random.key_data(jax.random.clone(key)))

  impl = None if key is None else jax.random.key_impl(key)

  def update(updates, state, params=None, *, key: Key | None = None, **extra_args):
    del params, extra_args
    step = learning_rate(state.count) if callable(learning_rate) else learning_rate
    leaves, tree = jax.tree.flatten(jax.tree.map(wide, updates))
    keys = jax.random.split(_step_key(state, key, impl), max(len(leaves), 1))
    std = jnp.sqrt(jnp.asarray(step) * temperature)

    def move(g: Array, key: Key) -> Array:
      if not jnp.issubdtype(g.dtype, jnp.floating):
        return jnp.zeros_like(g)
      noise = jax.random.normal(key, g.shape, g.dtype)
      return (std * noise - 0.5 * step * num_examples * g).astype(g.dtype)

    new = jax.tree.unflatten(tree, [move(g, key) for g, key in zip(leaves, keys)])
    count = jnp.asarray(optax.safe_increment(state.count))
    return as_updates(new, updates), SgldState(count, state.key_data)

  return optax.GradientTransformationExtraArgs(init, update)


def _step_key(state: SgldState, key: Key | None, impl: Any) -> Key:
  if key is not None:
    return check_key(key)
  if impl is None:
    raise ValueError("key must be given to sgld or to update")
  return jax.random.fold_in(jax.random.wrap_key_data(jnp.asarray(state.key_data), impl=impl), state.count)

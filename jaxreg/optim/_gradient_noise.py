"""Optax's Gaussian noise on the gradient, with a typed key and extra arguments."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from jaxreg._checks import check_key, check_range
from jaxreg._leaves import wide
from jaxreg.typing import Key


def gradient_noise(
  *, key: Key | None = None, variance: ArrayLike = 0.01, gamma: ArrayLike = 0.55
) -> optax.GradientTransformationExtraArgs:
  r"""Adds noise to the gradient with a variance that falls over the steps; goes before the optimizer.

  .. math:: g_t + N(0, \sigma_t^2), \qquad \sigma_t^2 = \frac{\eta}{t^\gamma}, \quad t = 1, 2, \ldots

  This wraps `optax.add_noise`, so that it works in chains with extra arguments. Leaves that are not floating
  get no noise.

  Args:
    key: typed key for all noise. Without it, `update` needs a new `key` in every step; this also gives
      several runs in one program their own noise. A key given to `update` always takes precedence.
    variance: `eta`, the variance at the first step, at least 0; the paper chooses among 0.01, 0.3 and 1.
    gamma: power by which the variance falls, at least 0.

  Raises:
    ValueError: in `update`, without any key.

  Example:
    >>> tx = optax.chain(gradient_noise(key=jax.random.key(0), variance=0.0), optax.sgd(0.5))
    >>> tx.update(jnp.array([1.0]), tx.init(jnp.zeros(1)))[0]
    Array([-0.5], dtype=float32)

  References:
    Neelakantan et al., `Adding Gradient Noise Improves Learning for Very Deep Networks`, 2015.
    Lecture 8 of Deep Learning (BEV033DLE), Czech Technical University in Prague, Injected Noises (gradient
    updates).
  """
  if key is not None:
    check_key(key)
  check_range(variance, "variance", low=0)
  check_range(gamma, "gamma", low=0)
  noise = optax.add_noise(variance, gamma, jax.random.key(0) if key is None else jax.random.clone(key))
  impl = None if key is None else jax.random.key_impl(key)

  def init(params: Any) -> optax.OptState:
    data = () if key is None else jax.random.key_data(jax.random.clone(key))
    return noise.init(params)._replace(rng_key=data)  # type: ignore[union-attr]

  def update(updates, state, params=None, *, key: Key | None = None, **extra_args):
    del extra_args
    own = key is None
    if own and impl is None:
      raise ValueError("key must be given to gradient_noise or to update")
    # Keys are stored as plain numbers, so that `optax.MultiSteps` can select between them.
    key = jax.random.wrap_key_data(state.rng_key, impl=impl) if own else check_key(key)
    # None is not a leaf: counters and other integers get no noise.
    floats = jax.tree.map(
      lambda g: wide(g) if jnp.issubdtype(jnp.result_type(g), jnp.floating) else None, updates
    )
    noisy, after = noise.update(floats, state._replace(rng_key=key), params)
    new = jax.tree.map(lambda g, x: g if x is None else x.astype(jnp.result_type(g)), updates, noisy)
    data = jax.random.key_data(after.rng_key) if own else state.rng_key  # type: ignore[union-attr]
    return new, after._replace(rng_key=data)  # type: ignore[union-attr]

  return optax.GradientTransformationExtraArgs(init, update)

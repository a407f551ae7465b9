"""Gradient descent with steps that are short in a p-norm."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from jaxreg._checks import check_range
from jaxreg._leaves import wide
from jaxreg.optim._trust_region import as_updates, on_floating, with_learning_rate
from jaxreg.typing import Array


def p_norm_sgd(
  learning_rate: optax.ScalarOrSchedule | None = None, *, p: ArrayLike = 2.0, weight: ArrayLike | None = None
) -> optax.GradientTransformationExtraArgs:
  r"""Builds gradient descent in a p-norm, given its learning rate or the weight of its proximal problem.

  .. math:: \Delta = -\epsilon \operatorname{sign}(g)\,|g|^{1/(p-1)}
    = \arg\min_\Delta \langle g, \Delta \rangle + \frac{1}{p \alpha} \|\Delta\|_p^p, \qquad
    \alpha = \epsilon^{p-1}

  With `learning_rate`, p = 2 is `optax.sgd`, and large p is sign descent with steps of `epsilon`. With
  `weight`, large p has steps of 1 for every `weight`. As p goes to 1, only the largest gradients move. A step
  that would overflow becomes the largest number of the dtype. The lecture prints `alpha |g|^{1/(p-1)}`, which
  is the minimiser only for `p = 2` or `alpha = 1`.

  Args:
    learning_rate: `epsilon`, a number or an Optax schedule; or
    weight: `alpha`, a number above 0: the weight of the linear term relative to the p-norm.
    p: above 1; infinity gives the sign.

  Raises:
    ValueError: for both or none of `learning_rate` and `weight`.

  Example:
    >>> tx = p_norm_sgd(0.5, p=3.0)
    >>> tx.update(jnp.array([-4.0, 1.0]), tx.init(jnp.zeros(2)))[0]
    Array([ 1. , -0.5], dtype=float32)

  References:
    Lecture 8 of Deep Learning (BEV033DLE), Czech Technical University in Prague, Proximal Problem.
  """
  if (learning_rate is None) == (weight is None):
    raise ValueError(f"one of learning_rate and weight must be given, got {learning_rate} and {weight}")
  rate = 1.0 if learning_rate is None else learning_rate
  alpha = 1.0 if weight is None else weight
  check_range(p, "p", low=1, high=jnp.inf, open_low=True)
  check_range(alpha, "weight", low=0, open_low=True)

  def power(g: Array) -> Array:
    # Multiply the weight and |g| before the power: for p near 1 the power of either alone overflows.
    size = (jnp.abs(g) * jnp.asarray(alpha, g.dtype)) ** (1 / (jnp.asarray(p, g.dtype) - 1))
    return jnp.sign(g) * jnp.minimum(size, jnp.finfo(g.dtype).max)

  direction = optax.stateless(lambda updates, params: on_floating(power, updates))
  chain = with_learning_rate(optax.with_extra_args_support(direction), rate)

  def update(updates, state, params=None, **extra_args):
    # Rounds once, after the learning rate: the power alone exceeds the range of 16 bits.
    new, state = chain.update(on_floating(wide, updates), state, params, **extra_args)
    return as_updates(jax.tree.map(_within, new, updates), updates), state

  return optax.GradientTransformationExtraArgs(chain.init, update)


def _within(x: Array, like: Array) -> Array:
  """Clips `x` to the finite range of the dtype of `like`, if that is floating."""
  if not jnp.issubdtype(jnp.result_type(like), jnp.floating):
    return x
  largest = float(jnp.finfo(jnp.result_type(like)).max)
  return jnp.clip(x, -largest, largest)

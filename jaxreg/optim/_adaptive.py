"""Adagrad, RMSProp and Adam as the trust region per coordinate makes them, without an epsilon."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from jaxreg.optim._trust_region import scale_by_trust_region, with_learning_rate
from jaxreg.typing import Array


class AdaptiveState(NamedTuple):
  """How many steps were taken, and the averages."""

  count: Array
  averages: Any


def scale_by_adaptive(
  *, b1: ArrayLike | None = None, b2: ArrayLike = 0.999, debias: bool = True, anneal: bool = False
) -> optax.GradientTransformationExtraArgs:
  r"""A mean of gradients over the root of a mean of their squares, coordinate by coordinate.

  .. math:: u_t = \frac{E_{\beta_1}[g]}{\sqrt{E_{\beta_2}[g^2]}}\,, \qquad 0/0 = 0

  There is no epsilon: the size of the step does not depend on the size of the gradients, however small, and
  a coordinate that has had no gradient yet stays where it is.

  Args:
    b1: decay of the numerator's average; `None` for the gradient itself.
    b2: decay of the denominator's; 1 for the flat mean over all steps.
    debias: averages whose weights sum to 1, so that the first step is `sign(g)`; without it the recursion
      `m <- b m + (1 - b) g` from 0, whose first step is `(1 - b1) / sqrt(1 - b2)` times that.
    anneal: divide by the root of the number of steps.

  Returns:
    An Optax transform.

  Raises:
    ValueError: if a decay is out of range.

  Example:
    >>> tx = scale_by_adaptive(b2=1.0)
    >>> updates, state = tx.update(jnp.array([2.0, 0.0]), tx.init(jnp.zeros(2)))
    >>> updates
    Array([1., 0.], dtype=float32)

  References:
    Lecture 8 of Deep Learning (BEV033DLE), Czech Technical University in Prague, Trust Region Problem
    (practical solution: running averages).
  """
  inner = scale_by_trust_region(blocks="element", numerator_decay=b1, denominator_decay=b2, debias=debias)

  def init(params: Any) -> AdaptiveState:
    return AdaptiveState(jnp.zeros((), jnp.int32), inner.init(params))

  def update(updates, state, params=None, **extra_args):
    new, averages = inner.update(updates, state.averages, params, **extra_args)
    count = jnp.asarray(optax.safe_increment(state.count))
    if anneal:
      new = jax.tree.map(lambda u: u / jnp.sqrt(count.astype(u.dtype)), new)
    return new, AdaptiveState(count, averages)

  return optax.GradientTransformationExtraArgs(init, update)


def adaptive(
  learning_rate: optax.ScalarOrSchedule,
  *,
  b1: ArrayLike | None = None,
  b2: ArrayLike = 0.999,
  debias: bool = True,
  anneal: bool = False,
) -> optax.GradientTransformationExtraArgs:
  r"""The method of which Adagrad, RMSProp and Adam are special cases.

  .. math:: \Delta_t = -\epsilon\, \frac{E_{\beta_1}[g]}{\sqrt{E_{\beta_2}[g^2]}}
    \cdot \begin{cases} 1 / \sqrt{t} & \text{annealed} \\ 1 \end{cases}

  Args:
    learning_rate: `epsilon`, a number or an Optax schedule.
    b1: decay of the numerator's average; `None` for the gradient itself.
    b2: decay of the denominator's; 1 for the flat mean over all steps.
    debias: whether the weights of an average sum to 1, so that the first step is `-epsilon sign(g)`.
    anneal: divide by the root of the number of steps.

  Returns:
    An Optax transform.

  Raises:
    ValueError: if a decay is out of range.

  Example:
    >>> tx = adaptive(0.1, b1=0.9, b2=0.999)
    >>> tx.update(jnp.array([1e-20, -3.0, 0.0]), tx.init(jnp.zeros(3)))[0]
    Array([-0.1,  0.1, -0. ], dtype=float32)

  References:
    Lecture 8 of Deep Learning (BEV033DLE), Czech Technical University in Prague, Trust Region Problem.
  """
  return with_learning_rate(scale_by_adaptive(b1=b1, b2=b2, debias=debias, anneal=anneal), learning_rate)


def exact_adagrad(
  learning_rate: optax.ScalarOrSchedule, *, anneal: bool = True
) -> optax.GradientTransformationExtraArgs:
  r"""Adagrad, without an epsilon and from an empty accumulator.

  .. math:: \Delta_t = -\frac{\epsilon}{\sqrt t}\, \frac{g_t}{\sqrt{\operatorname{Mean}(g_{1:t}^2)}}
    = -\epsilon\, \frac{g_t}{\sqrt{\sum_{s \le t} g_s^2}}

  `optax.adagrad` starts its accumulator at 0.1.

  Args:
    learning_rate: `epsilon`, a number or an Optax schedule.
    anneal: whether to divide by the root of the number of steps, with which the method converges; without, it
      is the flat average alone.

  Returns:
    An Optax transform.

  Example:
    >>> tx = exact_adagrad(0.5)
    >>> updates, state = tx.update(jnp.array([3.0]), tx.init(jnp.zeros(1)))
    >>> print(f"{tx.update(jnp.array([4.0]), state)[0][0]:.4f}")  # 0.5 * 4 / sqrt(9 + 16)
    -0.4000

  References:
    Duchi, Hazan and Singer, `Adaptive Subgradient Methods for Online Learning and Stochastic Optimization`,
    2011.
    Lecture 8 of Deep Learning (BEV033DLE), Czech Technical University in Prague, Adagrad.
  """
  return adaptive(learning_rate, b2=1.0, anneal=anneal)


def exact_rmsprop(
  learning_rate: optax.ScalarOrSchedule, *, decay: ArrayLike = 0.9, debias: bool = True
) -> optax.GradientTransformationExtraArgs:
  r"""RMSProp, without an epsilon.

  .. math:: \Delta_t = -\epsilon\, \frac{g_t}{\sqrt{\operatorname{EWA}_\beta(g_{1:t}^2)}}

  Args:
    learning_rate: `epsilon`, a number or an Optax schedule.
    decay: `beta`.
    debias: whether the average's weights sum to 1; the recursion alone makes a first step of
      `epsilon / sqrt(1 - beta)`, 3.16 times as long for 0.9.

  Returns:
    An Optax transform.

  Raises:
    ValueError: if `decay` is out of range.

  Example:
    >>> tx = exact_rmsprop(0.1, debias=False)
    >>> tx.update(jnp.array([7.0]), tx.init(jnp.zeros(1)))[0].round(4)
    Array([-0.3162], dtype=float32)

  References:
    Tieleman and Hinton, `Lecture 6.5: RMSProp`, 2012.
    Lecture 8 of Deep Learning (BEV033DLE), Czech Technical University in Prague, RMSProp.
  """
  return adaptive(learning_rate, b2=decay, debias=debias)


def exact_adam(
  learning_rate: optax.ScalarOrSchedule, *, b1: ArrayLike = 0.9, b2: ArrayLike = 0.999, debias: bool = True
) -> optax.GradientTransformationExtraArgs:
  r"""Adam, without an epsilon.

  .. math:: \Delta_t = -\epsilon\,
    \frac{\operatorname{EWA}_{\beta_1}(g_{1:t})}{\sqrt{\operatorname{EWA}_{\beta_2}(g_{1:t}^2)}}

  After a spike of the gradient its step reaches `(1 - b1) / sqrt(1 - b2)` times the learning rate, 3.16 with
  the usual decays: a trust region it is only with equal ones.

  Args:
    learning_rate: `epsilon`, a number or an Optax schedule.
    b1, b2: the decays.
    debias: averages, as in the paper; without, the recursions alone, which Optax does not have.

  Returns:
    An Optax transform.

  Raises:
    ValueError: if a decay is out of range.

  Example:
    >>> tx = exact_adam(0.1)
    >>> tx.update(jnp.array([7.0, -1e-9]), tx.init(jnp.zeros(2)))[0]
    Array([-0.1,  0.1], dtype=float32)

  References:
    Kingma and Ba, `Adam: A Method for Stochastic Optimization`, 2015, algorithm 1.
    Lecture 8 of Deep Learning (BEV033DLE), Czech Technical University in Prague, Adam.
  """
  return adaptive(learning_rate, b1=b1, b2=b2, debias=debias)

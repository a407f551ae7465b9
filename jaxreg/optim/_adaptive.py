"""Adagrad, RMSProp and Adam as trust-region methods per coordinate, without an epsilon."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from jaxreg.optim._averages import check_decay
from jaxreg.optim._trust_region import unit_steps, with_learning_rate
from jaxreg.typing import Array


class AdaptiveState(NamedTuple):
  """The number of steps taken, and the averages."""

  count: Array
  averages: Any


def adaptive(
  learning_rate: optax.ScalarOrSchedule,
  *,
  b1: ArrayLike | None = None,
  b2: ArrayLike = 0.999,
  debias: bool = True,
  anneal: bool = False,
) -> optax.GradientTransformationExtraArgs:
  r"""Builds the optimizer that has Adagrad, RMSProp and Adam as special cases.

  .. math:: \Delta_t = -\eta\, \frac{E_{\beta_1}[g]}{\sqrt{E_{\beta_2}[g^2]}}
    \cdot \begin{cases} 1 / \sqrt{t} & \text{annealed} \\ 1 \end{cases}, \qquad 0/0 = 0

  No epsilon is added to the denominator, so the size of the step does not depend on the size of the
  gradients, however small. A coordinate without any gradient so far does not move. `b2=0.9` alone is RMSProp.

  Args:
    learning_rate: `eta`, a number or an Optax schedule.
    b1: decay of the numerator's average; `None` for the gradient itself.
    b2: decay of the denominator's average; 1 for the flat mean over all steps.
    debias: whether the weights of an average sum to 1, so that the first step is `-eta sign(g)`.
      Otherwise the averages are the recursion `m <- b m + (1 - b) g` from 0, and the first step is `(1 - b1)
      / sqrt(1 - b2)` times as large.
    anneal: whether to divide by the root of the number of steps.

  Example:
    >>> tx = adaptive(0.1, b1=0.9, b2=0.999)
    >>> tx.update(jnp.array([1e-20, -3.0, 0.0]), tx.init(jnp.zeros(3)))[0]
    Array([-0.1,  0.1, -0. ], dtype=float32)

  References:
    Tieleman and Hinton, `Lecture 6.5: RMSProp`, 2012.
    Lecture 8 of Deep Learning (BEV033DLE), Czech Technical University in Prague, Trust Region Problem.
  """
  check_decay(b1, "b1", debias)
  check_decay(b2, "b2", debias)
  inner = unit_steps("element", "l2", b1, b2, debias)

  def init(params: Any) -> AdaptiveState:
    return AdaptiveState(jnp.zeros((), jnp.int32), inner.init(params))

  def update(updates, state, params=None, **extra_args):
    new, averages = inner.update(updates, state.averages, params, **extra_args)
    count = jnp.asarray(optax.safe_increment(state.count))
    if anneal:
      new = jax.tree.map(lambda u: u / jnp.sqrt(count.astype(u.dtype)), new)
    return new, AdaptiveState(count, averages)

  return with_learning_rate(optax.GradientTransformationExtraArgs(init, update), learning_rate)


def exact_adagrad(
  learning_rate: optax.ScalarOrSchedule, *, anneal: bool = True
) -> optax.GradientTransformationExtraArgs:
  r"""Builds Adagrad without an epsilon, starting from an empty accumulator.

  .. math:: \Delta_t = -\frac{\eta}{\sqrt t}\, \frac{g_t}{\sqrt{\operatorname{Mean}(g_{1:t}^2)}}
    = -\eta\, \frac{g_t}{\sqrt{\sum_{s \le t} g_s^2}}

  `optax.adagrad` starts its accumulator at 0.1.

  Args:
    learning_rate: as in `adaptive`.
    anneal: whether to divide by the root of the number of steps, which makes the method converge; otherwise
      only the flat average remains.

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


def exact_adam(
  learning_rate: optax.ScalarOrSchedule, *, b1: ArrayLike = 0.9, b2: ArrayLike = 0.999, debias: bool = True
) -> optax.GradientTransformationExtraArgs:
  r"""Builds Adam without an epsilon.

  .. math:: \Delta_t = -\eta\,
    \frac{\operatorname{EWA}_{\beta_1}(g_{1:t})}{\sqrt{\operatorname{EWA}_{\beta_2}(g_{1:t}^2)}}

  After a spike of the gradient the step reaches `(1 - b1) / sqrt(1 - b2)` times the learning rate, 3.16 with
  the usual decays. So Adam is a trust-region method only with equal decays.

  Args:
    learning_rate: as in `adaptive`.
    b1, b2: the decays.
    debias: whether to use averages with weights of sum 1, as in the paper; otherwise the plain recursions,
      which Optax does not have.

  Example:
    >>> tx = exact_adam(0.1)
    >>> tx.update(jnp.array([7.0, -1e-9]), tx.init(jnp.zeros(2)))[0]
    Array([-0.1,  0.1], dtype=float32)

  References:
    Kingma and Ba, `Adam: A Method for Stochastic Optimization`, 2015, algorithm 1.
    Lecture 8 of Deep Learning (BEV033DLE), Czech Technical University in Prague, Adam.
  """
  return adaptive(learning_rate, b1=b1, b2=b2, debias=debias)

"""A norm penalty as a constraint; dual ascent finds its multiplier."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_range, check_wide
from jaxreg.typing import Array


class DualState(NamedTuple):
  """The dual state of one constraint.

  Attributes:
    multiplier: `alpha`, at least 0.
    mean: running mean of the penalty, biased by its start at 0.
    weight: total weight of the values in `mean`; the start has the rest, up to 1.
  """

  multiplier: Array
  mean: Array
  weight: Array


def dual_init(multiplier: ArrayLike = 0.0) -> DualState:
  """Returns the initial dual state, scalars in float32 or wider; `multiplier` is at least 0.

  Example:
    >>> dual_init().multiplier
    Array(0., dtype=float32)
  """
  check_range(multiplier, "multiplier", low=0)
  multiplier = check_wide(jnp.asarray(multiplier, jnp.result_type(float, multiplier)), "multiplier", shape=())
  return DualState(multiplier, jnp.zeros_like(multiplier), jnp.zeros_like(multiplier))


def lagrangian(loss: ArrayLike, penalty: ArrayLike, state: DualState, *, bound: ArrayLike) -> Array:
  r"""Computes the Lagrangian of a loss under the constraint that a penalty stays within a bound.

  .. math:: \mathcal{L} = J + \alpha (\Omega - k), \qquad
    \min_\theta \max_{\alpha \ge 0} \mathcal{L}

  The parameters minimise it. Its gradient is the gradient of the penalised loss with weight `alpha`. No
  gradient reaches the multiplier, which `dual_step` moves by ascent.

  Args:
    loss: `J`, a scalar.
    penalty: `Omega` at the same parameters, a scalar.
    state: the multiplier.
    bound: `k`.

  Returns:
    A scalar, float32 or wider.

  Example:
    >>> lagrangian(1.0, 5.0, dual_init(0.5), bound=4.0)
    Array(1.5, dtype=float32)

  References:
    Na, `Regularization for Deep Learning`, lecture, Chonbuk National University, norm penalties as
    constrained optimization.
  """
  loss = check_wide(loss, "loss", shape=())
  penalty = check_wide(penalty, "penalty", shape=())
  check_range(bound, "bound")
  return loss + jax.lax.stop_gradient(state.multiplier) * (penalty - bound)


def dual_step(
  state: DualState, penalty: ArrayLike, *, bound: ArrayLike, learning_rate: ArrayLike, decay: float = 0.0
) -> DualState:
  r"""Takes a dual ascent step: the multiplier rises if the penalty is above its bound and falls if below.

  .. math:: \alpha \leftarrow \max(0, \alpha + \rho (\bar\Omega - k))

  With `decay` the penalty is first averaged exponentially over steps, with a correction for the start. Use it
  for a constraint on a quantity measured on batches. At convergence `alpha (Omega - k)` is 0: a constraint
  that does not bind has multiplier 0.

  Args:
    state: from `dual_init` or the preceding step.
    penalty, bound: as in `lagrangian`, at the new parameters.
    learning_rate: `rho` > 0.
    decay: decay of the running mean, in [0, 1); 0 takes the last value.

  Example:
    >>> dual_step(dual_init(0.5), 5.0, bound=4.0, learning_rate=0.25).multiplier
    Array(0.75, dtype=float32)
    >>> dual_step(dual_init(0.5), 1.0, bound=4.0, learning_rate=0.25).multiplier
    Array(0., dtype=float32)

  References:
    Na, `Regularization for Deep Learning`, lecture, Chonbuk National University, norm penalties as
    constrained optimization.
  """
  check_range(bound, "bound")
  check_range(learning_rate, "learning_rate", low=0, open_low=True)
  check_range(decay, "decay", low=0, high=1, open_high=True)
  penalty = jax.lax.stop_gradient(check_wide(penalty, "penalty", shape=()))
  mean = decay * state.mean + (1 - decay) * penalty
  weight = decay * state.weight + (1 - decay)
  multiplier = jax.nn.relu(state.multiplier + learning_rate * (mean / weight - bound))
  return DualState(multiplier, mean, weight)

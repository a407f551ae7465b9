"""The window of an exponential average, and Adagrad's regret bound."""

from __future__ import annotations

import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_count, check_range, check_wide
from jaxreg.typing import Array


def ewa_weights(decay: ArrayLike, *, steps: int, debias: bool = True) -> Array:
  r"""Computes the weights of an exponential average of `steps` values, the oldest first.

  .. math:: w_s \propto \beta^{t - s}, \qquad \sum_s w_s = 1 \text{, or of the recursion } 1 - \beta^t

  Args:
    decay: `beta` in [0, 1]; 1 is the flat mean, and needs `debias`.
    steps: `t`.
    debias: whether the weights sum to 1; otherwise they belong to `m <- b m + (1 - b) g` from 0.

  Returns:
    `[steps]`, float32 or wider.

  Raises:
    ValueError: if `decay` is out of range or `steps` below 1.

  Example:
    >>> ewa_weights(0.5, steps=3), ewa_weights(0.5, steps=3, debias=False)
    (Array([0.14285715, 0.2857143 , 0.5714286 ], dtype=float32), Array([0.125, 0.25 , 0.5  ], dtype=float32))

  References:
    Lecture 8 of Deep Learning (BEV033DLE), Czech Technical University in Prague, practical solution.
  """
  check_range(decay, "decay", low=0, high=1)
  check_count(steps, "steps")
  decay = check_wide(jnp.asarray(decay, jnp.result_type(float, decay)), "decay", shape=())
  powers = decay ** jnp.arange(steps - 1, -1, -1)
  return powers / powers.sum() if debias else (1 - decay) * powers


def ewa_window(decay: ArrayLike, *, steps: ArrayLike | None = None) -> Array:
  r"""Computes how many values a flat mean needs for the variance of an exponential average.

  .. math:: \frac{(\sum_s w_s)^2}{\sum_s w_s^2}
    = \frac{1 + \beta}{1 - \beta} \cdot \frac{1 - \beta^t}{1 + \beta^t} \to \frac{1 + \beta}{1 - \beta}

  It is 19 for 0.9 and 1999 for 0.999, which the lecture rounds to 20 and 2000. The mean age of the averaged
  values, also called a window, is about half of it: `1 / (1 - decay)`.

  Args:
    decay: `beta` in [0, 1).
    steps: `t`, steps since the start; by default infinitely many.

  Returns:
    A scalar, float32 or wider.

  Raises:
    ValueError: if an argument is out of range.

  Example:
    >>> print(f"{ewa_window(0.9):.1f} {ewa_window(0.9, steps=1):.1f}")
    19.0 1.0

  References:
    Lecture 8 of Deep Learning (BEV033DLE), Czech Technical University in Prague, Adam.
  """
  check_range(decay, "decay", low=0, high=1)
  check_range(1 - jnp.asarray(decay), "1 - decay", low=0, open_low=True)
  decay = check_wide(jnp.asarray(decay, jnp.result_type(float, decay)), "decay")
  window = (1 + decay) / (1 - decay)
  if steps is None:
    return window
  check_range(steps, "steps", low=1)
  past = decay ** jnp.asarray(steps, decay.dtype)
  return window * (1 - past) / (1 + past)


def adagrad_regret_bound(gradients: ArrayLike, *, learning_rate: ArrayLike, diameter: ArrayLike) -> Array:
  r"""Computes the bound on Adagrad's regret against the best fixed parameters, for convex losses.

  .. math:: \sum_{t \le T} f_t(x_t) - f_t(x^*) \le
    \Bigl(\frac{D^2}{2 \epsilon} + \epsilon\Bigr) \sum_i \sqrt{\sum_{t \le T} g_{t,i}^2}

  It holds for any sequence of convex losses. For bounded gradients the right side grows as the root of `T`,
  so the mean loss comes within the order of `1 / sqrt(T)` of the best. The factor `1 / sqrt(t)` in front of a
  flat average guarantees this.

  Args:
    gradients: `[T, n]`, the gradients of the steps taken.
    learning_rate: `epsilon` > 0.
    diameter: `D`, the largest distance of a coordinate from its value in `x*` on the way.

  Returns:
    A scalar, float32 or wider.

  Raises:
    TypeError: if `gradients` are not floating.
    ValueError: if they are not `[T, n]` or an option is out of range.

  Example:
    >>> adagrad_regret_bound(jnp.ones((4, 1)), learning_rate=1.0, diameter=2.0)
    Array(6., dtype=float32)

  References:
    Duchi, Hazan and Singer, `Adaptive Subgradient Methods for Online Learning and Stochastic Optimization`,
    2011, Theorem 5.
    Lecture 8 of Deep Learning (BEV033DLE), Czech Technical University in Prague, Adagrad.
  """
  gradients = check_wide(gradients, "gradients")
  if gradients.ndim != 2:
    raise ValueError(f"gradients must be [T, n], got shape {gradients.shape}")
  check_range(learning_rate, "learning_rate", low=0, open_low=True)
  check_range(diameter, "diameter", low=0)
  factor = jnp.square(diameter) / (2 * jnp.asarray(learning_rate)) + learning_rate
  return factor * jnp.sqrt(jnp.square(gradients).sum(axis=0)).sum()

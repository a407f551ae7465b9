"""Averages with a power of the time as weight, whose length can be chosen after the training."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxreg._checks import check_ends, check_range
from jaxreg._errors import ArgumentError
from jaxreg.averaging._average import check_like, is_averaged, start, wide
from jaxreg.typing import Array, Params

MOST_PARTS = 4096  # of the time, in the least squares


class PowerEMAState(NamedTuple):
  """One average for each length, along a new first axis of the leaves, and the number of iterates."""

  averages: Params
  count: Array


class PowerEMA(NamedTuple):
  """Pure functions, as of an average, and `reconstruct`, `(states, *, length) -> params`."""

  init: Callable[[Params], PowerEMAState]
  update: Callable[[PowerEMAState, Params], PowerEMAState]
  params: Callable[[PowerEMAState], Params]
  reconstruct: Callable[..., Params]


def power_ema(*, lengths: tuple[float, float] = (0.05, 0.1)) -> PowerEMA:
  r"""Builds two averages of the iterates, from which the average of any other length follows later.

  .. math:: \bar\theta_t = \beta_t \bar\theta_{t-1} + (1 - \beta_t)\, \theta_t, \quad
    \beta_t = \Bigl(1 - \frac1t\Bigr)^{\gamma + 1}, \qquad
    \bar\theta_t = \sum_{i=1}^t w_{t,i}\, \theta_i, \quad
    w_{t,i} = \frac{i^{\gamma + 1} - (i - 1)^{\gamma + 1}}{t^{\gamma + 1}}

  The length is the standard deviation of these weights over the time, as a share of the time so far:
  :math:`\sigma = \sqrt{\gamma + 1}\, (\gamma + 2)^{-1} (\gamma + 3)^{-1/2}`. The average scales with the
  training and forgets its start. Keep the states of several steps, such as those of checkpoints. Then

  .. math:: \hat\theta = \frac{\sum_k x_k \bar\theta_k}{\sum_k x_k}, \qquad
    x = \arg\min_x \Bigl\| \sum_k x_k w_k - w \Bigr\|^2

  over all kept averages `k` is the average whose weights are nearest to the wanted weights `w`; like those of
  any average, its weights sum to 1.

  Args:
    lengths: two different lengths in (0, 0.288]; the largest one is that of the plain mean.

  Returns:
    `init`, `update` and `params`, as `jaxreg.averaging` explains, and `reconstruct`, `(states, *, length) ->
    params`, the average of another length at the last of these states. `params` gives the average of the
    first length. Under `jit`, `reconstruct` needs states with a known `count`, because it computes `x` in
    float64. States with axes that `jax.vmap` added, such as one of seeds, give an average for each seed. A
    state has two copies of the parameters. Leaves that are not floating are the newest ones.

  Example:
    >>> average = power_ema(lengths=(0.1, 0.2))
    >>> state = average.init(jnp.zeros(1))
    >>> states = []
    >>> for step in range(1, 101):
    ...   state = average.update(state, jnp.full(1, step / 100))
    ...   if step % 10 == 0:
    ...     states.append(state)
    >>> average.reconstruct(states, length=0.15).round(2)  # the mean of the weights
    Array([0.83], dtype=float32)

  References:
    Karras et al., `Analyzing and Improving the Training Dynamics of Diffusion Models`, 2024, section 3 and
    appendix C. Its inner products are integrals over a continuous time; here they are sums over the iterates.
  """
  first, second = check_ends(lengths, "lengths")
  gammas = _exponent(first, "lengths"), _exponent(second, "lengths")
  if first == second:
    raise ArgumentError("lengths", f"must be two different numbers, got {lengths}")
  return PowerEMA(
    _init,
    functools.partial(_update, gammas=gammas),
    _first,
    functools.partial(_reconstruct, gammas=gammas),
  )


def _exponent(length: float, name: str) -> float:
  """Computes `gamma` of a length; a length of 1 / sqrt(12) is the plain mean, with gamma 0."""
  check_range(length, name, low=0, high=12**-0.5, open_low=True)
  # (gamma + 2)^2 (gamma + 3) length^2 = gamma + 1.
  inverse = float(length) ** -2
  roots = np.roots([1, 7, 16 - inverse, 12 - inverse])
  return max(float(roots.real.max()), 0.0)


def _init(params: Params) -> PowerEMAState:
  copy, count = start(params)

  def twice(leaf: Array) -> Array:
    return jnp.stack([leaf, leaf]) if is_averaged(leaf) else leaf

  return PowerEMAState(jax.tree.map(twice, copy), count)


def _first(state: PowerEMAState) -> Params:
  return _combined(state, (1.0, 0.0))


def _combined(state: PowerEMAState, shares: Sequence[float] | np.ndarray) -> Params:
  """Adds the averages of a state, each times its share; `jax.vmap` puts axes before the pair's."""
  axis = jnp.ndim(state.count)

  def combine(leaf: Array) -> Array:
    if not is_averaged(leaf):
      return leaf
    first, second = (jax.lax.index_in_dim(leaf, number, axis, keepdims=False) for number in (0, 1))
    return shares[0] * first + shares[1] * second

  return jax.tree.map(combine, state.averages)


def _update(state: PowerEMAState, params: Params, *, gammas: tuple[float, ...]) -> PowerEMAState:
  params = wide(check_like(params, jax.eval_shape(_first, state)))
  count = state.count + 1
  # log1p keeps the digits of 1 - 1 / t; the first update replaces the copy.
  time = jnp.asarray(count, jnp.result_type(float))
  moves = [-jnp.expm1((gamma + 1) * jnp.log1p(-1 / time)) for gamma in gammas]

  def moved(old: Array, new: Array) -> Array:
    if not is_averaged(new):
      return new
    new = jax.lax.stop_gradient(new)
    averages = [mean + move * (new - mean) for mean, move in zip(old, moves, strict=True)]
    return jnp.where(count > 1, jnp.stack(averages), new).astype(old.dtype)

  return PowerEMAState(jax.tree.map(moved, state.averages, params), count)


def _reconstruct(states: Sequence[PowerEMAState], *, length: float, gammas: tuple[float, ...]) -> Params:
  states = list(states)
  if not states:
    raise ArgumentError("states", "must hold at least one state, got none")
  times = [_time(state) for state in states]
  shares = shares_of(times, gammas, length)
  parts = [_combined(state, row) for state, row in zip(states, shares, strict=True)]

  def total(*leaves: Array) -> Array:
    return sum(leaves[1:], start=leaves[0]) if is_averaged(leaves[0]) else leaves[-1]

  return jax.tree.map(total, *parts)


def _time(state: PowerEMAState) -> int:
  """Returns the count of a state, which all seeds of a state with seeds must share."""
  counts = np.unique(np.asarray(state.count))
  if counts.size != 1:
    raise ArgumentError("states", f"must have one count for all seeds, got {counts.tolist()}")
  return int(counts[0])


def shares_of(times: Sequence[int], gammas: Sequence[float], length: float) -> np.ndarray:
  """Computes `x`, `[times, 2]`, for an average of this length at the last time."""
  if min(times) < 1 or max(times) != times[-1]:
    raise ArgumentError("states", f"must have at least one iterate each, the last the most, got {[*times]}")
  gamma = _exponent(length, "length")
  # Weights of single iterates, or of parts of the time if there are very many iterates.
  edges = np.linspace(0, times[-1], min(times[-1], MOST_PARTS) + 1).round()
  edges = np.union1d(edges, times)
  basis = np.stack([_weights(edges, time, each) for time in times for each in gammas], axis=1)
  wanted, scale = _weights(edges, times[-1], gamma), 1 / np.sqrt(np.diff(edges))
  shares, *_ = np.linalg.lstsq(scale[:, None] * basis, scale * wanted, rcond=1e-10)
  return (shares / (basis.sum(axis=0) @ shares)).reshape(len(times), len(gammas))


def _weights(edges: np.ndarray, time: int, gamma: float) -> np.ndarray:
  """Computes the weight of the iterates between edges in the average at a time."""
  return np.diff(np.minimum(edges / time, 1) ** (gamma + 1))

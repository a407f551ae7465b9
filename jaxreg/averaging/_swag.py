"""SWAG: a Gaussian over parameters from the iterates of the training."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_count, check_key, check_option
from jaxreg._sharding import placed_like
from jaxreg.averaging._average import Mean, check_like, is_averaged, kept_params, start, wide
from jaxreg.averaging._swa import update_mean
from jaxreg.typing import Array, Key, Params


class SWAGState(NamedTuple):
  """The moments of the iterates so far, in at least float32.

  `params` are the mean, `squares` the sums of squared deviations from it, and `deviations` `[rank, ...]` the
  last iterates' distances to the mean of their time. Leaves that are not floating have None for both.
  """

  params: Params
  squares: Params
  deviations: Params
  count: Array


class SWAG(NamedTuple):
  """The pure functions of an average, and `sample`, `(key, state) -> params`."""

  init: Callable[[Params], SWAGState]
  update: Callable[[SWAGState, Params], SWAGState]
  params: Callable[[SWAGState], Params]
  sample: Callable[[Key, SWAGState], Params]


def swag(*, rank: int = 20, scale: ArrayLike = 1.0) -> SWAG:
  r"""Builds the Gaussian of the iterates: update it, for instance, at the end of an epoch.

  .. math:: \bar\theta_n = \bar\theta_{n-1} + \frac{\theta_n - \bar\theta_{n-1}}n, \quad
    S_n = S_{n-1} + (\theta_n - \bar\theta_{n-1}) (\theta_n - \bar\theta_n), \quad
    D_{n \bmod K} = \theta_n - \bar\theta_n

  .. math:: \theta = \bar\theta + \sqrt{\frac s2}\, \Bigl(\sqrt{S / n} \odot z_1
    + \frac1{\sqrt{K - 1}} D^\top z_2\Bigr), \qquad z_1, z_2 \sim \mathcal N(0, I)

  The mean is that of `swa`. `S / n` is the source's :math:`\overline{\theta^2} - \bar\theta^2`, without its
  loss of digits. `ensembles.arithmetic` averages the predictions of several samples. Each sample needs
  BatchNorm statistics of its own, by `batch_norm_statistics`.

  Args:
    rank: `K`, how many iterates, at least 2, give the covariance in addition to its diagonal; the state has
      `rank + 2` copies.
    scale: `s`, the factor of the covariance, at least 0; 1 in the source.

  Returns:
    `init`, `update` and `params`, as `jaxreg.averaging` explains, and `sample`, `(key, state) -> params`.
    A sample of a state with fewer than two iterates is their mean. Leaves that are not floating are the
    newest ones.

  Example:
    >>> average = swag(rank=2, scale=0.0)
    >>> state = average.init(jnp.zeros(1))
    >>> for params in (jnp.array([1.0]), jnp.array([3.0])):
    ...   state = average.update(state, params)
    >>> average.params(state), state.squares, average.sample(jax.random.key(0), state)
    (Array([2.], dtype=float32), Array([2.], dtype=float32), Array([2.], dtype=float32))

  References:
    Maddox et al., `A Simple Baseline for Bayesian Uncertainty in Deep Learning`, 2019, algorithm 1 and Eq. 1.
  """
  check_count(rank, "rank", least=2)
  check_option(scale, "scale", (), low=0)
  return SWAG(
    functools.partial(_init, rank=rank), _update, kept_params, functools.partial(_sample, scale=scale)
  )


def _init(params: Params, *, rank: int) -> SWAGState:
  mean, count = start(params)
  return SWAGState(mean, _zeros(mean), _zeros(mean, rank), count)


def _zeros(params: Params, *first: int) -> Params:
  """Returns zeros `[*first, ...]` for each averaged leaf, and None for the others."""

  def zeros(leaf: Array) -> Array | None:
    if not is_averaged(leaf):
      return None
    return placed_like(jnp.zeros((*first, *leaf.shape), leaf.dtype), leaf)

  return jax.tree.map(zeros, params)


def _update(state: SWAGState, params: Params) -> SWAGState:
  new = wide(check_like(params, state.params))
  mean, count = update_mean(Mean(state.params, state.count), new)
  # The copy at the start does not count as an iterate.
  old = jax.tree.map(lambda old, mean: jnp.where(state.count > 0, old, mean), state.params, mean)

  def squares(total: Array | None, leaf: Array, old: Array, mean: Array) -> Array | None:
    return None if total is None else total + (leaf - old) * (leaf - mean)

  def deviations(kept: Array | None, leaf: Array, mean: Array) -> Array | None:
    # A restored state may have arrays of NumPy, which have no `at`.
    return None if kept is None else jnp.asarray(kept).at[state.count % len(kept)].set(leaf - mean)

  return SWAGState(
    mean,
    jax.tree.map(squares, state.squares, new, old, mean, is_leaf=_is_none),
    jax.tree.map(deviations, state.deviations, new, mean, is_leaf=_is_none),
    count,
  )


def _sample(key: Key, state: SWAGState, *, scale: ArrayLike) -> Params:
  for_diagonal, for_rest = jax.random.split(check_key(key))
  leaves, tree = jax.tree.flatten(state.params)
  squares, deviations = (
    jax.tree.leaves(part, is_leaf=_is_none) for part in (state.squares, state.deviations)
  )
  rank = next((len(kept) for kept in deviations if kept is not None), 2)
  number = jnp.minimum(state.count, rank)
  rest = jax.random.normal(for_rest, (rank,))
  drawn = []
  for leaf, total, kept, own in zip(leaves, squares, deviations, jax.random.split(for_diagonal, len(leaves))):
    if total is None:
      drawn.append(leaf)
      continue
    deviation = jnp.sqrt(total / jnp.maximum(state.count, 1))
    noise = deviation * jax.random.normal(own, leaf.shape, leaf.dtype)
    # Columns that are not filled yet are 0.
    noise += jnp.tensordot(rest.astype(leaf.dtype), kept, 1) / jnp.sqrt(jnp.maximum(number - 1, 1)).astype(
      leaf.dtype
    )
    drawn.append(leaf + jnp.sqrt(jnp.asarray(scale, leaf.dtype) / 2) * noise)
  return tree.unflatten(drawn)


def _is_none(leaf: Array | None) -> bool:
  return leaf is None

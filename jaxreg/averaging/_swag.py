"""SWAG: a Gaussian over parameters from the iterates of the training."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_count, check_key, check_option, check_range, key_first
from jaxreg._sharding import placed_like
from jaxreg.averaging._averaged_leaves import Mean, is_averaged, wide
from jaxreg.averaging._swa import swa_update
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


def swag_init(params: Params, *, rank: int = 20) -> SWAGState:
  """Returns a state without iterates.

  Args:
    params: any pytree of arrays.
    rank: how many iterates, at least 2, the covariance keeps beside its diagonal; the state has `rank + 2`
      copies.

  Example:
    >>> swag_init(jnp.ones(3), rank=4).deviations.shape
    (4, 3)
  """
  check_count(rank, "rank")
  check_range(rank, "rank", low=2)
  start = jax.tree.map(jnp.copy, wide(params))
  zeros = lambda *first: jax.tree.map(
    lambda leaf: (
      placed_like(jnp.zeros((*first, *leaf.shape), leaf.dtype), leaf) if is_averaged(leaf) else None
    ),
    start,
  )
  return SWAGState(start, zeros(), zeros(rank), jnp.zeros((), jnp.int32))


def swag_update(state: SWAGState, params: Params) -> SWAGState:
  r"""Adds one iterate, for instance at the end of an epoch.

  .. math:: \bar\theta_n = \bar\theta_{n-1} + \frac{\theta_n - \bar\theta_{n-1}}n, \quad
    S_n = S_{n-1} + (\theta_n - \bar\theta_{n-1}) (\theta_n - \bar\theta_n), \quad
    D_{n \bmod K} = \theta_n - \bar\theta_n

  The mean is `swa_update`. `S / n` is the source's :math:`\overline{\theta^2} - \bar\theta^2`, without its
  loss of digits.

  Args:
    state: from `swag_init` or the preceding update.
    params: the new iterate. Leaves that are not floating replace the old ones.

  Example:
    >>> state = swag_init(jnp.zeros(1), rank=2)
    >>> for params in (jnp.array([1.0]), jnp.array([3.0])):
    ...   state = swag_update(state, params)
    >>> state.params, state.squares
    (Array([2.], dtype=float32), Array([2.], dtype=float32))

  References:
    Maddox et al., `A Simple Baseline for Bayesian Uncertainty in Deep Learning`, 2019, algorithm 1.
  """
  new = wide(params)
  mean, count = swa_update(Mean(state.params, state.count), new)
  # The copy from `swag_init` is no iterate.
  old = jax.tree.map(lambda old, mean: jnp.where(state.count > 0, old, mean), state.params, mean)
  none = lambda leaf: leaf is None

  def squares(total: Array | None, leaf: Array, old: Array, mean: Array) -> Array | None:
    return None if total is None else total + (leaf - old) * (leaf - mean)

  def deviations(kept: Array | None, leaf: Array, mean: Array) -> Array | None:
    return None if kept is None else kept.at[state.count % len(kept)].set(leaf - mean)

  return SWAGState(
    mean,
    jax.tree.map(squares, state.squares, new, old, mean, is_leaf=none),
    jax.tree.map(deviations, state.deviations, new, mean, is_leaf=none),
    count,
  )


@key_first
def swag_sample(key: Key, state: SWAGState, *, scale: ArrayLike = 1.0) -> Params:
  r"""Draws parameters from the Gaussian of the iterates.

  .. math:: \theta = \bar\theta + \sqrt{\frac s2}\, \Bigl(\sqrt{S / n} \odot z_1
    + \frac1{\sqrt{K - 1}} D^\top z_2\Bigr), \qquad z_1, z_2 \sim \mathcal N(0, I)

  `K` is the number of deviations in the state, at most its rank. `ensembles.arithmetic` averages the
  predictions of several draws. Each draw needs BatchNorm statistics of its own, by `batch_norm_statistics`.

  Args:
    key: one draw of `z_1` and one of `z_2`.
    state: with at least two iterates; with fewer, the draw is their mean.
    scale: `s`, the factor of the covariance, at least 0; 1 in the source.

  Returns:
    Parameters like `state.params`.

  Example:
    >>> state = swag_init(jnp.zeros(1), rank=2)
    >>> for params in (jnp.array([1.0]), jnp.array([3.0])):
    ...   state = swag_update(state, params)
    >>> swag_sample(jax.random.key(0), state, scale=0.0)
    Array([2.], dtype=float32)

  References:
    Maddox et al., `A Simple Baseline for Bayesian Uncertainty in Deep Learning`, 2019, Eq. 1.
  """
  check_option(scale, "scale", (), low=0)
  for_diagonal, for_rest = jax.random.split(check_key(key))
  leaves, tree = jax.tree.flatten(state.params)
  none = lambda leaf: leaf is None
  squares, deviations = (jax.tree.leaves(part, is_leaf=none) for part in (state.squares, state.deviations))
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

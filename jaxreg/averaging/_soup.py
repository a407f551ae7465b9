"""Model soups: the mean of several trained networks, or of those that make it better."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_choice, check_wide
from jaxreg.averaging._average import Average, Mean, check_like, kept_params, start
from jaxreg.averaging._swa import swa, update_mean
from jaxreg.typing import Array, Params


class SoupState(NamedTuple):
  """The mean of the networks that were taken, their number, and the score of this mean."""

  params: Params
  count: Array
  score: Array


def soup(
  score_fn: Callable[[Params], ArrayLike] | None = None, *, mode: Literal["min", "max"] = "min"
) -> Average:
  r"""Builds the mean of several networks: update it with each, the best one first.

  .. math:: \bar\theta' = \bar\theta + \frac{\theta - \bar\theta}{n + 1}, \qquad
    \text{taken} \iff s(\bar\theta') \le s(\bar\theta) \quad
    (\text{with mode "max": } s(\bar\theta') \ge s(\bar\theta))

  This is the greedy soup. Because the first network is taken as it is, the soup is never worse than the best
  network on the data of `score_fn`. Measure the soup on other data. Without `score_fn` every network is
  taken, and the soup is uniform: the same mean as `swa`.

  Networks lie in one valley of the loss if they began from the same trained network. The mean of networks
  that began from different random values is mostly as bad as a random one.

  Args:
    score_fn: `params -> s`, a scalar such as the error on validation data; NaN refuses a network. It may be
      any Python function outside of `jit`. With BatchNorm, let it compute the statistics of `params` by
      `batch_norm_statistics`.
    mode: whether a smaller or a larger score is better.

  Returns:
    `init`, `update` and `params`, as `jaxreg.averaging` explains. `init` copies the parameters, in float32 or
    wider, and counts them as no network. A state has `params`, the soup; `count`, how many networks it took;
    and with `score_fn` its `score`, at first inf or -inf. Leaves that are not floating come from the newest
    network that was taken.

  Example:
    >>> average = soup(lambda params: (params**2).sum())
    >>> state = average.init(jnp.zeros(1))
    >>> for params in (jnp.array([1.0]), jnp.array([2.0]), jnp.array([-2.0])):  # the second one is refused
    ...   state = average.update(state, params)
    >>> average.params(state), state.count
    (Array([-0.5], dtype=float32), Array(2, dtype=int32))

  References:
    Wortsman et al., `Model soups: averaging weights of multiple fine-tuned models improves accuracy without
    increasing inference time`, 2022, recipe 1.
  """
  check_choice(mode, "mode", ("min", "max"))
  if score_fn is None:
    return swa()
  return Average(
    functools.partial(_init, mode=mode),
    functools.partial(_update, score_fn=score_fn, mode=mode),
    kept_params,
  )


def _init(params: Params, *, mode: Literal["min", "max"]) -> SoupState:
  worst = jnp.asarray(jnp.inf if mode == "min" else -jnp.inf, jnp.result_type(float))
  return SoupState(*start(params), worst)


def _update(
  state: SoupState,
  params: Params,
  *,
  score_fn: Callable[[Params], ArrayLike],
  mode: Literal["min", "max"],
) -> SoupState:
  mean, count = update_mean(Mean(state.params, state.count), check_like(params, state.params))
  sign = 1 if mode == "min" else -1
  score = check_wide(score_fn(mean), "the result of score_fn", shape=()).astype(state.score.dtype)
  taken = sign * score <= sign * state.score  # NaN is never taken

  def chosen(new: Array, old: Array) -> Array:
    return jnp.where(taken, new, old)

  return jax.tree.map(chosen, SoupState(mean, count, score), state)

"""Diagonal and trace of an operator from products with random signs, and exactly from unit vectors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg.flatness._common import analysis, as_pytree, same, widened
from jaxreg.flatness._streamed import Streamed, iterate
from jaxreg.flatness._subset import check_no_tree
from jaxreg.typing import Array, Key, check_count, check_floating, check_key


class Estimate(NamedTuple):
  """A stochastic estimate: its mean and the standard error of that mean."""

  mean: Array
  standard_error: Array


@analysis
def operator_diagonal(
  matvec: Callable[[Array], Array],
  like: ArrayLike | None = None,
  *,
  key: Key | None = None,
  num: int = 32,
) -> Estimate:
  r"""Estimates the diagonal of a linear operator with its standard error, or computes it exactly.

  .. math:: \operatorname{diag}(A) \approx \frac1m \sum_j z_j \odot A z_j, \qquad z_j \in \{-1, 1\}^{size}

  Its memory does not grow with the number of products.

  Args:
    matvec: `[size] -> [size]`: a `Curvature`, the result of `hvp` or `gauss_newton`, or any function.
    like: `[size]`, an array with the shape and dtype of a vector; by default `matvec.like`.
    key: draws the signs. Without a key, `size` products with unit vectors give the exact diagonal.
    num: number of products with signs, at least 2.

  Returns:
    `Estimate` of `[size]`. The variance of an entry is the sum of the squares of the others in its row, over
    `num`. The error of an exact diagonal is 0.

  Raises:
    TypeError: if `like` is missing or not floating, `key` no typed key or `num` no integer.
    ValueError: if `like` is no vector, or `num` is below 2.

  Example:
    >>> operator_diagonal(lambda v: jnp.array([1.0, 5.0]) * v, jnp.zeros(2)).mean
    Array([1., 5.], dtype=float32)

  References:
    Bekas, Kokiopoulou and Saad, `An Estimator for the Diagonal of a Matrix`, 2007.
  """
  like = getattr(matvec, "like", None) if like is None else like
  if like is None:
    raise TypeError("like must be a vector [size] if matvec has no attribute like, got None")
  check_no_tree(like, "like", "a vector [size], as hvp(...).like is", "flat")
  like = widened(check_floating(like, "like"))
  if like.ndim != 1 or not like.size:
    raise ValueError(f"like must be a vector [size], got shape {like.shape}")
  if key is not None:
    check_key(key)
  check_count(num, "num")
  if num < 2:
    raise ValueError(f"num must be at least 2, got {num}")
  streamed = isinstance(matvec, Streamed)
  matvec = matvec if streamed else as_pytree(matvec)
  if key is None:
    exact = (_exact_of if streamed else _exact)(matvec, like)
    return Estimate(exact, jnp.zeros_like(exact))
  return (_signs_of if streamed else _signs)(num, matvec, like, key)[0]


def hutchinson(
  matvec: Streamed, like: Array, key: Key, num: int, owners: Array | None = None, groups: int = 0
) -> tuple[Estimate, Estimate]:
  """Returns diagonal and trace by products on the host, one trace for each owner of entries if given."""
  return _signs_of(num, matvec, like, key, owners, () if owners is None else (groups,))


def _unit(number: Array, state: Array) -> Array:
  return jnp.zeros_like(state).at[number].set(1)


def _keep_entry(number: Array, state: Array, product: Array) -> Array:
  return state.at[number].set(product[number])


def _exact_of(matvec, like):
  return iterate(matvec, like.size, _unit, _keep_entry, jnp.zeros_like(like))


_exact = jax.jit(_exact_of)


def _sign(number: Array, state: tuple[Any, ...]) -> Array:
  mean, key = state[0], state[-1]
  return jax.random.rademacher(jax.random.fold_in(jax.random.clone(key), number), mean.shape, mean.dtype)


def _add_probe(number: Array, state: tuple[Any, ...], product: Array) -> tuple[Any, ...]:
  mean, squares, traces, owners, key = state
  entries = _sign(number, state) * product
  away = entries - mean
  mean = mean + away / (number + 1)
  sums = entries.sum() if owners is None else jax.ops.segment_sum(entries, owners, traces.shape[1])
  return mean, squares + away * (entries - mean), traces.at[number].set(sums), owners, key


def _signs_of(num, matvec, like, key, owners=None, groups=()):
  # Two running sums instead of all probes: the variance is that of Welford, 1962.
  zeros = lambda: jnp.zeros_like(like)
  state = (zeros(), zeros(), jnp.zeros((num, *groups), like.dtype), owners, same(key))
  mean, squares, traces, *_ = iterate(matvec, num, _sign, _add_probe, state)
  diagonal = Estimate(mean, jnp.sqrt(squares / (num * (num - 1))))
  return diagonal, Estimate(traces.mean(axis=0), traces.std(axis=0, ddof=1) / math.sqrt(num))


_signs = jax.jit(_signs_of, static_argnums=0)

"""Trace and diagonal of an operator: from products with random signs, or exactly from unit vectors."""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._analyses import full_precision
from jaxreg._checks import check_count, check_key
from jaxreg.flatness._products import LinearOperator, Matvec, as_operator
from jaxreg.flatness._vectors import Vector, draw
from jaxreg.typing import Array, Key


class Estimate(NamedTuple):
  """A stochastic estimate: its mean and the standard error of that mean."""

  mean: Array
  standard_error: Array


@full_precision
def operator_trace(
  matvec: Matvec, like: ArrayLike | None = None, *, key: Key, num_samples: int = 32
) -> Estimate:
  r"""Estimates the trace of a symmetric operator, with its standard error.

  .. math:: \mathrm{Tr}(A) \approx \frac1m \sum_j z_j^\top A z_j, \qquad z_j \in \{-1, 1\}^{size}

  Args:
    matvec: `[size] -> [size]`, symmetric: a `Curvature`, the result of `hvp`, or any function.
    like: `[size]`, an array with the shape and dtype of a vector; by default `matvec.like`.
    key: draws the probes.
    num_samples: number of probes and products, at least 2.

  Returns:
    `mean` and `standard_error`.

  Example:
    >>> operator_trace(lambda v: jnp.array([1.0, 5.0]) * v, jnp.zeros(2), key=jax.random.key(0)).mean
    Array(6., dtype=float32)

  References:
    Hutchinson, `A stochastic estimator of the trace of the influence matrix`, 1989.
  """
  operator = as_operator(matvec, like)
  return estimate_mean(sample_traces(operator, key, num_samples).sum(axis=1))


def sample_traces(operator: LinearOperator, key: Key, num_samples: int) -> Array:
  """Samples the trace of the block of each array of a vector, `[num_samples, arrays]`."""
  check_key(key)
  check_count(num_samples, "num_samples", least=2)
  return operator.run(_probe, (num_samples, False), key)[0]


def sample_diagonals(
  operator: LinearOperator, key: Key, num_samples: int
) -> tuple[Array, tuple[Estimate, ...]]:
  """Samples traces as `sample_traces`, and also estimates the diagonal, in the arrays of a vector."""
  check_key(key)
  check_count(num_samples, "num_samples", least=2)
  traces, mean, squares = operator.run(_probe, (num_samples, True), key)
  factor = num_samples * (num_samples - 1)
  return traces, tuple(Estimate(x, jnp.sqrt(y / factor)) for x, y in zip(mean, squares, strict=True))


@full_precision
def operator_diagonal(
  matvec: Matvec,
  like: ArrayLike | None = None,
  *,
  key: Key | None = None,
  num_samples: int = 32,
) -> Estimate:
  r"""Estimates the diagonal of a linear operator with its standard error, or computes it exactly.

  .. math:: \operatorname{diag}(A) \approx \frac1m \sum_j z_j \odot A z_j, \qquad z_j \in \{-1, 1\}^{size}

  Args:
    matvec, like: as in `operator_trace`; it need not be symmetric.
    key: draws the signs. Without a key, `size` products with unit vectors give the exact diagonal.
    num_samples: number of products with signs, at least 2.

  Returns:
    `mean` and `standard_error`, `[size]`. The variance of an entry is the sum of the squares of the other
    entries in its row, divided by `num_samples`. The error of an exact diagonal is 0.

  Example:
    >>> operator_diagonal(lambda v: jnp.array([1.0, 5.0]) * v, jnp.zeros(2)).mean
    Array([1., 5.], dtype=float32)

  References:
    Bekas, Kokiopoulou and Saad, `An Estimator for the Diagonal of a Matrix`, 2007.
  """
  operator = as_operator(matvec, like)
  check_count(num_samples, "num_samples", least=2)
  if key is None:
    exact = operator.run(_exact_diagonal, ())
    return Estimate(exact, jnp.zeros_like(exact))
  (diagonal,) = sample_diagonals(operator, key, num_samples)[1]
  return diagonal


def estimate_mean(samples: Array) -> Estimate:
  """Estimates the mean over the first axis, with its standard error."""
  return Estimate(samples.mean(axis=0), samples.std(axis=0, ddof=1) / math.sqrt(len(samples)))


def _exact_diagonal(operator: LinearOperator) -> Array:
  def step(number: Array | int, diagonal: Array) -> Array:
    (product,) = operator((_unit_vector(diagonal, number),))
    return _with_entry(diagonal, product, number)

  (like,) = operator.like
  return operator.for_each(0, like.size, step, jnp.zeros_like(like))


@jax.jit
def _unit_vector(like: Array, number: Array) -> Array:
  return jnp.zeros_like(like).at[number].set(1)


@jax.jit
def _with_entry(diagonal: Array, product: Array, number: Array) -> Array:
  return diagonal.at[number].set(product[number])


class Probes(NamedTuple):
  """What is kept of the products with random signs."""

  traces: Array  # `[num_samples, arrays]`
  mean: Vector  # of the diagonal; empty without a diagonal, as is the next
  squares: Vector  # the sum of squared deviations from the mean


def _probe(operator: LinearOperator, num_samples: int, with_diagonal: bool, key: Key) -> Probes:
  """Multiplies vectors of random signs."""

  def step(number: Array | int, probes: Probes) -> Probes:
    signs = draw(jax.random.rademacher, jax.random.fold_in(jax.random.clone(key), number), operator.like)
    return _with_probe(probes, number, signs, operator(signs))

  like = operator.like
  diagonal_like = like if with_diagonal else ()
  traces = jnp.zeros((num_samples, len(like)), jnp.result_type(*like))
  mean, squares = (tuple(jnp.zeros_like(x) for x in diagonal_like) for _ in range(2))
  return operator.for_each(0, num_samples, step, Probes(traces, mean, squares))


@partial(jax.jit, donate_argnums=0)
def _with_probe(probes: Probes, number: Array, signs: Vector, product: Vector) -> Probes:
  entries = tuple(z * x for z, x in zip(signs, product, strict=True))
  traces = probes.traces.at[number].set(jnp.stack([x.sum() for x in entries]))
  if not probes.mean:
    return probes._replace(traces=traces)
  # Two running sums instead of all probes, by Welford's recurrence (1962).
  mean, squares = [], []
  for x, old, square in zip(entries, probes.mean, probes.squares, strict=True):
    new = old + (x - old) / (number + 1)
    mean.append(new)
    squares.append(square + (x - old) * (x - new))
  return Probes(traces, tuple(mean), tuple(squares))

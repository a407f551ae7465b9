"""Proper scores of predicted log-probabilities, and the sum over batches."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxreg._sharding import entries
from jaxreg.calibration._weights import Examples, predictions
from jaxreg.typing import Array


def nll(
  log_probs: ArrayLike, labels: ArrayLike, *, weights: ArrayLike | None = None, where: ArrayLike | None = None
) -> tuple[Array, Array]:
  r"""Computes the negative log-likelihood as `(sum, count)`.

  .. math:: \sum_i w_i \bigl(-\log p_{i, y_i}\bigr), \quad \sum_i w_i

  Args:
    log_probs: `[..., classes]`, floating.
    labels: `[...]`, integer.
    weights: `[...]`, default 1; an example of weight 0 has no effect, whatever it contains.
    where: `[...]`, bool: which examples count; the same as a weight of 0 for all others.

  Returns:
    Two scalars, the sum in nats; it is NaN for a traced label out of range.

  Example:
    >>> nll(jnp.log(jnp.array([[0.5, 0.5]])), jnp.array([0]))
    (Array(0.6931472, dtype=float32), Array(1., dtype=float32))
  """
  examples = predictions(log_probs, labels, weights, where)
  picked = entries(examples.log_probs, examples.labels)[..., 0]
  return -(examples.weights * picked).sum(), examples.counts.sum()


def brier(
  log_probs: ArrayLike, labels: ArrayLike, *, weights: ArrayLike | None = None, where: ArrayLike | None = None
) -> tuple[Array, Array]:
  r"""Computes the multi-class Brier score as `(sum, count)`; each example's score lies in [0, 2].

  .. math:: \sum_i w_i \sum_k (p_{ik} - y_{ik})^2, \quad \sum_i w_i

  Args:
    log_probs, labels, weights, where: as in `nll`.

  Returns:
    Two scalars; the sum is NaN for a traced label out of range.

  Example:
    >>> brier(jnp.log(jnp.array([[0.5, 0.5]])), jnp.array([0]))
    (Array(0.5, dtype=float32), Array(1., dtype=float32))

  References:
    Brier, `Verification of forecasts expressed in terms of probability`, 1950.
  """
  return _brier(predictions(log_probs, labels, weights, where))


@functools.partial(jax.jit, inline=True)  # one program for an eager call
def _brier(examples: Examples) -> tuple[Array, Array]:
  """Computes the sum of the scores and of the weights."""
  log_probs, labels, weights, counts = examples
  error = jnp.exp(log_probs) - jax.nn.one_hot(labels, log_probs.shape[-1], dtype=log_probs.dtype)
  return (weights * (error**2).sum(axis=-1)).sum(), counts.sum()


def merge(total: Any, new: Any) -> Any:
  """Adds the sums of a batch to a total in float64 on the host, so that any number of batches merges exactly.

  A total in float32 drifts: after 2**24 examples, it no longer counts a single one.

  Args:
    total: what this function returned for the earlier batches, or None before the first.
    new: the sums of a batch: any tree of arrays, as from `nll` or `ece_bins`.

  Returns:
    The same tree of float64 NumPy arrays. Functions of sums, such as `ece`, take it.

  Raises:
    ValueError: if `total` and `new` have different structures.

  Example:
    >>> total = None
    >>> for sum_and_count in ((np.float32(2**24), np.float32(2**24)), (np.float32(0.5), np.float32(1))):
    ...   total = merge(total, sum_and_count)
    >>> float(total[0]), float(total[1])
    (16777216.5, 16777217.0)
  """
  new = jax.tree.map(lambda x: np.asarray(x, np.float64), new)
  return new if total is None else jax.tree.map(np.add, total, new)

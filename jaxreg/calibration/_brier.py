"""The Brier score of predicted log-probabilities."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg.calibration._weights import predictions
from jaxreg.typing import Array


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
  log_probs, labels, weights, counts = predictions(log_probs, labels, weights, where)
  error = jnp.exp(log_probs) - jax.nn.one_hot(labels, log_probs.shape[-1], dtype=log_probs.dtype)
  return (weights * (error**2).sum(axis=-1)).sum(), counts.sum()

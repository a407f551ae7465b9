"""The negative log-likelihood of predicted log-probabilities."""

from __future__ import annotations

from jax.typing import ArrayLike

from jaxreg._sharding import entries
from jaxreg.calibration._weights import predictions
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

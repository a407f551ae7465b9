"""Selective prediction: the error of a classifier that answers only where it is confident."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._sharding import gathered, placed_like
from jaxreg.calibration._out_of_distribution import least_confidence
from jaxreg.calibration._weights import predictions
from jaxreg.typing import Array


class RiskCoverage(NamedTuple):
  """The error of the most confident answers.

  Attributes:
    coverage: `[n]`, the share of the examples that are answered; it rises to 1.
    risk: `[n]`, the share of wrong ones among these.
    aurc: the area under the curve, a scalar; 0 for a classifier without errors.
  """

  coverage: Array
  risk: Array
  aurc: Array


def risk_coverage(
  log_probs: ArrayLike, labels: ArrayLike, *, weights: ArrayLike | None = None, where: ArrayLike | None = None
) -> RiskCoverage:
  r"""Computes the error among the most confident predictions, for every share that is answered.

  .. math:: R(c) = \frac{\sum_{i \le k} w_i 1[\hat y_i \ne y_i]}{\sum_{i \le k} w_i}, \quad
    c = \frac{\sum_{i \le k} w_i}{\sum_i w_i}, \qquad \mathrm{AURC} = \sum_k \frac{w_k R(c_k)}{\sum_i w_i}

  The examples are in the order of their confidence, the surest first; equal ones keep theirs. It needs all
  examples at once: every device sorts all of them.

  Args:
    log_probs, labels, weights, where: as in `nll`; an example of weight 0 comes last.

  Returns:
    `RiskCoverage`, float32 or wider; NaN for a traced label out of range.

  Example:
    >>> log_probs = jnp.log(jnp.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]]))
    >>> risk_coverage(log_probs, jnp.array([0, 1, 1])).risk  # the second is wrong, and the least sure
    Array([0.        , 0.        , 0.33333334], dtype=float32)

  References:
    Geifman and El-Yaniv, `Selective Classification for Deep Neural Networks`, 2017.
    Geifman, Uziel and El-Yaniv, `Bias-Reduced Uncertainty Estimation for Deep Neural Classifiers`, 2019.
  """
  log_probs, labels, weights, counts = predictions(log_probs, labels, weights, where)
  doubt = jnp.where(counts != 0, least_confidence(log_probs), jnp.inf)
  wrong = weights * (log_probs.argmax(axis=-1) != labels)
  order = jnp.argsort(gathered(doubt).ravel())
  wrong, counts = (gathered(x).ravel()[order] for x in (wrong, counts))
  answered, total = jnp.cumsum(counts), counts.sum()
  risk = jnp.cumsum(wrong) / jnp.where(answered > 0, answered, 1)
  total = jnp.where(total > 0, total, 1)
  aurc = (counts * risk).sum() / total
  return RiskCoverage(placed_like(answered / total, doubt), placed_like(risk, doubt), aurc)

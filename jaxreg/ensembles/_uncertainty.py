"""What the members of an ensemble of classifiers agree on and where they differ."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.typing import ArrayLike

from jaxreg.ensembles._means import arithmetic, members
from jaxreg.typing import Array

# Rounding leaves the largest of nearly certain log-probabilities above 0, but not so far.
ROUNDING = 1e-2


class MCResult(NamedTuple):
  """Of a classifier over members, or over draws of its noise; entropies in nats.

  Attributes:
    mean_log_probs: `[..., classes]`, the logarithm of the mean probabilities.
    variance: `[..., classes]`, of the probabilities over the members (divided by their number).
    entropy: `[...]`, of the mean: the whole uncertainty.
    expected_entropy: `[...]`, the mean of the entropies: what no knowledge of the member takes away.
    mutual_information: `[...]`, at least 0: the members' disagreement; the three add up.
  """

  mean_log_probs: Array
  variance: Array
  entropy: Array
  expected_entropy: Array
  mutual_information: Array


def uncertainty(log_probs: ArrayLike, weights: ArrayLike | None = None) -> MCResult:
  r"""Mean prediction of an ensemble, and its uncertainty split into that of the members and between them.

  .. math:: \mathrm{H}\Bigl[\sum_i w_i p^{(i)}\Bigr] = \sum_i w_i \mathrm{H}[p^{(i)}] +
    \sum_i w_i \mathrm{KL}\Bigl(p^{(i)} \Big\| \sum_j w_j p^{(j)}\Bigr)

  For any members: of a deep ensemble, of bagging, of a swept hyper-parameter. `mc_predict` is this for draws
  of a model's own noise.

  Args:
    log_probs: `[members, ..., classes]`, floating; -inf where a probability is 0. Not logits: take
      `jax.nn.log_softmax` of them.
    weights: `[members]`, as in `arithmetic`.

  Returns:
    An `MCResult`, float32 or wider.

  Raises:
    TypeError, ValueError: as `arithmetic`, and ValueError if a log-probability is known to be above 0.

  Example:
    >>> members = jnp.log(jnp.array([[0.5, 0.5], [1.0, 0.0]]))
    >>> result = uncertainty(members)
    >>> round(float(result.entropy), 4), round(float(result.mutual_information), 4)
    (0.5623, 0.2158)

  References:
    Depeweg et al., `Decomposition of Uncertainty in Bayesian Deep Learning`, 2018, Eq. 4.
    Lakshminarayanan, Pritzel and Blundell, `Simple and Scalable Predictive Uncertainty Estimation using Deep
    Ensembles`, 2017.
  """
  mean = arithmetic(log_probs, weights)
  log_probs, weights = members(log_probs, weights)
  largest = log_probs.max(initial=-jnp.inf)
  if not isinstance(largest, Tracer) and largest > ROUNDING:
    raise ValueError(
      f"log_probs must be log-probabilities, at most 0, got {largest:g}: take jax.nn.log_softmax of logits"
    )

  def average(x: Array) -> Array:
    share = weights.reshape(-1, *[1] * (x.ndim - 1))
    return jnp.where(share == 0, 0, share * x).sum(axis=0)

  probs = jnp.exp(log_probs)
  # 0 log 0 is 0.
  none = jnp.isneginf(log_probs)
  expected = average(-(probs * jnp.where(none, 0, log_probs)).sum(axis=-1))
  # The mean divergence of the members from their mean: H[mean] - mean H loses to rounding what is small.
  apart = jnp.where(none, 0, log_probs - mean[None])
  information = jax.nn.relu(average((probs * apart).sum(axis=-1)))
  variance = average(jnp.square(probs - average(probs)[None]))
  return MCResult(mean, variance, expected + information, expected, information)

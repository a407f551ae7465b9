"""The uncertainty of an ensemble of classifiers, split into agreement and disagreement."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxreg import losses
from jaxreg._divergence import kl_terms
from jaxreg._where import check_where, zero_elsewhere
from jaxreg.ensembles._means import arithmetic, members
from jaxreg.typing import Array


class Uncertainty(NamedTuple):
  """What `uncertainty` returns."""

  mean_log_probs: Array
  variance: Array
  entropy: Array
  expected_entropy: Array
  mutual_information: Array


def uncertainty(
  log_probs: ArrayLike, *, weights: ArrayLike | None = None, where: ArrayLike | None = None
) -> Uncertainty:
  r"""Computes an ensemble's mean prediction, and splits its uncertainty within and between members.

  .. math:: \mathrm{H}\Bigl[\sum_i w_i p^{(i)}\Bigr] = \sum_i w_i \mathrm{H}[p^{(i)}] +
    \sum_i w_i \mathrm{KL}\Bigl(p^{(i)} \Big\| \sum_j w_j p^{(j)}\Bigr)

  It works for any members: of a deep ensemble, of bagging, of a hyper-parameter sweep. `mc_predict` does the
  same for draws of a model's own noise.

  Args:
    log_probs: `[members, ..., classes]`, floating; -inf where a probability is 0. Not logits: apply
      `jax.nn.log_softmax` to them first.
    weights: `[members]`, as in `arithmetic`.
    where: `[...]`, bool: which examples count; all results of the others are 0.

  Returns:
    A NamedTuple, float32 or wider, with entropies in nats:

    - `mean_log_probs`: `[..., classes]`, the logarithm of the mean probabilities;
    - `variance`: `[..., classes]`, variance of the probabilities over the members, by their weights;
    - `entropy`: `[...]`, entropy of the mean: the total uncertainty;
    - `expected_entropy`: `[...]`, the mean of the entropies: the part that remains when the member is known;
    - `mutual_information`: `[...]`, at least 0: the disagreement of the members, their difference.

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
  if where is not None:
    counts = check_where(where, np.shape(log_probs)[1:-1])
    uniform = -math.log(max(np.shape(log_probs)[-1], 1))
    result = uncertainty(zero_elsewhere(counts[None], log_probs, uniform), weights=weights)
    return jax.tree.map(functools.partial(zero_elsewhere, counts), result)
  mean = arithmetic(log_probs, weights=weights)
  log_probs, weights = members(log_probs, weights)

  def average(x: Array) -> Array:
    share = weights.reshape(-1, *[1] * (x.ndim - 1))
    return jnp.where(share == 0, 0, share * x).sum(axis=0)

  probs = jnp.exp(log_probs)
  expected, none = average(losses.entropy(log_probs)), jnp.isneginf(log_probs)
  apart = jnp.where(none & jnp.isneginf(mean)[None], 0, log_probs - mean[None])
  terms = kl_terms(log_probs, jnp.broadcast_to(mean[None], log_probs.shape), apart)
  information = average(terms.sum(axis=-1))
  variance = average(jnp.square(probs - average(probs)[None]))
  return Uncertainty(mean, variance, expected + information, expected, information)

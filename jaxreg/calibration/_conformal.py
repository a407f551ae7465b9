"""Conformal prediction: sets of classes that hold the true class as often as promised, whatever the model."""

from __future__ import annotations

import math
from fractions import Fraction

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg.calibration._weights import check_log_probs
from jaxreg.typing import Array, Key, check_key, check_labels, check_range, check_wide, key_first


def conformal_scores(log_probs: ArrayLike) -> Array:
  r"""Computes how badly each class fits an example: 1 minus its probability, for `conformal_threshold`.

  .. math:: s(x, k) = 1 - p_k(x)

  Of all scores, this one gives the smallest sets on average, if the probabilities are right. Hard examples
  are covered less often than easy ones: `aps_scores` evens that out.

  Args:
    log_probs: `[..., classes]`, floating.

  Returns:
    `[..., classes]`, float32 or wider.

  Raises:
    TypeError: if `log_probs` are not floating.
    ValueError: if a known value of `log_probs` is above 0.

  Example:
    >>> conformal_scores(jnp.log(jnp.array([0.75, 0.25]))).round(4)
    Array([0.25, 0.75], dtype=float32)

  References:
    Sadinle, Lei and Wasserman, `Least Ambiguous Set-Valued Classifiers With Bounded Error Levels`, 2019.
  """
  return -jnp.expm1(check_log_probs(log_probs))


@key_first
def aps_scores(key: Key | None, log_probs: ArrayLike) -> Array:
  r"""Computes the mass of the classes that are more probable, plus a random share of the class's own mass.

  .. math:: s(x, k) = \sum_{j : p_j > p_k} p_j + u \, p_k, \qquad u \sim \mathcal U(0, 1)

  These are the scores of adaptive prediction sets, for `conformal_threshold`. The scores of true labels are
  uniform if the probabilities are right, and then each example is covered equally often. Of two equally
  probable classes the first counts as the more probable. A set may be empty.

  Args:
    key: one draw of `u` per example; calibration and test need different keys. None for `u = 1`, without
      randomness: the sets are then larger than they must be.
    log_probs: `[..., classes]`, floating.

  Returns:
    `[..., classes]`, float32 or wider.

  Raises:
    TypeError: if `log_probs` are not floating, or `key` is neither None nor a typed key.
    ValueError: if a known value of `log_probs` is above 0.

  Example:
    >>> aps_scores(None, jnp.log(jnp.array([0.25, 0.5, 0.25])))
    Array([0.75, 0.5 , 1.  ], dtype=float32)

  References:
    Romano, Sesia and Candes, `Classification with Valid and Adaptive Coverage`, 2020, Eq. 5 and 7.
  """
  log_probs = check_log_probs(log_probs)
  probs = jnp.exp(log_probs)
  order = jnp.argsort(probs, axis=-1, descending=True)
  mass = jnp.take_along_axis(probs, order, axis=-1).cumsum(axis=-1)
  reached = jnp.take_along_axis(mass, jnp.argsort(order, axis=-1), axis=-1)
  if key is None:
    return reached
  share = jax.random.uniform(check_key(key), (*probs.shape[:-1], 1), probs.dtype)
  return reached - (1 - share) * probs


def conformal_threshold(scores: ArrayLike, labels: ArrayLike, *, alpha: float) -> Array:
  r"""Computes the threshold under which the score of a new example's label lies with the given probability.

  .. math:: q = s_{(r)}, \quad r = \lceil (n + 1)(1 - \alpha) \rceil, \qquad
    1 - \alpha \le \Pr(s_{n+1} \le q) < 1 - \alpha + \tfrac{1}{n + 1}

  The prediction set of a new example is `scores <= q`, a mask `[..., classes]`. The bounds hold for every
  model and every `n`, if the calibration examples and the new one are exchangeable. Ties among scores only
  raise the probability. The upper bound needs distinct scores. So the calibration examples must not have
  trained the model, nor chosen its temperature. The threshold is infinite if `n` is too small for `alpha`.

  Args:
    scores: `[..., classes]`, floating, of the calibration examples, without padding.
    labels: `[...]`, integer.
    alpha: the probability of missing the label, in [0, 1]; static, and taken as the decimal it is written as.

  Returns:
    A scalar, float32 or wider.

  Raises:
    TypeError: if `scores` are not floating or `labels` not integer.
    ValueError: if shapes do not fit, a known label is out of range, or `alpha` is outside [0, 1].

  Example:
    >>> scores = conformal_scores(jnp.log(jnp.array([[0.75, 0.25], [0.5, 0.5], [0.125, 0.875]])))
    >>> threshold = conformal_threshold(scores, jnp.array([0, 1, 1]), alpha=0.5)
    >>> scores <= threshold  # the second score of 1/4, 1/2 and 1/8
    Array([[ True, False],
           [False, False],
           [False,  True]], dtype=bool)

  References:
    Vovk, Gammerman and Shafer, `Algorithmic Learning in a Random World`, 2005.
    Romano, Sesia and Candes, `Classification with Valid and Adaptive Coverage`, 2020, Theorem 1.
  """
  scores = check_wide(scores, "scores")
  labels = check_labels(labels, scores, "scores")
  check_range(alpha, "alpha", low=0, high=1)
  picked = jnp.sort(jnp.take_along_axis(scores, labels[..., None], axis=-1).ravel())
  # In floats, 10 * (1 - 0.7) is above 3, and its ceiling 4.
  rank = math.ceil((picked.size + 1) * (1 - Fraction(str(alpha))))
  ends = jnp.full(1, jnp.inf, scores.dtype)
  return jnp.concatenate([-ends, picked, ends])[rank]

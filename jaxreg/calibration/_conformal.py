"""Conformal prediction: sets of classes that hold the true class as often as promised, whatever the model."""

from __future__ import annotations

import functools
import math
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxreg._checks import (
  check_array,
  check_count,
  check_key,
  check_labels,
  check_log_probs,
  check_range,
  check_wide,
  known_values,
  wide_integers,
)
from jaxreg._errors import ArgumentError
from jaxreg._log_odds import others_log_probs
from jaxreg._sharding import drawn_like, entries, gathered, partitioned, rows
from jaxreg._where import check_where, only_where, zero_elsewhere
from jaxreg.calibration._weights import at_number, ceil_of, fraction_of
from jaxreg.typing import Array, Key

# Above this log-probability, the other classes tell how far a probability is from 1.
CERTAIN = -0.1


@only_where()
def conformal_scores(log_probs: ArrayLike, *, where: ArrayLike | None = None) -> Array:
  r"""Computes how badly each class fits an example: minus its log-probability, for `conformal_threshold`.

  .. math:: s(x, k) = -\log p_k(x)

  It orders classes and examples as 1 minus the probability does, and so gives the same sets, but it also
  tells apart small probabilities, where 1 minus them rounds to 1. Of all scores, this one gives the smallest
  sets on average, if the probabilities are right. Hard examples are covered less often than easy ones:
  `aps_scores` evens that out.

  Args:
    log_probs: `[..., classes]`, floating.
    where: `[...]`, bool: which examples count; the others have scores of 0.

  Returns:
    `[..., classes]`, at least 0, float32 or wider.

  Example:
    >>> conformal_scores(jnp.log(jnp.array([0.75, 0.25]))).round(4)
    Array([0.2877, 1.3863], dtype=float32)

  References:
    Sadinle, Lei and Wasserman, `Least Ambiguous Set-Valued Classifiers With Bounded Error Levels`, 2019.
  """
  log_probs = check_log_probs(log_probs, "log_probs")
  # The logarithm of a probability near 1 rounds to 0. The other classes still have its digits.
  others = jnp.exp(others_log_probs(log_probs))
  certain = (log_probs > CERTAIN) & (others > 0) & (others < 0.5)
  return jnp.where(certain, -jnp.log1p(-jnp.where(certain, others, 0)), jax.nn.relu(-log_probs))


@only_where()
def aps_scores(
  key: Key | None,
  log_probs: ArrayLike,
  *,
  penalty: float = 0.0,
  num_free: int = 5,
  where: ArrayLike | None = None,
) -> Array:
  r"""Computes the scores of adaptive prediction sets, for `conformal_threshold`.

  .. math:: s(x, k) = -\log(1 - m), \qquad m = \sum_{j : p_j > p_k} p_j + u \, p_k, \quad
    u \sim \mathcal U(0, 1)

  The paper's score `m` is the mass of the classes that are more probable, plus a random share of the class's
  own mass; it is uniform for true labels if the probabilities are right, and then each example is covered
  equally often. Its logarithm gives the same sets, and also tells apart masses that round to 1. Of two
  equally probable classes the first counts as the more probable. A set may be empty.

  A `penalty` above 0 gives the scores of regularized adaptive prediction sets (RAPS). It shrinks the large
  sets, for which many classes of tiny probability are to blame:

  .. math:: m + \lambda \max(o_k - k_\mathrm{reg}, 0), \qquad o_k \text{ the rank of the class, from 1}

  Their values are another increasing function of the paper's scores, below 0 where those are below 1.

  Args:
    key: one draw of `u` per example; calibration and test need different keys. None for `u = 1`, without
      randomness: the sets are then larger than they must be, and the least probable class has the score
      infinity.
    log_probs, where: as in `conformal_scores`.
    penalty: `lambda`, at least 0; static. The paper uses 0.001 to 1 for 1000 classes.
    num_free: `k_reg`, how many of the most probable classes have no penalty; static.

  Returns:
    `[..., classes]`, float32 or wider.

  Example:
    >>> aps_scores(None, jnp.log(jnp.array([0.25, 0.5, 0.25]))).round(4)  # of 3/4, 1/2 and 1
    Array([1.3863, 0.6931,    inf], dtype=float32)

  References:
    Romano, Sesia and Candes, `Classification with Valid and Adaptive Coverage`, 2020, Eq. 5 and 7.
    Angelopoulos, Bates, Jordan and Malik, `Uncertainty Sets for Image Classifiers using Conformal
    Prediction`, 2021, Algorithms 2 and 3.
  """
  log_probs = check_log_probs(log_probs, "log_probs")
  check_range(penalty, "penalty", low=0, open_high=True)
  check_range(num_free, "num_free", low=0)
  shares = ()
  if key is not None:
    shape = (*log_probs.shape[:-1], 1)
    shares = (drawn_like(log_probs, jax.random.uniform, check_key(key), shape, dtype=log_probs.dtype),)
  return partitioned(functools.partial(_aps_scores, penalty, num_free), log_probs, *shares)


def _aps_scores(penalty: float, num_free: int, log_probs: Array, share: Array | None = None) -> Array:
  order = jnp.argsort(jax.lax.stop_gradient(log_probs), axis=-1, descending=True)
  ordered = jnp.take_along_axis(log_probs, order, axis=-1)
  # The sum of the less probable classes, in logarithms; 1 minus it, the mass of the others, rounds to 1.
  left = jax.lax.cumlogsumexp(ordered, axis=ordered.ndim - 1, reverse=True)[..., 1:]
  left = jnp.concatenate([left, jnp.full_like(ordered[..., :1], -jnp.inf)], axis=-1)
  if share is not None:
    left = jnp.logaddexp(left, jnp.log1p(-share) + ordered)
  scores = jax.nn.relu(-left)
  if penalty > 0:
    ranks = np.arange(1, ordered.shape[-1] + 1)
    added = jnp.asarray(penalty * np.maximum(ranks - num_free, 0), left.dtype)
    added = jnp.broadcast_to(added, left.shape)
    # The paper's score less 1. Below 0 its logarithm tells apart masses that round to 1.
    excess = added - jnp.exp(left)
    below = excess < 0
    logs = jnp.where(added > 0, jnp.log(jnp.where(below, -excess, 1)), jnp.minimum(left, 0))
    scores = jnp.where(below | (added == 0), -1 / (1 - logs), excess)
  return jnp.take_along_axis(scores, jnp.argsort(order, axis=-1), axis=-1)


def conformal_threshold(
  scores: ArrayLike,
  labels: ArrayLike | None = None,
  *,
  alpha: float,
  groups: ArrayLike | None = None,
  num_groups: int | None = None,
  where: ArrayLike | None = None,
) -> Array:
  r"""Computes the threshold under which the score of a new example's label lies with the given probability.

  .. math:: q = s_{(r)}, \quad r = \lceil (n + 1)(1 - \alpha) \rceil, \qquad
    1 - \alpha \le \Pr(s_{n+1} \le q) < 1 - \alpha + \tfrac{1}{n + 1}

  The prediction set of a new example is `scores <= q`, a mask `[..., classes]`. The bounds hold for every
  model and every `n`, if the calibration examples and the new one are exchangeable. Ties among scores only
  raise the probability. The upper bound needs distinct scores. So the calibration examples must not have
  trained the model, nor chosen its temperature. The threshold is infinite if `n` is too small for `alpha`.
  Every device sorts the scores of all labels.

  With `groups` there is a threshold for each group, from its own examples, and the bounds hold in each group
  (Mondrian conformal prediction). Groups must be known for new examples, too. The labels themselves as groups
  give class-conditional thresholds, and the set `scores <= thresholds`. A group with fewer than `1 / alpha -
  1` examples has an infinite threshold.

  Args:
    scores: `[..., classes]`, floating, of the calibration examples; `[...]` without labels.
    labels: `[...]`, integer; None if each example has one score, as from `interval_scores`.
    alpha: the probability of missing the label, in [0, 1]; static, and taken as the decimal it is written as.
    groups: `[...]`, integer, in `[0, num_groups)`.
    num_groups: number of groups; static, and needed with `groups`.
    where: `[...]`, bool: which examples count.

  Returns:
    A scalar, or `[num_groups]`; float32 or wider, NaN for a traced label or group out of range.

  Example:
    >>> scores = conformal_scores(jnp.log(jnp.array([[0.75, 0.25], [0.5, 0.5], [0.125, 0.875]])))
    >>> threshold = conformal_threshold(scores, jnp.array([0, 1, 1]), alpha=0.5)
    >>> scores <= threshold  # the second score of the probabilities 3/4, 1/2 and 7/8
    Array([[ True, False],
           [False, False],
           [False,  True]], dtype=bool)

  References:
    Vovk, Gammerman and Shafer, `Algorithmic Learning in a Random World`, 2005; section 4.5 has groups.
    Romano, Sesia and Candes, `Classification with Valid and Adaptive Coverage`, 2020, Theorem 1.
  """
  scores = check_wide(scores, "scores")
  check_range(alpha, "alpha", low=0, high=1)
  shape = scores.shape if labels is None else scores.shape[:-1]
  counts = None if where is None else check_where(where, shape)
  if labels is None:
    picked, outside = scores, jnp.zeros((), bool)
  else:
    raw_labels: Any = labels
    if counts is not None and np.shape(raw_labels) == shape:
      raw_labels = zero_elsewhere(counts, raw_labels)
    labels = check_labels(raw_labels, scores, "scores")
    outside = (labels < 0) | (labels >= scores.shape[-1])
    picked = entries(scores, jnp.where(outside, 0, labels))[..., 0]
  share = 1 - fraction_of(alpha)
  if groups is not None or num_groups is not None:
    members, number = _members(groups, num_groups, picked, counts)
    outside = outside.any() | ((members < 0) | (members > number)).any()
    thresholds = _thresholds(picked, members, number, share)
    return jnp.where(outside, jnp.nan, thresholds)
  if counts is not None:
    picked = jnp.where(counts, picked, jnp.nan)  # sorted to the end
  picked = jnp.sort(gathered(picked).ravel())
  number = picked.size if counts is None else jnp.asarray(counts).sum()
  rank = ceil_of(share, number + 1, picked.size + 1)
  ends = jnp.full(1, jnp.inf, scores.dtype)
  threshold = jnp.concatenate([-ends, picked, ends])[rank]
  threshold = jnp.where(rank > number, jnp.inf, threshold)
  return jnp.where(outside.any(), jnp.nan, threshold)


def _members(groups: Any, num_groups: Any, scores: Array, counts: Any) -> tuple[Array, int]:
  """Returns the group of each example, `num_groups` where it does not count, and that number."""
  if groups is None or num_groups is None:
    raise ArgumentError("groups", "must come with num_groups")
  check_count(num_groups, "num_groups")
  known = known_values(groups)
  members = check_array(groups, "groups")
  if not jnp.issubdtype(members.dtype, jnp.integer) or members.shape != scores.shape:
    got = f"{members.dtype} {members.shape}"
    raise ArgumentError("groups", f"must be integers of shape {scores.shape}, got {got}")
  if known is not None and (used := known if counts is None else known[np.asarray(counts)]).size:
    check_range(used, "groups", low=0, high=num_groups - 1)
  # The number of groups stands for no group, so one out of range must not have it.
  members = wide_integers(members)
  members = jnp.where(members == num_groups, -1, members)
  return members if counts is None else jnp.where(counts, members, num_groups), num_groups


def _thresholds(scores: Array, members: Array, num_groups: int, share: Fraction) -> Array:
  """Returns the threshold of each group; the members of `num_groups` do not count."""
  members, scores = (gathered(x).ravel() for x in (members, scores))
  members, scores = jax.lax.sort((members, scores), num_keys=2)
  ends = jnp.searchsorted(members, jnp.arange(num_groups + 1))
  starts, sizes = ends[:-1], jnp.diff(ends)
  ranks = ceil_of(share, sizes + 1, scores.size + 1)
  at = scores[jnp.clip(starts + ranks - 1, 0, max(scores.size - 1, 0))] if scores.size else jnp.inf
  return jnp.where(ranks > sizes, jnp.inf, jnp.where(ranks < 1, -jnp.inf, at))


def conformal_sets(
  scores: ArrayLike,
  held_out_scores: ArrayLike,
  held_out_labels: ArrayLike,
  *,
  alpha: float,
  by_class: bool = False,
  groups: ArrayLike | None = None,
  held_out_groups: ArrayLike | None = None,
  num_groups: int | None = None,
  where: ArrayLike | None = None,
) -> Array:
  """Computes prediction sets that hold the label of a new example with the given probability.

  The sets are `scores <= conformal_threshold(held_out_scores, held_out_labels, alpha=alpha)`. With `groups`
  the promise holds in each group, and with `by_class` for the examples of each class. With both it holds for
  each class in each group. Such sets are larger. A group or class with too few held-out examples is in all
  sets that it can be in.

  Args:
    scores: `[..., classes]`, floating: the scores of new examples, from `conformal_scores` or `aps_scores`.
    held_out_scores: `[..., classes]`: the scores of examples that neither trained the model nor chose its
      temperature.
    held_out_labels: `[...]`, integer.
    alpha: as in `conformal_threshold`.
    by_class: whether each class has its own threshold.
    groups: `[...]`, integer: the groups of the new examples.
    held_out_groups, num_groups: as `groups` and `num_groups` in `conformal_threshold`.
    where: `[...]`, bool: which held-out examples count.

  Returns:
    `[..., classes]`, bool: which classes each set holds.

  Example:
    >>> held_out = conformal_scores(jnp.log(jnp.array([[0.75, 0.25], [0.5, 0.5], [0.125, 0.875]])))
    >>> new = conformal_scores(jnp.log(jnp.array([[0.8, 0.2]])))
    >>> conformal_sets(new, held_out, jnp.array([0, 1, 1]), alpha=0.5)
    Array([[ True, False]], dtype=bool)

  References:
    Vovk, Gammerman and Shafer, `Algorithmic Learning in a Random World`, 2005.
  """
  held_out_scores = check_wide(held_out_scores, "held_out_scores")
  scores, classes = check_wide(scores, "scores"), held_out_scores.shape[-1]
  check_array(held_out_labels, "held_out_labels")
  if (groups is None) != (held_out_groups is None):
    raise ArgumentError("groups", "must come with held_out_groups")
  cells, number = held_out_groups, num_groups
  if by_class:
    if held_out_groups is None:
      cells, number = held_out_labels, classes
    elif num_groups is not None:
      numpy = np if known_values(held_out_groups) is not None else jnp
      group, label = (wide_integers(numpy.asarray(x)) for x in (held_out_groups, held_out_labels))
      cells = group * classes + label
      number = num_groups * classes
  options = {"alpha": alpha, "where": where, "groups": cells, "num_groups": number}
  threshold = conformal_threshold(held_out_scores, held_out_labels, **options)
  if groups is None or num_groups is None:
    return scores <= (threshold[(None,) * (scores.ndim - 1)] if by_class else threshold)
  groups = check_labels(groups, scores, "scores", num_classes=num_groups)
  outside = (groups < 0) | (groups >= num_groups)
  table = threshold.reshape(num_groups, -1)
  own = rows(table, jnp.where(outside, 0, groups))
  return scores <= jnp.where(outside[..., None], jnp.nan, own)


def conformal_risk_threshold(
  scores: ArrayLike, costs: ArrayLike, *, alpha: float, bound: float = 1.0, where: ArrayLike | None = None
) -> Array:
  r"""Computes the threshold under which a new example's loss is at most `alpha` in expectation.

  .. math:: L_i(\lambda) = \sum_k c_{ik} 1[s_{ik} > \lambda], \qquad \hat\lambda = \inf \Bigl\{ \lambda :
    \frac{n}{n + 1} \cdot \frac1n \sum_i L_i(\lambda) + \frac{B}{n + 1} \le \alpha \Bigr\}

  The set of a new example is `scores <= threshold`, a mask, and each label outside of it costs `c`. Then
  `E[L] <= alpha` for every model and every `n`, if the calibration examples and the new one are exchangeable;
  of independent examples without ties among the scores, `E[L] >= alpha - 2 B / (n + 1)`, too. With the costs
  `y / max(sum(y), 1)` of labels `y` in {0, 1}, the loss is the false negative rate: the share of the labels
  that the set misses. One-hot costs give `conformal_threshold`. Another loss that falls in steps is given by
  the places of its steps, `scores`, and their heights, `costs`. The threshold is infinite if `n` is too small
  for `alpha`. Every device sorts all scores.

  Args:
    scores: `s`, `[..., labels]`, floating, such as minus the log-probabilities that the labels are present.
    costs: `c`, `[..., labels]`, floating, at least 0, with sums of at most `bound`.
    alpha: the bound on the expected loss; static, and taken as the decimal it is written as.
    bound: `B`, the largest possible loss of an example; static.
    where: `[...]`, bool: which examples count.

  Returns:
    A scalar, float32 or wider; NaN for a score that is NaN or traced costs out of range.

  Example:
    >>> scores = jnp.array([[0.1, 0.4], [0.2, 0.3], [0.5, 0.6]])
    >>> labels = jnp.array([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
    >>> rates = labels / jnp.maximum(labels.sum(axis=-1, keepdims=True), 1)
    >>> conformal_risk_threshold(scores, rates, alpha=0.5)  # only the third example misses its label
    Array(0.3, dtype=float32)

  References:
    Angelopoulos, Bates, Fisch, Lei and Schuster, `Conformal Risk Control`, 2024, Theorems 1 and 2.
  """
  scores = check_wide(scores, "scores")
  if scores.ndim == 0:
    raise ValueError("scores must be [..., labels], got a scalar")
  check_range(alpha, "alpha", low=0)
  check_range(bound, "bound", low=0, open_low=True, open_high=True)
  raw_costs: Any = costs
  steps: tuple[Array, ...] = scores, check_wide(costs, "costs", shape=scores.shape).astype(scores.dtype)
  shape, most = scores.shape[:-1], 1.01 * bound  # a bfloat16 rounds by 0.2 per cent
  number: Any = math.prod(shape)
  if where is not None:
    counts = check_where(where, shape)
    steps = tuple(zero_elsewhere(counts, x) for x in steps)
    raw_costs = zero_elsewhere(counts, raw_costs)
    number = jnp.asarray(counts).sum()
  known = known_values(raw_costs)
  if known is not None and known.size:
    check_range(known, "costs", low=0)
    check_range(known.sum(axis=-1), "the sums of costs", high=most)
  places, heights = (gathered(x) for x in steps)
  broken = jnp.isnan(places).any() | ~(heights >= 0).all() | (heights.sum(axis=-1) > most).any()
  order = jnp.argsort(places.ravel(), descending=True)
  # At the threshold only larger scores cost; at any smaller threshold, its own do, too, and exceed the limit.
  lost = jnp.cumsum(heights.ravel()[order])
  level, largest = fraction_of(alpha), fraction_of(bound)
  limit = at_number(lambda n: float(level * (n + 1) - largest), number, math.prod(shape))
  ends = jnp.full(1, jnp.inf, scores.dtype)
  threshold = jnp.concatenate([places.ravel()[order], -ends])[(lost <= limit).sum()]
  return jnp.where(broken, jnp.nan, jnp.where(limit < 0, jnp.inf, threshold))

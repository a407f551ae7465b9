"""Intervals of real targets: how often they hold the target, and the scores that calibrate them."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxreg._checks import check_wide
from jaxreg._where import only_where
from jaxreg.calibration._conformal import conformal_threshold
from jaxreg.calibration._weights import counted_weights
from jaxreg.typing import Array


class Coverage(NamedTuple):
  """Sums over targets, as `interval_coverage` says."""

  covered: Array
  width: Array
  count: Array


def interval_coverage(
  low: ArrayLike,
  high: ArrayLike,
  targets: ArrayLike,
  *,
  weights: ArrayLike | None = None,
  where: ArrayLike | None = None,
) -> Coverage:
  r"""Computes how many targets lie in their interval, and how wide the intervals are; the sums merge.

  .. math:: \sum_i w_i 1[l_i \le y_i \le h_i], \quad \sum_i w_i (h_i - l_i), \quad \sum_i w_i

  Args:
    low, high: the ends of the intervals, `[...]`, floating.
    targets: `[...]`, floating.
    weights: `[...]`, default 1; a target of weight 0 has no effect, whatever it and its interval are.
    where: `[...]`, bool: which targets count; the same as a weight of 0 for all others.

  Returns:
    A named tuple of three scalars, float32 or wider: `covered`, the number of targets within their interval,
    the sum of the widths `width`, and `count`; the first two are NaN if a target or an end is.

  Example:
    >>> sums = interval_coverage(jnp.zeros(4), jnp.ones(4), jnp.array([-1.0, 0.0, 0.5, 2.0]))
    >>> sums.covered / sums.count, sums.width / sums.count
    (Array(0.5, dtype=float32), Array(1., dtype=float32))

  References:
    Khosravi et al., `Comprehensive Review of Neural Network-Based Prediction Intervals`, 2011.
  """
  low, high, targets = _about_targets(low, high, targets)
  counts = jnp.asarray(counted_weights(weights, where, targets.shape, targets.dtype))
  low, high, targets = (jnp.where(counts != 0, x, 0) for x in (low, high, targets))
  broken = jnp.isnan(low) | jnp.isnan(high) | jnp.isnan(targets)
  # `where` instead of a product: compiled code may evaluate NaN times False to 0.
  held = jnp.where(broken, jnp.nan, jnp.where((low <= targets) & (targets <= high), counts, 0))
  return Coverage(held.sum(), jnp.where(broken, jnp.nan, counts * (high - low)).sum(), counts.sum())


@only_where(None)
def interval_scores(
  low: ArrayLike, high: ArrayLike, targets: ArrayLike, *, where: ArrayLike | None = None
) -> Array:
  r"""Computes how far each target lies outside its interval, negative inside: for `conformal_threshold`.

  .. math:: s = \max(l(x) - y, \, y - h(x))

  With the threshold `q` of these scores, the interval `(low - q, high + q)` of a new example holds its target
  with the probability promised, whatever the model. This is conformalised quantile regression if `low` and
  `high` are predicted quantiles, and split conformal prediction by the absolute residual if both are the same
  prediction. A negative threshold narrows the intervals, and one that has no width left is empty.

  Args:
    low, high, targets: as in `interval_coverage`.
    where: `[...]`, bool: which targets count; the others have the score 0. Give it to
      `conformal_threshold`, too.

  Returns:
    `[...]`, float32 or wider.

  Example:
    >>> from jaxreg.calibration import conformal_threshold
    >>> outputs, targets = jnp.zeros(4), jnp.array([0.5, -1.0, 2.0, 3.0])
    >>> conformal_threshold(interval_scores(outputs, outputs, targets), alpha=0.5)  # the third residual of 4
    Array(2., dtype=float32)

  References:
    Romano, Patterson and Candes, `Conformalized Quantile Regression`, 2019, Eq. 6.
    Lei et al., `Distribution-Free Predictive Inference for Regression`, 2018.
  """
  low, high, targets = _about_targets(low, high, targets)
  return jnp.maximum(low - targets, targets - high)


def conformal_intervals(
  low: ArrayLike,
  high: ArrayLike,
  held_out_low: ArrayLike,
  held_out_high: ArrayLike,
  held_out_targets: ArrayLike,
  *,
  alpha: float,
  where: ArrayLike | None = None,
) -> tuple[Array, Array]:
  """Widens or narrows intervals so that they hold a new target with the given probability.

  The ends move by the `conformal_threshold` of the held-out `interval_scores`.

  Args:
    low, high: `[...]`, floating: the predicted ends for new examples; equal for a prediction without width.
    held_out_low, held_out_high, held_out_targets: `[examples]`, of examples that did not train the model.
    alpha: as in `conformal_threshold`.
    where: `[examples]`, bool: which held-out targets count.

  Returns:
    The low and the high ends, `[...]` each; float64 if all are NumPy arrays of float64, whatever their unit
    and their distance from 0.

  Example:
    >>> outputs, targets = jnp.zeros(4), jnp.array([0.5, -1.0, 2.0, 3.0])
    >>> conformal_intervals(jnp.zeros(1), jnp.zeros(1), outputs, outputs, targets, alpha=0.5)
    (Array([-2.], dtype=float32), Array([2.], dtype=float32))

  References:
    Romano, Patterson and Candes, `Conformalized Quantile Regression`, 2019.
  """
  if given := _float64(low, high, held_out_low, held_out_high, held_out_targets):
    # In float64, and in a unit of the data: float32 holds no small spread far from 0.
    known = given[-1][np.isfinite(given[-1])]
    center = known.mean() if known.size else 0.0
    unit = float(np.abs(known - center).max(initial=0)) or 1.0
    scaled = [jnp.asarray((x - center) / unit) for x in given]
    ends = conformal_intervals(*scaled, alpha=alpha, where=where)
    new_low, new_high = (np.asarray(end, np.float64) * unit + center for end in ends)
    return cast(Any, (new_low, new_high))
  held_out_low = check_wide(held_out_low, "held_out_low")
  held_out_high = check_wide(held_out_high, "held_out_high", shape=held_out_low.shape)
  held_out_targets = check_wide(held_out_targets, "held_out_targets", shape=held_out_low.shape)
  scores = interval_scores(held_out_low, held_out_high, held_out_targets, where=where)
  margin = conformal_threshold(scores, alpha=alpha, where=where)
  return check_wide(low, "low") - margin, check_wide(high, "high") + margin


def _about_targets(low: ArrayLike, high: ArrayLike, targets: ArrayLike) -> tuple[Array, Array, Array]:
  """Returns checked intervals and targets; NumPy's float64 less the target, before float32 rounds it."""
  given = _float64(low, high, targets)
  if given and len({x.shape for x in given}) == 1:
    shift = np.where(np.isfinite(given[-1]), given[-1], 0)
    low, high, targets = (x - shift for x in given)
  low = check_wide(low, "low")
  high, targets = (check_wide(x, name, shape=low.shape) for x, name in ((high, "high"), (targets, "targets")))
  return low, high, targets


def _float64(*arrays: ArrayLike) -> tuple[np.ndarray, ...]:
  """Returns the arrays if all are NumPy's float64, else ()."""
  host = tuple(x for x in arrays if isinstance(x, np.ndarray) and x.dtype == np.float64)
  return host if len(host) == len(arrays) else ()

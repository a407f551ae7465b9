"""Calibration errors, from sums per bin of the confidence or of every class's probability."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxreg._checks import check_count, check_wide
from jaxreg._sharding import gathered, partitioned
from jaxreg._sums import segment_sums
from jaxreg.calibration._weights import predictions
from jaxreg.typing import Array


class Bins(NamedTuple):
  """Sums over the examples of each bin, `[..., num_bins]`; `correct / count` is a bin's accuracy.

  Attributes:
    confidence: the sum of the confidences.
    correct: the number of right predictions.
    count: the number of examples.
  """

  confidence: Array
  correct: Array
  count: Array


def ece_bins(
  log_probs: ArrayLike,
  labels: ArrayLike,
  *,
  num_bins: int = 15,
  weights: ArrayLike | None = None,
  where: ArrayLike | None = None,
) -> Bins:
  """Computes the sums per confidence bin that `ece` needs; they merge by addition.

  Bin `m` of `M` holds confidences in `((m - 1) / M, m / M]`, so the last bin holds a confidence of exactly 1.
  The ECE of a batch is biased, and a mean of batch ECEs is not the ECE: merge these sums instead.

  Args:
    log_probs, labels, weights, where: as in `nll`.
    num_bins: number of equally wide bins.

  Returns:
    `Bins` of `[num_bins]`; for a traced label out of range the first two, and so the ECE, are NaN.

  Example:
    >>> bins = ece_bins(jnp.log(jnp.array([[0.75, 0.25]])), jnp.array([0]), num_bins=2)
    >>> bins.confidence
    Array([0.  , 0.75], dtype=float32)

  References:
    Guo et al., `On Calibration of Modern Neural Networks`, 2017.
  """
  check_count(num_bins, "num_bins")
  log_probs, labels, weights, counts = predictions(log_probs, labels, weights, where)
  confidence = jnp.exp(log_probs.max(axis=-1))
  correct = log_probs.argmax(axis=-1) == labels
  index = _bin_index(confidence, num_bins).ravel()

  def add_up(x):
    return segment_sums(x.ravel(), index, num_bins)

  return Bins(add_up(weights * confidence), add_up(weights * correct), add_up(counts))


def ece(bins: Bins) -> Array:
  r"""Computes the expected calibration error from merged bins, in [0, 1].

  .. math:: \sum_m \frac{n_m}{n} \bigl|\operatorname{acc}(m) - \operatorname{conf}(m)\bigr|

  Args:
    bins: sums `[..., num_bins]` from `ece_bins` or `classwise_bins` added over batches, or `adaptive_bins`.

  Returns:
    `[...]`, in at least float32; NaN for no examples.

  Example:
    >>> ece(ece_bins(jnp.log(jnp.array([[0.75, 0.25]])), jnp.array([0])))
    Array(0.25, dtype=float32)

  References:
    Guo et al., `On Calibration of Modern Neural Networks`, 2017.
  """
  confidence, correct, count = _checked(bins)
  total = count.sum(axis=-1)
  return jnp.abs(correct - confidence).sum(axis=-1) / jnp.where(total == 0, jnp.nan, total)


def mce(bins: Bins) -> Array:
  r"""Computes the maximum calibration error from merged bins, in [0, 1].

  .. math:: \max_m \bigl|\operatorname{acc}(m) - \operatorname{conf}(m)\bigr|

  The maximum is over non-empty bins. A bin with few examples has a large gap by chance, and one such bin is
  enough.

  Args:
    bins: sums `[..., num_bins]`, as in `ece`.

  Returns:
    `[...]`, in at least float32; NaN for no examples.

  Example:
    >>> mce(Bins(confidence=jnp.array([3.0]), correct=jnp.array([1.0]), count=jnp.array([4.0])))
    Array(0.5, dtype=float32)

  References:
    Guo et al., `On Calibration of Modern Neural Networks`, 2017.
  """
  confidence, correct, count = _checked(bins)
  gaps = jnp.where(count > 0, jnp.abs(correct - confidence) / jnp.where(count > 0, count, 1), 0)
  # On a CPU, compiled code may drop NaN from a maximum.
  unknown = jnp.isnan(gaps).any(axis=-1) | (count == 0).all(axis=-1)
  return jnp.where(unknown, jnp.nan, gaps.max(axis=-1))


def classwise_bins(
  log_probs: ArrayLike,
  labels: ArrayLike,
  *,
  num_bins: int = 15,
  weights: ArrayLike | None = None,
  where: ArrayLike | None = None,
) -> Bins:
  r"""Computes the sums per class and bin; they merge by addition, and the mean of `ece` is the classwise ECE.

  .. math:: \frac1K \sum_k \sum_m \frac{n_{km}}{n} \bigl|\operatorname{freq}_k(m) - \bar p_k(m)\bigr|

  The bins are as in `ece_bins`, but for the probability of a class instead of the largest, and `correct`
  counts the examples of the class. Every example is in one bin of every class.

  Args:
    log_probs, labels, num_bins, weights, where: as in `ece_bins`.

  Returns:
    `Bins` of `[classes, num_bins]`; NaN as in `ece_bins`.

  Example:
    >>> bins = classwise_bins(jnp.log(jnp.array([[0.75, 0.25]])), jnp.array([0]), num_bins=2)
    >>> bins.correct
    Array([[0., 1.],
           [0., 0.]], dtype=float32)

  References:
    Nixon et al., `Measuring Calibration in Deep Learning`, 2019, section 3.
  """
  check_count(num_bins, "num_bins")
  log_probs, labels, weights, counts = predictions(log_probs, labels, weights, where)
  num_classes = log_probs.shape[-1]
  probs = jnp.exp(log_probs).reshape(-1, num_classes)
  target = jax.nn.one_hot(labels.ravel(), num_classes, dtype=probs.dtype)
  index = _bin_index(probs, num_bins)
  weights, counts = weights.reshape(-1, 1), counts.reshape(-1, 1)
  sum_classes = jax.vmap(lambda x, i: segment_sums(x, i, num_bins), in_axes=1)

  def add_up(x):
    return partitioned(sum_classes, x, index, kept=slice(0))

  return Bins(add_up(weights * probs), add_up(weights * target), add_up(counts * jnp.ones_like(probs)))


def adaptive_bins(
  log_probs: ArrayLike,
  labels: ArrayLike,
  *,
  num_bins: int = 15,
  weights: ArrayLike | None = None,
  where: ArrayLike | None = None,
) -> Bins:
  r"""Computes the sums of `ece_bins` in bins of equal mass; `ece` of them is the adaptive ECE.

  Sorted by confidence, the `i`-th of `n` examples is in bin :math:`\lfloor M (i + 1/2) / n \rfloor`; an
  example of weight `w` counts as `w` examples. The edges depend on all predictions: unlike the sums of
  `ece_bins`, these sums do not merge, and the whole set must be given at once. Equal confidences may fall
  into several bins, in their given order. Every device sorts all confidences, also of a sharded array.

  Args:
    log_probs, labels, weights, where: as in `nll`, of all predictions.
    num_bins: `M`.

  Returns:
    `Bins` of `[num_bins]`, in order of rising confidence; NaN as in `ece_bins`.

  Example:
    >>> bins = adaptive_bins(jnp.log(jnp.array([[0.75, 0.25], [0.9, 0.1]])), jnp.array([0, 1]), num_bins=2)
    >>> bins.confidence, bins.correct
    (Array([0.75, 0.9 ], dtype=float32), Array([1., 0.], dtype=float32))

  References:
    Nixon et al., `Measuring Calibration in Deep Learning`, 2019, section 3.
  """
  check_count(num_bins, "num_bins")
  examples = predictions(log_probs, labels, weights, where)

  def flat(x):
    return gathered(x).ravel()

  confidence = flat(jnp.exp(examples.log_probs.max(axis=-1)))
  correct = flat(examples.log_probs.argmax(axis=-1) == examples.labels)
  order = jnp.argsort(confidence)
  counts = flat(examples.counts)[order]
  if weights is None and where is None:
    index = jnp.searchsorted(_firsts(len(counts), num_bins), jnp.arange(len(counts)), side="right")
  else:
    reached = counts.cumsum()
    # In this order whole numbers stay exact, so an example lies on an edge exactly or not at all.
    middle = num_bins * (reached - counts / 2) / jnp.where(reached[-1:] > 0, reached[-1:], 1)
    index = jnp.clip(middle.astype(jnp.int32), 0, num_bins - 1)

  def add_up(x):
    return segment_sums(x, index, num_bins)

  values = flat(examples.weights)[order]
  return Bins(add_up(values * confidence[order]), add_up(values * correct[order]), add_up(counts))


def _checked(bins: Bins) -> Bins:
  return Bins(*(check_wide(x, name) for name, x in zip(Bins._fields, bins, strict=True)))


def _bin_index(probs: Array, num_bins: int) -> Array:
  """The index of each probability's bin `(low, high]`; 0 is in the first bin."""
  return jnp.clip(jnp.ceil(probs * num_bins).astype(jnp.int32) - 1, 0, num_bins - 1)


def _firsts(number: int, num_bins: int) -> np.ndarray:
  """The first example of each bin but the first: the least `i` with `M (i + 1/2) / n >= m`, in integers."""
  return np.array([-(-(2 * number * m - num_bins) // (2 * num_bins)) for m in range(1, num_bins)], np.int32)

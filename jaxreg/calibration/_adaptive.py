"""Bins of equal mass, which need all predictions at once."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxreg._checks import check_count
from jaxreg._sharding import gathered
from jaxreg._sums import segment_sums
from jaxreg.calibration._ece import Bins
from jaxreg.calibration._weights import predictions


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
    `Bins` of `[num_bins]`, in order of rising confidence; for a traced label
    out of range the first two, and so the ECE, are NaN.

  Example:
    >>> bins = adaptive_bins(jnp.log(jnp.array([[0.75, 0.25], [0.9, 0.1]])), jnp.array([0, 1]), num_bins=2)
    >>> bins.confidence, bins.correct
    (Array([0.75, 0.9 ], dtype=float32), Array([1., 0.], dtype=float32))

  References:
    Nixon et al., `Measuring Calibration in Deep Learning`, 2019, section 3.
  """
  check_count(num_bins, "num_bins")
  examples = predictions(log_probs, labels, weights, where)
  # Every device sorts all examples: each array has only one number for each.
  flat = lambda x: gathered(x).ravel()
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
  add_up = lambda x: segment_sums(x, index, num_bins)
  values = flat(examples.weights)[order]
  return Bins(
    add_up(values * confidence[order]),
    add_up(values * correct[order]),
    add_up(counts),
  )


def _firsts(number: int, num_bins: int) -> np.ndarray:
  """The first example of each bin but the first: the least `i` with `M (i + 1/2) / n >= m`, in integers."""
  return np.array([-(-(2 * number * m - num_bins) // (2 * num_bins)) for m in range(1, num_bins)], np.int32)

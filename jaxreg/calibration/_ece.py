"""The expected calibration error, from per-bin sums."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_count, check_wide
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
    `Bins` of `[num_bins]`; for a traced label out of range the first two, and
    so the ECE, are NaN.

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
  index = bin_index(confidence, num_bins).ravel()
  add_up = lambda x: segment_sums(x.ravel(), index, num_bins)
  return Bins(
    add_up(weights * confidence),
    add_up(weights * correct),
    add_up(counts),
  )


def bin_index(probs: Array, num_bins: int) -> Array:
  """The index of each probability's bin `(low, high]`; 0 is in the first bin."""
  return jnp.clip(jnp.ceil(probs * num_bins).astype(jnp.int32) - 1, 0, num_bins - 1)


def ece(bins: Bins) -> Array:
  r"""Computes the expected calibration error from merged bins, in [0, 1].

  .. math:: \sum_m \frac{n_m}{n} \bigl|\operatorname{acc}(m) - \operatorname{conf}(m)\bigr|

  Args:
    bins: sums `[..., num_bins]` from `ece_bins` or `classwise_bins` added over batches, or `adaptive_bins`.

  Returns:
    `[...]`, in at least float32; 0 for no examples.

  Example:
    >>> ece(ece_bins(jnp.log(jnp.array([[0.75, 0.25]])), jnp.array([0])))
    Array(0.25, dtype=float32)

  References:
    Guo et al., `On Calibration of Modern Neural Networks`, 2017.
  """
  confidence, correct, count = (check_wide(x, name) for name, x in zip(Bins._fields, bins, strict=True))
  total = count.sum(axis=-1)
  return jnp.abs(correct - confidence).sum(axis=-1) / jnp.where(total > 0, total, 1)

"""Calibration of the probability of every class, not only of the top class."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg._checks import check_count
from jaxreg._sharding import partitioned
from jaxreg._sums import segment_sums
from jaxreg.calibration._ece import Bins, bin_index
from jaxreg.calibration._weights import predictions


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
    log_probs, labels, weights, where: as in `nll`.
    num_bins: number of equally wide bins.

  Returns:
    `Bins` of `[classes, num_bins]`; for a traced label out of range the first two, and so the error, are NaN.

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
  index = bin_index(probs, num_bins)
  weights, counts = weights.reshape(-1, 1), counts.reshape(-1, 1)
  of_classes = jax.vmap(lambda x, i: segment_sums(x, i, num_bins), in_axes=1)
  add_up = lambda x, i: partitioned(of_classes, x, i, kept=slice(0))
  return Bins(
    add_up(weights * probs, index),
    add_up(weights * target, index),
    add_up(counts * jnp.ones_like(probs), index),
  )

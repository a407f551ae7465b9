"""Bins of equal mass, which need all predictions at once."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg.calibration._weights import predictions
from jaxreg.typing import Array, check_count


def adaptive_bins(
  log_probs: ArrayLike, labels: ArrayLike, *, num_bins: int = 15, weights: ArrayLike | None = None
) -> dict[str, Array]:
  r"""Computes the sums of `ece_bins` in bins of equal mass; `ece` of them is the adaptive ECE.

  Sorted by confidence, the `i`-th of `n` examples is in bin :math:`\lfloor M (i + 1/2) / n \rfloor`; an
  example of weight `w` counts as `w` examples. The edges depend on all predictions: unlike the sums of
  `ece_bins`, these sums do not merge, and the whole set must be given at once. Equal confidences may fall
  into several bins, in their given order.

  Args:
    log_probs: `[..., classes]`, floating: all predictions.
    labels: `[...]`, integer.
    num_bins: `M`.
    weights: `[...]`, default 1; an example of weight 0 has no effect, whatever it contains.

  Returns:
    `confidence`, `correct` and `count`, each `[num_bins]`, in order of rising confidence.

  Raises:
    TypeError: if `log_probs` are not floating or `labels` not integer.
    ValueError: if shapes do not fit, a known value of `log_probs` is above 0, or `num_bins` is below 1.

  Example:
    >>> bins = adaptive_bins(jnp.log(jnp.array([[0.75, 0.25], [0.9, 0.1]])), jnp.array([0, 1]), num_bins=2)
    >>> bins["confidence"], bins["correct"]
    (Array([0.75, 0.9 ], dtype=float32), Array([1., 0.], dtype=float32))

  References:
    Nixon et al., `Measuring Calibration in Deep Learning`, 2019, section 3.
  """
  check_count(num_bins, "num_bins")
  log_probs, labels, weights = predictions(log_probs, labels, weights)
  confidence = jnp.exp(log_probs.max(axis=-1)).ravel()
  correct = (log_probs.argmax(axis=-1) == labels).ravel()
  order = jnp.argsort(confidence)
  weights = weights.ravel()[order]
  reached = weights.cumsum()
  # In this order whole numbers stay exact, so an example lies on an edge exactly or not at all.
  middle = num_bins * (reached - weights / 2) / jnp.where(reached[-1:] > 0, reached[-1:], 1)
  index = jnp.clip(middle.astype(jnp.int32), 0, num_bins - 1)
  add_up = lambda x: jax.ops.segment_sum(weights * x[order], index, num_segments=num_bins)
  return {
    "confidence": add_up(confidence),
    "correct": add_up(correct),
    "count": add_up(jnp.ones_like(confidence)),
  }

"""Calibration of the probability of every class, not only of the top class."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg.calibration._ece import bin_index, ece
from jaxreg.calibration._weights import predictions
from jaxreg.typing import Array, check_count


def classwise_bins(
  log_probs: ArrayLike, labels: ArrayLike, *, num_bins: int = 15, weights: ArrayLike | None = None
) -> dict[str, Array]:
  """Computes the sums per class and bin that `classwise_ece` needs; they merge by addition.

  The bins are as in `ece_bins`, but for the probability of a class instead of the largest, and `correct`
  counts the examples of the class. Every example is in one bin of every class.

  Args:
    log_probs: `[..., classes]`, floating.
    labels: `[...]`, integer.
    num_bins: number of equally wide bins.
    weights: `[...]`, default 1; an example of weight 0 has no effect, whatever it contains.

  Returns:
    `confidence`, `correct` and `count`, each `[classes, num_bins]`.

  Raises:
    TypeError: if `log_probs` are not floating or `labels` not integer.
    ValueError: if shapes do not fit, a known value of `log_probs` is above 0, or `num_bins` is below 1.

  Example:
    >>> bins = classwise_bins(jnp.log(jnp.array([[0.75, 0.25]])), jnp.array([0]), num_bins=2)
    >>> bins["correct"]
    Array([[0., 1.],
           [0., 0.]], dtype=float32)

  References:
    Nixon et al., `Measuring Calibration in Deep Learning`, 2019, section 3.
  """
  check_count(num_bins, "num_bins")
  log_probs, labels, weights = predictions(log_probs, labels, weights)
  num_classes = log_probs.shape[-1]
  probs = jnp.exp(log_probs).reshape(-1, num_classes)
  target = jax.nn.one_hot(labels.ravel(), num_classes, dtype=probs.dtype)
  index = bin_index(probs, num_bins)
  weights = weights.reshape(-1, 1)
  add_up = jax.vmap(lambda x, i: jax.ops.segment_sum(x, i, num_segments=num_bins), in_axes=1)
  return {
    "confidence": add_up(weights * probs, index),
    "correct": add_up(weights * target, index),
    "count": add_up(weights * jnp.ones_like(probs), index),
  }


def classwise_ece(bins: dict[str, Array]) -> Array:
  r"""Computes the mean over classes of the calibration error of their probabilities, in [0, 1].

  .. math:: \frac1K \sum_k \sum_m \frac{n_{km}}{n} \bigl|\operatorname{freq}_k(m) - \bar p_k(m)\bigr|

  Args:
    bins: sums from `classwise_bins`, added over batches.

  Returns:
    A scalar, in at least float32; 0 for no examples.

  Raises:
    TypeError: if the sums are not floating.

  Example:
    >>> classwise_ece(classwise_bins(jnp.log(jnp.array([[0.75, 0.25]])), jnp.array([0])))
    Array(0.25, dtype=float32)

  References:
    Nixon et al., `Measuring Calibration in Deep Learning`, 2019, section 3.
  """
  return jax.vmap(ece)({name: bins[name] for name in ("confidence", "correct", "count")}).mean()

"""The expected calibration error, from per-bin sums."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg.calibration._weights import predictions
from jaxreg.typing import Array, check_count, check_wide


def ece_bins(
  log_probs: ArrayLike, labels: ArrayLike, *, num_bins: int = 15, weights: ArrayLike | None = None
) -> dict[str, Array]:
  """Computes the sums per confidence bin that `ece` needs; they merge by addition.

  Bin `m` of `M` holds confidences in `((m - 1) / M, m / M]`, so the last bin holds a confidence of exactly 1.
  The ECE of a batch is biased, and a mean of batch ECEs is not the ECE: merge these sums instead.

  Args:
    log_probs: `[..., classes]`, floating.
    labels: `[...]`, integer.
    num_bins: number of equally wide bins.
    weights: `[...]`, default 1; an example of weight 0 has no effect, whatever it contains.

  Returns:
    `confidence`, `correct` and `count`, each `[num_bins]`.

  Raises:
    TypeError: if `log_probs` are not floating or `labels` not integer.
    ValueError: if shapes do not fit, a known value of `log_probs` is above 0, or `num_bins` is below 1.

  Example:
    >>> bins = ece_bins(jnp.log(jnp.array([[0.75, 0.25]])), jnp.array([0]), num_bins=2)
    >>> bins["confidence"]
    Array([0.  , 0.75], dtype=float32)

  References:
    Guo et al., `On Calibration of Modern Neural Networks`, 2017.
  """
  check_count(num_bins, "num_bins")
  log_probs, labels, weights = predictions(log_probs, labels, weights)
  confidence = jnp.exp(log_probs.max(axis=-1))
  correct = log_probs.argmax(axis=-1) == labels
  index = bin_index(confidence, num_bins)
  add_up = lambda x: jax.ops.segment_sum((weights * x).ravel(), index.ravel(), num_segments=num_bins)
  return {
    "confidence": add_up(confidence),
    "correct": add_up(correct),
    "count": add_up(jnp.ones_like(weights)),
  }


def bin_index(probs: Array, num_bins: int) -> Array:
  """The index of each probability's bin `(low, high]`; 0 is in the first bin."""
  return jnp.clip(jnp.ceil(probs * num_bins).astype(jnp.int32) - 1, 0, num_bins - 1)


def ece(bins: dict[str, Array]) -> Array:
  r"""Computes the expected calibration error from merged `ece_bins`, in [0, 1].

  .. math:: \sum_m \frac{n_m}{n} \bigl|\operatorname{acc}(m) - \operatorname{conf}(m)\bigr|

  Args:
    bins: sums from `ece_bins`, added over batches.

  Returns:
    A scalar, in at least float32; 0 for no examples.

  Raises:
    TypeError: if the sums are not floating.

  Example:
    >>> ece(ece_bins(jnp.log(jnp.array([[0.75, 0.25]])), jnp.array([0])))
    Array(0.25, dtype=float32)

  References:
    Guo et al., `On Calibration of Modern Neural Networks`, 2017.
  """
  bins = {name: check_wide(bins[name], f"bins[{name!r}]") for name in ("confidence", "correct", "count")}
  gaps = jnp.abs(bins["correct"] - bins["confidence"]).sum()
  total = bins["count"].sum()
  return gaps / jnp.where(total > 0, total, 1)

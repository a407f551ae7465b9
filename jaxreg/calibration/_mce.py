"""The maximum calibration error and the points of a reliability diagram, from per-bin sums."""

import jax.numpy as jnp

from jaxreg.typing import Array, check_wide


def mce(bins: dict[str, Array]) -> Array:
  r"""Computes the maximum calibration error from merged `ece_bins`, in [0, 1].

  .. math:: \max_m \bigl|\operatorname{acc}(m) - \operatorname{conf}(m)\bigr|

  The maximum is over non-empty bins. A bin with few examples has a large gap by chance, and one such bin is
  enough.

  Args:
    bins: sums from `ece_bins` added over batches, or from `adaptive_bins`.

  Returns:
    A scalar, in at least float32; 0 for no examples.

  Raises:
    TypeError: if the sums are not floating.

  Example:
    >>> bins = {"confidence": jnp.array([3.0]), "correct": jnp.array([1.0]), "count": jnp.array([4.0])}
    >>> mce(bins)
    Array(0.5, dtype=float32)

  References:
    Guo et al., `On Calibration of Modern Neural Networks`, 2017.
  """
  curve = reliability(bins)
  return jnp.abs(curve["accuracy"] - curve["confidence"]).max()


def reliability(bins: dict[str, Array]) -> dict[str, Array]:
  """Computes the points of a reliability diagram; `plots.reliability` draws it from the bins themselves.

  Args:
    bins: sums `[..., num_bins]` from `ece_bins`, `adaptive_bins` or `classwise_bins`.

  Returns:
    `confidence` and `accuracy`, the means in each bin, and `share`, the bin's part of the examples, each
    `[..., num_bins]`, in at least float32; all 0 for an empty bin.

  Raises:
    TypeError: if the sums are not floating.

  Example:
    >>> bins = {"confidence": jnp.array([3.0]), "correct": jnp.array([2.0]), "count": jnp.array([4.0])}
    >>> reliability(bins)["accuracy"]
    Array([0.5], dtype=float32)

  References:
    Guo et al., `On Calibration of Modern Neural Networks`, 2017, Fig. 1.
  """
  sums = {name: check_wide(bins[name], f"bins[{name!r}]") for name in ("confidence", "correct", "count")}
  count = sums["count"]
  number = jnp.where(count > 0, count, 1)
  total = count.sum(axis=-1, keepdims=True)
  return {
    "confidence": jnp.where(count > 0, sums["confidence"] / number, 0),
    "accuracy": jnp.where(count > 0, sums["correct"] / number, 0),
    "share": count / jnp.where(total > 0, total, 1),
  }

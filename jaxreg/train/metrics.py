"""Metrics as (sum, count): they merge by addition, exactly, over batches, devices and processes."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxreg import calibration
from jaxreg.typing import Array


def weighted(values: Array, weights: Array) -> tuple[Array, Array]:
  """`(sum, count)` of per-example values; an example of weight 0 counts for nothing, even if it is NaN."""
  values = values.astype(weights.dtype)
  return jnp.where(weights > 0, values * weights, 0).sum(), weights.sum()


def prediction_metrics(log_probs: Array, labels: Array, weights: Array) -> dict[str, Any]:
  """What every evaluation reports: error, NLL, Brier score and the bins of the calibration error."""
  return {
    "error": weighted(log_probs.argmax(axis=-1) != labels, weights),
    "nll": calibration.nll(log_probs, labels, weights=weights),
    "brier": calibration.brier(log_probs, labels, weights=weights),
    "ece": calibration.ece_bins(log_probs, labels, weights=weights),
  }


def merge(total: Any, new: Any) -> Any:
  """Adds metrics on the host, in float64; `total` may be None."""
  new = jax.tree.map(lambda x: np.asarray(x, np.float64), new)
  return new if total is None else jax.tree.map(np.add, total, new)


def summarize(metrics: dict[str, Any], prefix: str) -> dict[str, float]:
  """Means of merged metrics, by full name, such as `val/error`."""
  values = {}
  for name, value in metrics.items():
    if isinstance(value, dict):
      values[f"{prefix}/{name}"] = float(calibration.ece(value))
    else:
      total, count = value
      values[f"{prefix}/{name}"] = float(total / count) if count else float("nan")
  return values

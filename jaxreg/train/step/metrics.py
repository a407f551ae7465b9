"""Metrics as pairs (sum, count): addition merges them exactly over batches, devices and processes."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from jaxreg import calibration
from jaxreg.typing import Array, Batch


def weighed(batch: Batch) -> Batch:
  """The batch with `weights`; a batch without them gets the weight 1 for every label."""
  if "weights" in batch:
    return batch
  return {**batch, "weights": jnp.ones(batch["labels"].shape, jnp.float32)}


def weighted(values: Array, weights: Array) -> tuple[Array, Array]:
  """`(sum, count)` of per-example values; an example of weight 0 counts for nothing, even if it is NaN."""
  values = values.astype(weights.dtype)
  return jnp.where(weights > 0, values * weights, 0).sum(), weights.sum()


def prediction_metrics(log_probs: Array, labels: Array, weights: Array) -> dict[str, Any]:
  """The metrics of every evaluation: error, NLL, Brier score and the bins of the calibration error."""
  return {
    "error": weighted(log_probs.argmax(axis=-1) != labels, weights),
    "nll": calibration.nll(log_probs, labels, weights=weights),
    "brier": calibration.brier(log_probs, labels, weights=weights),
    "ece": calibration.ece_bins(log_probs, labels, weights=weights),
  }


def to_host(metrics: Any) -> Any:
  """The metrics of all replicas on the host, with the replica axis in front."""
  metrics = jax.device_get(metrics)
  return jax.tree.map(lambda *x: np.stack(x), *metrics) if isinstance(metrics, tuple) else metrics


def merge(total: Any, new: Any) -> Any:
  """Adds metrics on the host, in float64; `total` may be None."""
  new = jax.tree.map(lambda x: np.asarray(x, np.float64), new)
  return new if total is None else jax.tree.map(np.add, total, new)


def summarize(metrics: dict[str, Any], prefix: str) -> dict[str, np.ndarray]:
  """Means of merged metrics for each replica, `[replicas]`, by full name, such as `val/error`."""
  values = {}
  for name, value in metrics.items():
    if isinstance(value, dict):
      rows = [jax.tree.map(lambda x, r=r: x[r], value) for r in range(len(next(iter(value.values()))))]
      values[f"{prefix}/{name}"] = np.array([float(calibration.ece(row)) for row in rows])
    else:
      total, count = value
      values[f"{prefix}/{name}"] = np.divide(total, count, out=np.full_like(total, np.nan), where=count != 0)
  return values


def averaged(values: dict[str, np.ndarray]) -> dict[str, float]:
  """Means over the replicas; several also give half the width of a 95 % confidence interval (Student's t)."""
  means = {}
  for name, runs in values.items():
    means[name] = float(np.mean(runs))
    if len(runs) > 1:
      quantile = stats.t.ppf(0.975, len(runs) - 1)
      means[f"{name}_ci95"] = float(quantile * np.std(runs, ddof=1) / np.sqrt(len(runs)))
  return means


def shown(values: Mapping[str, Any], name: str, *, factor: float = 1.0, digits: int) -> str:
  """A metric from `averaged` as text for people: `1.67`, or `1.67 ± 0.24`."""
  half = values.get(f"{name}_ci95")
  spread = "" if half is None else f" ± {factor * half:.{digits}f}"
  return f"{factor * values[name]:.{digits}f}{spread}"

"""The common start of every statistic: checked arguments and the weights of the examples."""

from __future__ import annotations

import jax.numpy as jnp
from jax.core import Tracer
from jax.typing import ArrayLike

from jaxreg.typing import Array, check_labels, check_wide

# Rounding can leave nearly certain log-probabilities above 0, but by less than this.
ROUNDING = 1e-2


def predictions(
  log_probs: ArrayLike, labels: ArrayLike, weights: ArrayLike | None
) -> tuple[Array, Array, Array]:
  """Like `weighted_examples`, but checks that values with a weight are log-probabilities.

  Raises:
    ValueError: if a known value is above 0, such as a probability or a logit.
  """
  log_probs, labels, weights = weighted_examples(log_probs, labels, weights)
  return check_log_probs(log_probs), labels, weights


def check_log_probs(log_probs: ArrayLike) -> Array:
  """Returns log-probabilities in at least float32.

  Raises:
    TypeError: if they are not floating.
    ValueError: if a known value is above 0, such as a probability or a logit.
  """
  log_probs = check_wide(log_probs, "log_probs")
  largest = log_probs.max(initial=-jnp.inf)
  # Not `<=`, which is false for NaN.
  if not isinstance(largest, Tracer) and largest > ROUNDING:
    raise ValueError(
      f"log_probs must be log-probabilities, at most 0, got {largest:g}: take jnp.log of probabilities "
      "or jax.nn.log_softmax of logits"
    )
  return log_probs


def weighted_examples(
  log_probs: ArrayLike, labels: ArrayLike, weights: ArrayLike | None
) -> tuple[Array, Array, Array]:
  """Returns `log_probs` in at least float32, `labels`, and `weights` (default 1) in that dtype.

  A label out of range makes its example NaN. Zeros replace the contents of an example of weight 0: padding
  may hold anything, even NaN, and must reach neither the value nor the gradient.
  """
  log_probs = check_wide(log_probs, "log_probs")
  # With weight 0, any label is allowed.
  labels = check_labels(labels, log_probs, "log_probs", bounded=False)
  known = (labels >= 0) & (labels < log_probs.shape[-1])
  if weights is None:
    log_probs = jnp.where(known[..., None], log_probs, jnp.nan)
    return log_probs, labels, jnp.ones(labels.shape, log_probs.dtype)
  weights = jnp.asarray(weights, log_probs.dtype)
  if weights.shape != labels.shape:
    raise ValueError(f"weights must have the shape of labels, {labels.shape}, got {weights.shape}")
  counts = weights != 0
  log_probs = jnp.where((known | ~counts)[..., None], log_probs, jnp.nan)
  return jnp.where(counts[..., None], log_probs, 0), jnp.where(counts, labels, 0), weights

"""Confidence in logarithms, which still orders predictions whose probabilities round to 1."""

import jax
import jax.numpy as jnp

from jaxreg.typing import Array


def others_log_probs(log_probs: Array) -> Array:
  """Computes the log-probability of all classes except the first of the largest, `[..., 1]`.

  Where a prediction is nearly certain, 1 minus its probability has no digits left; this sum has all of them.
  """
  top = jax.nn.one_hot(log_probs.argmax(axis=-1), log_probs.shape[-1], dtype=bool)
  return jax.nn.logsumexp(jnp.where(top, -jnp.inf, log_probs), axis=-1, keepdims=True)


def error_log_odds(log_probs: Array) -> Array:
  """Computes the log-odds `[...]` that the most probable class is wrong, from `[..., classes]`.

  They order examples as `calibration.least_confidence` does. For two classes they are minus the absolute
  difference of the logits, so they neither underflow nor tie where probabilities saturate.
  """
  return others_log_probs(log_probs)[..., 0] - log_probs.max(axis=-1)

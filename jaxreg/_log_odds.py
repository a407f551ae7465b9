"""Confidence in logarithms, which still orders predictions whose probabilities round to 1."""

import jax
import jax.numpy as jnp

from jaxreg.typing import Array

NEARLY_CERTAIN = -0.01  # a largest log-probability; below it, 1 minus the probability keeps its digits


def others_log_probs(log_probs: Array) -> Array:
  """Computes the log-probability of all classes except the first of the largest, `[..., 1]`.

  Where a prediction is nearly certain, 1 minus its probability has no digits left; this sum has all of them.
  """
  top = jax.nn.one_hot(log_probs.argmax(axis=-1), log_probs.shape[-1], dtype=bool)
  return jax.nn.logsumexp(jnp.where(top, -jnp.inf, log_probs), axis=-1, keepdims=True)


def error_log_odds(log_probs: Array) -> Array:
  """Computes the log-odds `[...]` that the most probable class is wrong, from `[..., classes]`.

  They order examples as `calibration.least_confidence` does. Predictions with equal largest probabilities
  tie, unless they are nearly certain: then the other classes decide, which still have digits where the
  largest probability rounds to 1.
  """
  top = log_probs.max(axis=-1)
  sure = top > NEARLY_CERTAIN
  odds = jnp.log(-jnp.expm1(jnp.where(sure, -1, top))) - top
  return jnp.where(sure, others_log_probs(log_probs)[..., 0] - top, odds)


def log_entropy(log_probs: Array) -> Array:
  """Computes the logarithm `[...]` of the entropy, which orders predictions whose entropy underflows, too."""
  is_top = jax.nn.one_hot(log_probs.argmax(axis=-1), log_probs.shape[-1], dtype=bool)
  odds = others_log_probs(log_probs) - log_probs.max(axis=-1, keepdims=True)
  small = odds < -20  # log(1 + x) is x
  top_cost = jnp.where(small, odds, jnp.log(jnp.log1p(jnp.exp(jnp.where(small, 0, odds)))))
  excluded = jnp.isneginf(log_probs)
  cost = jnp.where(is_top, top_cost, jnp.log(-jnp.where(excluded, -1, log_probs)))
  return jax.nn.logsumexp(log_probs + cost, axis=-1)

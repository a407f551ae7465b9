"""The weights of examples, checked."""

import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxreg.typing import Array


def example_weights(weights: ArrayLike | None, labels: Array, dtype) -> Array:
  """`weights` in `dtype`, 1 where there are none; their shape must be that of `labels`."""
  if weights is None:
    return jnp.ones(labels.shape, dtype)
  weights = jnp.asarray(weights, dtype)
  if weights.shape != labels.shape:
    raise ValueError(f"weights must have the shape of labels, {labels.shape}, got {weights.shape}")
  return weights

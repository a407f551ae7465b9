"""Integer and soft labels. The loss of soft labels is its mean over classes, weighted by probability."""

import jax
import jax.numpy as jnp

from jaxreg._sharding import entries, placed_like
from jaxreg.typing import Array


def is_soft(labels: Array) -> bool:
  """Says whether labels are probabilities `[..., classes]` instead of integers `[...]`."""
  return jnp.issubdtype(labels.dtype, jnp.floating)


def is_target_of(labels: Array, logits: Array) -> Array:
  """Returns a bool for each class, `[..., classes]`: true for the label; all false for one out of range."""
  return placed_like(jax.nn.one_hot(labels, logits.shape[-1], dtype=bool), logits)


def label_entry(values: Array, labels: Array) -> Array:
  """Returns each label's entry of `values` `[..., classes]`; for soft labels the probability-weighted sum.

  An integer label outside `[0, classes)` gives NaN.
  """
  if is_soft(labels):
    return (labels * counted(values, labels)).sum(axis=-1)
  # A negative index would count from the end; an index past the end gives NaN.
  index = jnp.where(labels < 0, values.shape[-1], labels)
  return entries(values, index)[..., 0]


def counted(values: Array, labels: Array) -> Array:
  """Replaces infinite values of classes of probability 0, such as a class excluded by -inf, by 0."""
  return jnp.where((labels == 0) & jnp.isinf(values), 0, values)

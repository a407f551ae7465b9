"""Soft labels: a loss of probabilities over classes is the mean of its values for the classes."""

import jax.numpy as jnp

from jaxreg.typing import Array


def is_soft(labels: Array) -> bool:
  """Whether labels are probabilities `[..., classes]`, and not integers `[...]`."""
  return jnp.issubdtype(labels.dtype, jnp.floating)


def of_label(values: Array, labels: Array) -> Array:
  """Each label's entry of `values` `[..., classes]`; of soft labels the sum by their shares.

  An integer label outside `[0, classes)` gives NaN.
  """
  if is_soft(labels):
    return (labels * counted(values, labels)).sum(axis=-1)
  # A negative index would count from the end; past the end it gives NaN.
  index = jnp.where(labels < 0, values.shape[-1], labels)
  return jnp.take_along_axis(values, index[..., None], axis=-1)[..., 0]


def counted(values: Array, labels: Array) -> Array:
  """Zero for infinite values of classes without a share, such as those that a logit of -inf excludes."""
  return jnp.where((labels == 0) & jnp.isinf(values), 0, values)

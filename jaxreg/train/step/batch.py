"""The examples that losses, terms and metrics read: made once from a stored batch, after augmentation."""

# pyright: reportUnknownMemberType=false

from typing import NamedTuple

import jax.numpy as jnp

from jaxreg._sharding import rows
from jaxreg.augment import Mixing
from jaxreg.train.data.dataset import is_tokens
from jaxreg.typing import Array, Batch


class Examples(NamedTuple):
  """One batch in the model's units.

  An example of weight 0 may hold anything, even NaN: its inputs and labels are 0 here.

  Attributes:
    inputs: `[batch, ...]`, floating and divided by the scale of the data, or integer tokens.
    labels: integers `[batch]`, or `[batch, length]` for sequences, or `[batch, labels]`, each 0 or 1, for
      several labels an example; if mixed, probabilities with an axis of classes more. Numbers are floating
      `[batch]` or `[batch, targets]`, standardised.
    weights: `[batch]`, or as the labels if these have two axes; the padding of a sequence has weight 0.
    where: whether there is a label, of the shape of `weights`.
    mixing: how `augment.manifold_mixup` mixes hidden features, or None.
  """

  inputs: Array
  labels: Array
  weights: Array
  where: Array
  mixing: Mixing | None = None

  @property
  def label_weights(self) -> Array:
    """The weights of the labels: 0 for an example without a label."""
    return jnp.where(self.where, self.weights, 0)

  @property
  def mixed(self) -> bool:
    """Whether the labels are probabilities."""
    return self.labels.ndim > self.weights.ndim

  @property
  def classes(self) -> Array:
    """The labels as integers: in a mixed batch the class with the largest share."""
    return self.labels.argmax(axis=-1) if self.mixed else self.labels


def by_class(examples: Examples, class_weights: Array) -> Examples:
  """Multiplies each example's weight by that of its class, `[classes]`; mixed labels take the mean."""
  labels = examples.labels
  factor = labels @ class_weights if examples.mixed else rows(class_weights, labels)
  return examples._replace(weights=examples.weights * jnp.where(examples.where, factor, 1))


def scaled(inputs: Array, scale: float) -> Array:
  """Converts stored inputs to model units: tokens stay, others are divided by `scale` as float32."""
  return inputs if is_tokens(inputs.dtype) else inputs.astype(jnp.float32) / scale


def make_examples(batch: Batch, scale: float, *, numbers: bool = False) -> Examples:
  """Makes the examples of a batch with stored `inputs`, `labels` and perhaps `weights` (default 1).

  A label of -1 is none. With `numbers`, floating labels are standardised numbers, and NaN is none; without,
  they are probabilities, and NaN is the mix of a label that is not known.
  """
  inputs, labels = batch["inputs"], batch["labels"]
  weights = batch["weights"] if "weights" in batch else jnp.ones(labels.shape[:1], jnp.float32)
  mixed = not numbers and jnp.issubdtype(labels.dtype, jnp.floating)
  if mixed:
    where = jnp.isfinite(labels).all(axis=-1)
  else:
    where = jnp.isfinite(labels) if numbers else labels >= 0
  if where.ndim > 1:
    weights = jnp.where(where, weights[:, None] if weights.ndim == 1 else weights, 0)
  known = where & (weights != 0)
  labels = jnp.where(known[..., None] if mixed else known, labels, 0)
  present = (weights != 0).any(axis=tuple(range(1, weights.ndim)))
  # 0 * NaN must not reach the gradient.
  inputs = jnp.where(jnp.expand_dims(present, tuple(range(1, inputs.ndim))), inputs, 0)
  return Examples(scaled(inputs, scale), labels, weights, where, batch.get("mixing"))

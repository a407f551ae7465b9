"""Labels that are yes or no, one per example or several."""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import ArrayLike

from jaxreg import losses
from jaxreg._initializers import initializers
from jaxreg._leaves import wide
from jaxreg.train.methods.method import Method
from jaxreg.typing import Array


class BinaryHead(nn.Module):
  """One affine layer with a logit for each yes-or-no label: `logits` `[batch, *label_shape]`."""

  num_classes: int
  label_shape: tuple[int, ...] = ()
  initializer: str = "glorot"

  @nn.compact
  def __call__(self, features: Array) -> dict[str, Array]:
    if self.num_classes != 2:
      raise ValueError(f"num_classes must be 2, no and yes, got {self.num_classes}")
    layer = nn.Dense(math.prod(self.label_shape), name="classifier", **initializers(self.initializer))
    return {"logits": layer(features).reshape(features.shape[:1] + self.label_shape)}


def predict_binary(*, logits: Array) -> Array:
  """Computes the log-probabilities of no and yes for each label: `[batch, ..., 2]`."""
  logits = wide(logits)
  return jax.nn.log_sigmoid(jnp.stack([-logits, logits], axis=-1))


def on_yes(loss: Callable[..., Array], term: str) -> Method:
  """Makes the method of a loss of `(logits, labels, *, ...)` with labels 0 and 1, or shares of mixed ones."""

  @functools.wraps(loss)
  def yes_loss(*, labels: Array, **arguments: ArrayLike) -> Array:
    yes = labels[..., 1] if jnp.issubdtype(labels.dtype, jnp.floating) else labels
    return loss(labels=yes, **arguments)

  return Method(BinaryHead, yes_loss, predict_binary, terms=(term,), soft_labels=True, predicts="yes or no")


METHODS = {
  "binary": on_yes(losses.binary_cross_entropy, "nll"),
  "binary_focal": on_yes(losses.binary_focal, "focal"),
  "asymmetric": on_yes(losses.asymmetric, "asymmetric"),
  "binary_poly_loss": on_yes(losses.binary_poly_loss, "poly_loss"),
  "binary_confidence_penalty": on_yes(losses.binary_confidence_penalty, "confidence_penalty"),
}

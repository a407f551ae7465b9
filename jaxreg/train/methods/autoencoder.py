"""A classifier and a decoder on the same features."""

from collections.abc import Sequence

import jax
from flax import linen as nn

from jaxreg import losses, models
from jaxreg.train.methods.method import Method
from jaxreg.train.methods.softmax import predict_softmax
from jaxreg.typing import Array


class DecodingHead(nn.Module):
  """A classifier and an affine decoder on the same features: `logits` `[batch, classes]`, `reconstruction`.

  The decoder makes an autoencoder of the backbone, which learns from examples without labels, too.

  Attributes:
    num_classes: number of classes.
    input_shape: shape of an example's inputs.
    probe: whether the classifier's gradient stops at the features, so that they learn to reconstruct alone.
    initializer: `glorot` or `tutorial`.
  """

  num_classes: int
  input_shape: Sequence[int] = ()
  probe: bool = False
  initializer: str = "glorot"

  @nn.compact
  def __call__(self, features: Array) -> dict[str, Array]:
    for_classes = jax.lax.stop_gradient(features) if self.probe else features
    classifier = models.SoftmaxHead(self.num_classes, self.initializer, name="classes")
    decoder = models.AffineHead({"decoder": self.input_shape}, self.initializer, name="inputs")
    return {**classifier(for_classes), "reconstruction": decoder(features)["decoder"]}


def autoencoder(*, logits: Array, reconstruction: Array, labels: Array) -> Array:
  """Computes the classifier's loss; the decoder's, `regularizers.reconstruction`, needs no labels."""
  del reconstruction
  return losses.softmax_cross_entropy(logits, labels)


METHODS = {
  "autoencoder": Method(DecodingHead, autoencoder, predict_softmax, soft_labels=True, needs=("input_shape",))
}

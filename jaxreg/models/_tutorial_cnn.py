"""The convolutional network of TensorFlow's MNIST tutorial, which DropMax's MNIST experiments used."""

from flax import linen as nn

from jaxreg import noise
from jaxreg.models._layers import flatten, initializers, max_pool
from jaxreg.typing import Array


class TutorialCNN(nn.Module):
  """Two padded 5x5 convolutions with max-pooling, 32 and 64 channels, 1024 hidden units and dropout.

  `[batch, height, width, channels] -> [batch, 1024]`.

  Attributes:
    dropout_rate: probability of dropping a hidden unit; the tutorial's 0.5. Whether the DropMax paper kept
      it is not known.
    initializer: `tutorial` or `glorot`.

  Raises:
    ValueError: if the inputs are not images.
  """

  dropout_rate: float = 0.5
  initializer: str = "tutorial"

  @nn.compact
  def __call__(self, x: Array, *, train: bool) -> Array:
    if x.ndim != 4 or min(x.shape[1:3]) < 4:
      raise ValueError(
        f"TutorialCNN needs images [batch, height, width, channels], at least 4x4, got {x.shape}"
      )
    for channels in (32, 64):
      x = nn.relu(nn.Conv(channels, (5, 5), padding="SAME", **initializers(self.initializer))(x))
      x = max_pool(x)
    x = nn.relu(nn.Dense(1024, **initializers(self.initializer))(flatten(x)))
    if train and self.dropout_rate:
      x = noise.dropout(self.make_rng("dropout"), x, rate=self.dropout_rate)
    return x

"""The convolutional network of TensorFlow's MNIST tutorial, which DropMax's MNIST experiments used."""

from flax import linen as nn

from jaxreg.models._hidden_noise import dropped
from jaxreg.models._layers import check_images, conv_5x5, flatten, initializers
from jaxreg.typing import Array


class TutorialCNN(nn.Module):
  """Two padded 5x5 convolutions with max-pooling, 32 and 64 channels, 1024 hidden units and dropout.

  `[batch, height, width, channels] -> [batch, 1024]`.

  Attributes:
    dropout_rate: probability of dropping a hidden unit; the tutorial's 0.5. Whether the DropMax paper kept
      it is not known.
    initializer: `tutorial` or `glorot`.
  """

  dropout_rate: float = 0.5
  initializer: str = "tutorial"

  @nn.compact
  def __call__(self, x: Array, *, train: bool) -> Array:
    check_images(x, "TutorialCNN", least=4)
    for channels in (32, 64):
      x = conv_5x5(x, channels, padding="SAME", initializer=self.initializer)
    x = nn.relu(nn.Dense(1024, **initializers(self.initializer))(flatten(x)))
    return dropped(self, x, self.dropout_rate, train=train)

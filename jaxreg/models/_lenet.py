"""The networks of DropMax's experiments on MNIST: its code's LeNet, and the one of TensorFlow's tutorial."""

from flax import linen as nn

from jaxreg._checks import check_choice
from jaxreg._initializers import initializers
from jaxreg.models._hidden_noise import DROPOUTS, ON_MAPS, ON_UNITS, disturbed, dropped
from jaxreg.models._layers import Conv, check_images, flatten, max_pool
from jaxreg.typing import Array


class LeNet(nn.Module):
  """Two unpadded 5x5 convolutions with max-pooling, 20 and 50 channels, and 500 hidden units.

  `[batch, height, width, channels] -> [batch, 500]`; height and width at least 16.

  Attributes:
    dropout_rate: probability of dropping a hidden unit; 0 in the released code.
    dropout, block_size, hidden_noise_std: as in `VGG`.
    initializer: `glorot` (the released code) or `tutorial`.

  References:
    Lee et al., `DropMax: Adaptive Variational Softmax`, 2018, released code.
    LeCun et al., `Gradient-based learning applied to document recognition`, 1998.
  """

  dropout_rate: float = 0.0
  initializer: str = "glorot"
  dropout: str = "dropout"
  block_size: int = 3
  hidden_noise_std: float = 0.0

  @nn.compact
  def __call__(self, x: Array, *, train: bool) -> Array:
    check_images(x, "LeNet", least=16)
    check_choice(self.dropout, "dropout", DROPOUTS)
    for channels in (20, 50):
      x = _conv_5x5(x, channels, padding="VALID", initializer=self.initializer)
      x = disturbed(self, x, train=train, kinds=ON_MAPS)
    x = nn.relu(nn.Dense(500, **initializers(self.initializer))(flatten(x)))
    return disturbed(self, x, train=train, kinds=ON_UNITS)


class TutorialCNN(nn.Module):
  """Two padded 5x5 convolutions with max-pooling, 32 and 64 channels, 1024 hidden units and dropout.

  `[batch, height, width, channels] -> [batch, 1024]`, as in TensorFlow's MNIST tutorial.

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
      x = _conv_5x5(x, channels, padding="SAME", initializer=self.initializer)
    x = nn.relu(nn.Dense(1024, **initializers(self.initializer))(flatten(x)))
    return dropped(self, x, self.dropout_rate, train=train)


def _conv_5x5(x: Array, channels: int, *, padding: str, initializer: str) -> Array:
  """Applies a 5x5 convolution, rectified and max-pooled, inside a compact module."""
  return max_pool(nn.relu(Conv(channels, (5, 5), padding=padding, **initializers(initializer))(x)))

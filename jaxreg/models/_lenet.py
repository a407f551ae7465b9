"""The LeNet of DropMax's released code."""

from flax import linen as nn

from jaxreg._checks import check_choice
from jaxreg.models._hidden_noise import DROPOUTS, ON_MAPS, ON_UNITS, disturbed
from jaxreg.models._layers import check_images, conv_5x5, flatten, initializers
from jaxreg.typing import Array


class LeNet(nn.Module):
  """Two unpadded 5x5 convolutions with max-pooling, 20 and 50 channels, and 500 hidden units.

  `[batch, height, width, channels] -> [batch, 500]`; height and width at least 16.

  Attributes:
    dropout_rate: probability of dropping a hidden unit; 0 in the released code.
    dropout: a function of `jaxreg.noise`: `dropout` or `gaussian_dropout` of the hidden units,
      or `spatial_dropout` or `drop_block` of the feature maps after each pooling.
    block_size: side of the squares of `drop_block`.
    hidden_noise_std: standard deviation of Gaussian noise on the pooled maps and the hidden units in
      training.
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
      x = conv_5x5(x, channels, padding="VALID", initializer=self.initializer)
      x = disturbed(self, x, train=train, kinds=ON_MAPS)
    x = nn.relu(nn.Dense(500, **initializers(self.initializer))(flatten(x)))
    return disturbed(self, x, train=train, kinds=ON_UNITS)

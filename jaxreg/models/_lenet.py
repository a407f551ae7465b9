"""The LeNet of DropMax's released code."""

from flax import linen as nn

from jaxreg import noise
from jaxreg.models._layers import flatten, initializers, max_pool
from jaxreg.typing import Array


class LeNet(nn.Module):
  """Two unpadded 5x5 convolutions with max-pooling, 20 and 50 channels, and 500 hidden units.

  `[batch, height, width, channels] -> [batch, 500]`; height and width at least 16.

  Attributes:
    dropout_rate: probability of dropping a hidden unit; 0 in the released code.
    initializer: `glorot` (the released code) or `tutorial`.

  Raises:
    ValueError: if the inputs are not images or are too small.

  References:
    Lee et al., `DropMax: Adaptive Variational Softmax`, 2018, released code.
    LeCun et al., `Gradient-based learning applied to document recognition`, 1998.
  """

  dropout_rate: float = 0.0
  initializer: str = "glorot"

  @nn.compact
  def __call__(self, x: Array, *, train: bool) -> Array:
    if x.ndim != 4 or min(x.shape[1:3]) < 16:
      raise ValueError(
        f"LeNet needs images [batch, height, width, channels] of at least 16x16, got {x.shape}"
      )
    for channels in (20, 50):
      x = nn.relu(nn.Conv(channels, (5, 5), padding="VALID", **initializers(self.initializer))(x))
      x = max_pool(x)
    x = nn.relu(nn.Dense(500, **initializers(self.initializer))(flatten(x)))
    if train and self.dropout_rate:
      x = noise.dropout(self.make_rng("dropout"), x, rate=self.dropout_rate)
    return x

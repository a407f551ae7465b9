"""A network for fast experiments on CIFAR-10: three pairs of convolutions, pooled early."""

from flax import linen as nn

from jaxreg.models._convolution import convolution
from jaxreg.models._hidden_noise import check_dropout, disturbed
from jaxreg.models._layers import max_pool
from jaxreg.typing import Array


class Airbench(nn.Module):
  """A 2x2 convolution, blocks of two 3x3 convolutions with a pooling after the first, and a global maximum.

  `[batch, height, width, channels] -> [batch, widths[-1]]`; height and width at least `2**len(widths) + 1`.
  Each 3x3 convolution is followed by BatchNorm without a scale, as the source has it. So early a pooling
  about halves the work: at the source's widths a forward pass on a 32x32 image takes 0.12 billion
  multiplications.

  Ours differs from the source: the first kernel is learned and starts at random, where the source's whitens
  patches of the training images; kernels start as in He et al., not as the identity; ReLU replaces GELU,
  which takes longer on a CPU.

  Attributes:
    widths: channels of each block; the source's airbench94 has (64, 256, 256).
    dropout_rate: probability of dropping a unit, after each block.
    dropout: a function of `jaxreg.noise`: `dropout`, `gaussian_dropout`, `spatial_dropout` or `drop_block`.
    block_size: side of the squares of `drop_block`.
    hidden_noise_std: standard deviation of Gaussian noise after each block in training.
    axis_name: as in `CifarResNet`.

  Raises:
    ValueError: if `widths` is empty or has a number below 1, if the inputs are not images or are too small,
      or for another `dropout`.

  References:
    Jordan, `94% on CIFAR-10 in 3.29 Seconds on a Single GPU`, 2024, and its released code.
  """

  widths: tuple[int, ...] = (64, 256, 256)
  dropout_rate: float = 0.0
  axis_name: str | None = None
  dropout: str = "dropout"
  block_size: int = 3
  hidden_noise_std: float = 0.0

  @nn.compact
  def __call__(self, x: Array, *, train: bool) -> Array:
    self._check(x)
    x = nn.relu(self._convolve(x, 24, 2, "VALID"))
    for width in self.widths:
      x = max_pool(self._convolve(x, width, 3, "SAME"))
      x = nn.relu(self._normalise(x, train))
      x = nn.relu(self._normalise(self._convolve(x, width, 3, "SAME"), train))
      x = disturbed(self, x, train=train)
    return x.max((1, 2))

  def _convolve(self, x: Array, channels: int, size: int, padding: str) -> Array:
    return nn.Conv(
      channels,
      (size, size),
      padding=padding,
      use_bias=False,
      kernel_init=nn.initializers.he_normal(),
      conv_general_dilated=convolution,
    )(x)

  def _normalise(self, x: Array, train: bool) -> Array:
    return nn.BatchNorm(
      use_running_average=not train, momentum=0.9, use_scale=False, axis_name=self.axis_name
    )(x)

  def _check(self, x: Array) -> None:
    check_dropout(self)
    if not self.widths or min(self.widths) < 1:
      raise ValueError(f"widths must be numbers of at least 1, got {self.widths}")
    least = 2 ** len(self.widths) + 1
    if x.ndim != 4 or min(x.shape[1:3]) < least:
      raise ValueError(
        f"Airbench needs images [batch, height, width, channels] of at least {least}x{least}, got {x.shape}"
      )

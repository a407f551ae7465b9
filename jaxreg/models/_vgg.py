"""VGG networks: the source's with 11 to 19 weight layers, and one with nine for CIFAR-sized images."""

from typing import Any

from flax import linen as nn

from jaxreg._checks import check_choice, check_count
from jaxreg._errors import ArgumentError
from jaxreg.models._hidden_noise import DROPOUTS, ON_MAPS, ON_UNITS, disturbed, noisy
from jaxreg.models._layers import Conv, check_images, flatten, max_pool
from jaxreg.typing import Array

_INIT = nn.initializers.he_normal()
# 3x3 convolutions per stage by depth: the source's A, B, D and E.
_STAGES = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}


class VGG(nn.Module):
  """VGG-11, -13, -16 or -19: five stages of 3x3 convolutions with max-pooling, two hidden dense layers.

  `[batch, height, width, channels] -> [batch, hidden]`; height and width at least 32, and 224 in the source.
  The convolutions have `width`, 2, 4, 8 and 8 `width` channels (64 to 512). Dropout of units follows each
  dense layer, and dropout of maps each pooling. With the head, the number of weight layers is the one in the
  name. Kernels start as in He et al., normal with variance 2 / fan-in, and not from a trained smaller
  network.

  Attributes:
    depth: 11, 13, 16 or 19.
    width: channels of the first stage.
    hidden: units of each dense layer.
    dropout_rate: probability of dropping a hidden unit.
    dropout: a function of `jaxreg.noise`: `dropout` or `gaussian_dropout` of the hidden units,
      or `spatial_dropout` or `drop_block` of the feature maps after each pooling.
    block_size: side of the squares of `drop_block`.
    hidden_noise_std: standard deviation of Gaussian noise on the pooled maps and the hidden units in
      training.
    batch_norm: whether to normalise after each convolution, which then has no bias. The source does not
      normalise.
    axis_name: as in `CifarResNet`.

  References:
    Simonyan & Zisserman, `Very Deep Convolutional Networks for Large-Scale Image Recognition`, 2014, table 1
    and section 3.1.
  """

  depth: int = 16
  width: int = 64
  hidden: int = 4096
  dropout_rate: float = 0.5
  batch_norm: bool = False
  axis_name: str | None = None
  dropout: str = "dropout"
  block_size: int = 3
  hidden_noise_std: float = 0.0

  @nn.compact
  def __call__(self, x: Array, *, train: bool) -> Array:
    if self.depth not in _STAGES:
      raise ArgumentError("depth", f"must be one of {', '.join(map(str, _STAGES))}, got {self.depth}")
    check_images(x, "VGG", least=32)
    check_count(self.width, "width")
    check_count(self.hidden, "hidden")
    check_choice(self.dropout, "dropout", DROPOUTS)
    for number, factor in zip(_STAGES[self.depth], (1, 2, 4, 8, 8)):
      for _ in range(number):
        x = _convolve(self, x, factor * self.width, train)
      x = disturbed(self, max_pool(x), train=train, kinds=ON_MAPS)
    x = flatten(x)
    for _ in range(2):
      x = nn.relu(nn.Dense(self.hidden, kernel_init=_INIT)(x))
      x = disturbed(self, x, train=train, kinds=ON_UNITS)
    return x


class VGG9(nn.Module):
  """Three pairs of 3x3 convolutions, each followed by max-pooling and dropout, and two hidden dense layers.

  `[batch, height, width, channels] -> [batch, 4 width]`; height and width at least 8. The convolutions have
  `width`, 2 `width` and 4 `width` channels (64, 128 and 256), the dense layers 4 `width` units (256); with
  the head there are nine weight layers. The layout is ours: the first source has only the name, the second
  only networks with 11 layers and more. Kernels start as in He et al., normal with variance 2 / fan-in.

  Attributes:
    width: channels of the first pair.
    dropout_rate: probability of dropping a unit, after each pooling; the first source's 0.8 is the
      probability of keeping one.
    dropout: a function of `jaxreg.noise`: `dropout`, `gaussian_dropout`, `spatial_dropout` or `drop_block`.
    block_size, hidden_noise_std, batch_norm, axis_name: as in `VGG`.

  References:
    Zhang, Zhou & Xu, `Dropout in training neural networks: flatness of solution and noise structure`, 2021,
    figure 1 and appendix A.
    Simonyan & Zisserman, `Very Deep Convolutional Networks for Large-Scale Image Recognition`, 2014.
  """

  width: int = 64
  dropout_rate: float = 0.0
  batch_norm: bool = True
  axis_name: str | None = None
  dropout: str = "dropout"
  block_size: int = 3
  hidden_noise_std: float = 0.0

  @nn.compact
  def __call__(self, x: Array, *, train: bool) -> Array:
    check_images(x, "VGG9", least=8)
    check_count(self.width, "width")
    check_choice(self.dropout, "dropout", DROPOUTS)
    for channels in (self.width, 2 * self.width, 4 * self.width):
      for _ in range(2):
        x = _convolve(self, x, channels, train)
      x = disturbed(self, max_pool(x), train=train)
    x = flatten(x)
    for _ in range(2):
      x = noisy(self, nn.relu(nn.Dense(4 * self.width, kernel_init=_INIT)(x)), train=train)
    return x


def _convolve(module: Any, x: Array, channels: int, train: bool) -> Array:
  x = Conv(channels, (3, 3), use_bias=not module.batch_norm, kernel_init=_INIT)(x)
  if module.batch_norm:
    x = nn.BatchNorm(use_running_average=not train, momentum=0.9, axis_name=module.axis_name)(x)
  return nn.relu(x)

"""A VGG network of nine weight layers for images of CIFAR's size."""

from flax import linen as nn

from jaxreg import noise
from jaxreg.models._layers import flatten, max_pool
from jaxreg.typing import Array


class VGG9(nn.Module):
  """Three pairs of 3x3 convolutions, each followed by max-pooling and dropout, and two hidden dense layers.

  `[batch, height, width, channels] -> [batch, 4 width]`; height and width at least 8. The convolutions have
  `width`, 2 `width` and 4 `width` channels (64, 128 and 256), the dense layers 4 `width` units (256); with
  the head that makes nine layers with weights. The layout is ours: the first source has only the name, the
  second only networks of 11 layers and more. Kernels start as He et al.'s, normal with variance 2 / fan-in.

  Attributes:
    width: channels of the first pair.
    dropout_rate: probability of dropping a unit, after each pooling; the first source's 0.8 is that of
      keeping one.
    batch_norm: normalises after each convolution, which then has no bias.
    axis_name: as in `CifarResNet`.

  Raises:
    ValueError: if `width` is below 1, or the inputs are not images or too small.

  References:
    Zhang, Zhou & Xu, `Dropout in training neural networks: flatness of solution and noise structure`, 2021,
    figure 1 and appendix A.
    Simonyan & Zisserman, `Very Deep Convolutional Networks for Large-Scale Image Recognition`, 2014.
  """

  width: int = 64
  dropout_rate: float = 0.0
  batch_norm: bool = True
  axis_name: str | None = None

  @nn.compact
  def __call__(self, x: Array, *, train: bool) -> Array:
    if self.width < 1:
      raise ValueError(f"width must be at least 1, got {self.width}")
    if x.ndim != 4 or min(x.shape[1:3]) < 8:
      raise ValueError(f"VGG9 needs images [batch, height, width, channels] of at least 8x8, got {x.shape}")
    init = nn.initializers.he_normal()
    for channels in (self.width, 2 * self.width, 4 * self.width):
      for _ in range(2):
        x = nn.Conv(channels, (3, 3), use_bias=not self.batch_norm, kernel_init=init)(x)
        if self.batch_norm:
          x = nn.BatchNorm(use_running_average=not train, momentum=0.9, axis_name=self.axis_name)(x)
        x = nn.relu(x)
      x = max_pool(x)
      if train and self.dropout_rate:
        x = noise.dropout(self.make_rng("dropout"), x, rate=self.dropout_rate)
    x = flatten(x)
    for _ in range(2):
      x = nn.relu(nn.Dense(4 * self.width, kernel_init=init)(x))
    return x

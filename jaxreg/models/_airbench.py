"""A network for fast experiments on CIFAR-10: three pairs of convolutions, pooled early."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from jaxreg._checks import check_choice
from jaxreg._errors import ArgumentError
from jaxreg.models._hidden_noise import DROPOUTS, disturbed
from jaxreg.models._layers import Conv, check_images, max_pool
from jaxreg.typing import Array, Key

# Variances on CIFAR-10's training images, standardised: a row for each wavelet, a column for each colour.
VARIANCES = np.array(
  [[10.05, 0.842, 0.194], [0.395, 0.0171, 0.0052], [0.331, 0.0148, 0.0047], [0.0557, 0.0017, 0.0007]]
)


class Airbench(nn.Module):
  """A 2x2 convolution, blocks of two 3x3 convolutions with a pooling after the first, and a global maximum.

  `[batch, height, width, channels] -> [batch, widths[-1]]`; height and width at least `2**len(widths) + 1`.
  Each 3x3 convolution starts as the identity where it can. BatchNorm without a scale follows; its bias has
  64 times the learning rate of SGD, as in the source. So early a pooling about halves the
  work: at the source's widths a forward pass on a 32x32 image takes 0.12 billion multiplications.

  Ours differs from the source: ReLU replaces GELU, which takes longer on a CPU; the factor of the logits is
  one of the features, since heads are ours, and have a bias; the first convolution has none. Whitened
  filters start as fixed numbers, which the source computes from its data and keeps.

  Attributes:
    widths: channels of each block; the source's airbench94 has (64, 256, 256).
    dropout_rate: probability of dropping a unit, after each block.
    dropout: a function of `jaxreg.noise`: `dropout`, `gaussian_dropout`, `spatial_dropout` or `drop_block`.
    hidden_noise_std: standard deviation of Gaussian noise after each block in training.
    block_size, axis_name: as in `CifarResNet`.
    scale: factor of the features; the source's is 1/9.
    whitened: whether the first kernel starts with filters whose outputs on standardised CIFAR-10 have little
      correlation and a variance of about 1, and with their negatives; else it starts at random. It needs
      three channels.

  References:
    Jordan, `94% on CIFAR-10 in 3.29 Seconds on a Single GPU`, 2024, and its released code.
  """

  widths: tuple[int, ...] = (64, 256, 256)
  dropout_rate: float = 0.0
  axis_name: str | None = None
  dropout: str = "dropout"
  block_size: int = 3
  hidden_noise_std: float = 0.0
  scale: float = 1 / 9
  whitened: bool = False

  @nn.compact
  def __call__(self, x: Array, *, train: bool) -> Array:
    self._check(x)
    first = _whitening if self.whitened else nn.initializers.he_normal()
    x = nn.relu(self._convolve(x, 24, 2, "VALID", first))
    for width in self.widths:
      x = max_pool(self._convolve(x, width, 3, "SAME", _identity))
      x = nn.relu(self._normalise(x, train))
      x = nn.relu(self._normalise(self._convolve(x, width, 3, "SAME", _identity), train))
      x = disturbed(self, x, train=train)
    return x.max((1, 2)) * self.scale

  def _convolve(self, x: Array, channels: int, size: int, padding: str, kernel_init: Any) -> Array:
    return Conv(channels, (size, size), padding=padding, use_bias=False, kernel_init=kernel_init)(x)

  def _normalise(self, x: Array, train: bool) -> Array:
    x = nn.BatchNorm(
      use_running_average=not train,
      momentum=0.9,
      use_scale=False,
      use_bias=False,
      axis_name=self.axis_name,
    )(x)
    return FastBias()(x)

  def _check(self, x: Array) -> None:
    check_choice(self.dropout, "dropout", DROPOUTS)
    if not self.widths or min(self.widths) < 1:
      raise ArgumentError("widths", f"must be numbers of at least 1, got {self.widths}")
    check_images(x, "Airbench", least=2 ** len(self.widths) + 1)
    if self.whitened and x.shape[-1] != 3:
      raise ValueError(f"whitened filters need images of three channels, got {x.shape}")


class FastBias(nn.Module):
  """Adds a bias per channel, eight times its parameter: in SGD it learns 64 times as fast."""

  @nn.compact
  def __call__(self, x: Array) -> Array:
    bias = self.param("bias", nn.initializers.zeros_init(), x.shape[-1:])
    return x + 8 * bias.astype(x.dtype).reshape(1, 1, 1, -1)


def _identity(key: Key, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
  """Copies each input channel to an output channel; further kernels are uniform up to 1 / sqrt(fan-in)."""
  *_, inputs, outputs = shape
  bound = 1 / math.sqrt(math.prod(shape[:-1]))
  drawn = jax.random.uniform(key, shape, dtype, -bound, bound)
  kept = jnp.zeros(shape, dtype).at[1, 1].set(jnp.eye(inputs, outputs, dtype=dtype))
  return jnp.where(jnp.arange(outputs) < inputs, kept, drawn)


def _whitening(key: Key, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
  """Returns Haar wavelets of brightness and of two opponent colours, each over its standard deviation.

  They are close to the principal components of patches, which the source computes. Its 5e-4 is added to the
  variances: the finest colours of photographs are mostly noise.
  """
  del key
  wavelets = np.array([[1, 1, 1, 1], [1, 1, -1, -1], [1, -1, 1, -1], [1, -1, -1, 1]]) / 2
  colors = np.array([[1, 1, 1] / np.sqrt(3), [1, 0, -1] / np.sqrt(2), [1, -2, 1] / np.sqrt(6)])
  filters = np.einsum("wp,kc,wk->pcwk", wavelets, colors, (VARIANCES + 5e-4) ** -0.5).reshape(2, 2, 3, 12)
  return jnp.asarray(np.concatenate([filters, -filters], axis=-1), dtype).reshape(shape)

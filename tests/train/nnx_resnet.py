"""A residual network of Flax NNX in a file of its own, written as a user of NNX writes it."""

from functools import partial

import jax
from flax import nnx


class Block(nnx.Module):
  """Two convolutions with BatchNorm, and a shortcut, which is a convolution where the shape changes."""

  def __init__(self, inputs: int, outputs: int, *, strides: int, rate: float, rngs: nnx.Rngs):
    conv = partial(nnx.Conv, use_bias=False, rngs=rngs)
    self.conv1 = conv(inputs, outputs, kernel_size=(3, 3), strides=strides)
    self.norm1 = nnx.BatchNorm(outputs, momentum=0.9, rngs=rngs)
    self.dropout = nnx.Dropout(rate, rngs=rngs)
    self.conv2 = conv(outputs, outputs, kernel_size=(3, 3))
    self.norm2 = nnx.BatchNorm(outputs, momentum=0.9, scale_init=nnx.initializers.zeros, rngs=rngs)
    if strides == 1 and inputs == outputs:
      self.shortcut = None
    else:
      self.shortcut = nnx.Sequential(
        conv(inputs, outputs, kernel_size=(1, 1), strides=strides),
        nnx.BatchNorm(outputs, momentum=0.9, rngs=rngs),
      )

  def __call__(self, x: jax.Array) -> jax.Array:
    y = self.dropout(nnx.relu(self.norm1(self.conv1(x))))
    y = self.norm2(self.conv2(y))
    return nnx.relu(y + (x if self.shortcut is None else self.shortcut(x)))


class ResidualNet(nnx.Module):
  """A residual network without its last layer.

  Args:
    widths: the channels of each stage.
    depth: the blocks of each stage.
    rate: the rate of dropout, in the blocks and before the last layer.
  """

  def __init__(
    self,
    input_shape: tuple[int, ...],
    *,
    widths: tuple[int, ...] = (16, 32, 64),
    depth: int = 2,
    rate: float = 0.1,
    rngs: nnx.Rngs,
  ):
    channels = input_shape[-1]
    self.stem = nnx.Conv(channels, widths[0], kernel_size=(3, 3), use_bias=False, rngs=rngs)
    self.norm = nnx.BatchNorm(widths[0], momentum=0.9, rngs=rngs)
    blocks, inputs = [], widths[0]
    for stage, width in enumerate(widths):
      for number in range(depth):
        strides = 2 if stage > 0 and number == 0 else 1
        blocks.append(Block(inputs, width, strides=strides, rate=rate, rngs=rngs))
        inputs = width
    self.blocks = nnx.List(blocks)
    self.dropout = nnx.Dropout(rate, rngs=rngs)

  def __call__(self, x: jax.Array) -> jax.Array:
    x = nnx.relu(self.norm(self.stem(x)))
    for block in self.blocks:
      x = block(x)
    return self.dropout(x.mean(axis=(1, 2)))

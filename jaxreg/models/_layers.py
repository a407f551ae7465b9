"""Parts shared by the models: convolutions and pooling."""

import functools
import math

import jax.numpy as jnp
from flax import linen as nn

from jaxreg._cpu.convolution import convolution
from jaxreg.typing import Array

Conv = functools.partial(nn.Conv, conv_general_dilated=convolution)


def flatten(x: Array) -> Array:
  """Reshapes `[batch, ...]` to `[batch, features]`."""
  return x.reshape(x.shape[0], math.prod(x.shape[1:]))  # with no examples, the size of -1 is undefined


def check_images(x: Array, name: str, *, least: int = 1) -> None:
  """Checks that a network's inputs are images, large enough for its poolings."""
  if x.ndim != 4 or min(x.shape[1:3]) < least:
    raise ValueError(
      f"{name} needs images [batch, height, width, channels] of at least {least}x{least}, got {x.shape}"
    )


def max_pool(x: Array) -> Array:
  """Computes the maximum of each 2x2 window, as `nn.max_pool(x, (2, 2), strides=(2, 2))`.

  `[batch, height, width, channels] -> [batch, height // 2, width // 2, channels]`. Equal values share the
  gradient: half to each row of the window, and of that half to each value.
  """
  # On CPUs the gradient of a window reduction runs element by element, half of LeNet's whole step, and the
  # gradient of a maximum over axes counts the equal values in passes of its own.
  height, width = x.shape[1] // 2 * 2, x.shape[2] // 2 * 2
  x = jnp.maximum(x[:, 0:height:2], x[:, 1:height:2])
  return jnp.maximum(x[:, :, 0:width:2], x[:, :, 1:width:2])

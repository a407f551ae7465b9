"""Parts shared by the models: initialisations (two from DropMax's sources), convolutions, pooling."""

import functools
import math
from typing import Any

import jax.numpy as jnp
from flax import linen as nn

from jaxreg._checks import check_choice
from jaxreg.models._convolution import convolution
from jaxreg.typing import Array

Conv = functools.partial(nn.Conv, conv_general_dilated=convolution)


def initializers(name: str) -> dict[str, Any]:
  """Returns the initializers as keyword arguments for Linen layers.

  `glorot`: uniform Glorot kernels and zero biases, the released code's.
  `lecun`: normal kernels of variance 1 / fan-in and zero biases, which SELU asks for.
  `tutorial`: kernels from a normal truncated at two of its standard deviations of 0.1, biases 0.1, as in
  TensorFlow's MNIST tutorial.
  """
  kernels = {
    "glorot": nn.initializers.glorot_uniform(),
    "lecun": nn.initializers.lecun_normal(),
    "tutorial": nn.initializers.truncated_normal(stddev=0.1),
  }
  check_choice(name, "initializer", kernels)
  bias = nn.initializers.constant(0.1 if name == "tutorial" else 0.0)
  return {"kernel_init": kernels[name], "bias_init": bias}


def flatten(x: Array) -> Array:
  """`[batch, ...] -> [batch, features]`."""
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

"""Parts shared by the models: initialisations (two from DropMax's sources), pooling and flattening."""

from typing import Any

from flax import linen as nn

from jaxreg.typing import Array


def initializers(name: str) -> dict[str, Any]:
  """Returns the initializers as keyword arguments for Linen layers.

  `glorot`: uniform Glorot kernels and zero biases, the released code's.
  `lecun`: normal kernels of variance 1 / fan-in and zero biases, which SELU asks for.
  `tutorial`: kernels from a normal truncated at two of its standard deviations of 0.1, biases 0.1, as in
  TensorFlow's MNIST tutorial.

  Raises:
    ValueError: for another name.
  """
  if name == "glorot":
    return {"kernel_init": nn.initializers.glorot_uniform(), "bias_init": nn.initializers.zeros_init()}
  if name == "lecun":
    return {"kernel_init": nn.initializers.lecun_normal(), "bias_init": nn.initializers.zeros_init()}
  if name == "tutorial":
    return {
      "kernel_init": nn.initializers.truncated_normal(stddev=0.1),
      "bias_init": nn.initializers.constant(0.1),
    }
  raise ValueError(f"initializer must be 'glorot', 'lecun' or 'tutorial', got {name!r}")


def flatten(x: Array) -> Array:
  """`[batch, ...] -> [batch, features]`."""
  return x.reshape(x.shape[0], -1)


def max_pool(x: Array) -> Array:
  """Computes the maximum of each 2x2 window, as `nn.max_pool(x, (2, 2), strides=(2, 2))`.

  `[batch, height, width, channels] -> [batch, height // 2, width // 2, channels]`. Equal values share the
  gradient.
  """
  # A reshape: on CPUs the gradient of a window reduction runs element by element, half of LeNet's whole step.
  batch, height, width, channels = x.shape
  x = x[:, : height // 2 * 2, : width // 2 * 2]
  return x.reshape(batch, height // 2, 2, width // 2, 2, channels).max((2, 4))

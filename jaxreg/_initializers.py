"""The initializers of Linen layers by name, two of them from DropMax's sources."""

from typing import Any

from flax import linen as nn

from jaxreg._checks import check_choice


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

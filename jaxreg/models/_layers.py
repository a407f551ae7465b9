"""What the models share: the two initialisations of DropMax's sources, and flattening."""

from typing import Any

from flax import linen as nn

from jaxreg.typing import Array


def initializers(name: str) -> dict[str, Any]:
  """Keyword arguments for Linen layers.

  `glorot`: uniform Glorot kernels and zero biases, the released code's.
  `tutorial`: kernels from a normal truncated at two of its standard deviations of 0.1, biases 0.1, as in
  TensorFlow's MNIST tutorial.

  Raises:
    ValueError: for another name.
  """
  if name == "glorot":
    return {"kernel_init": nn.initializers.glorot_uniform(), "bias_init": nn.initializers.zeros_init()}
  if name == "tutorial":
    return {
      "kernel_init": nn.initializers.truncated_normal(stddev=0.1),
      "bias_init": nn.initializers.constant(0.1),
    }
  raise ValueError(f"initializer must be 'glorot' or 'tutorial', got {name!r}")


def flatten(x: Array) -> Array:
  """`[batch, ...] -> [batch, features]`."""
  return x.reshape(x.shape[0], -1)

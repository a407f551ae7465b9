"""The convolution of residual networks, whose input XLA computes once on a CPU."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxreg.typing import Array


def convolution(x: Array, kernel: Array, *arguments: Any, **options: Any) -> Array:
  """`jax.lax.conv_general_dilated` for `flax.linen.Conv(conv_general_dilated=...)`, with the same values.

  On a CPU, XLA computes cheap operations anew for everything that reads them. The gradient of a kernel would
  so compute all residual blocks before it again, in a transposed order. XLA computes a division once, so
  there we divide the input by a one that XLA cannot see through.
  """
  if jax.default_backend() == "cpu":
    first = lax.stop_gradient(kernel)[(0,) * kernel.ndim]
    one = jnp.exp(jnp.fmin(jnp.abs(first), 0))
    x = x / one.astype(x.dtype)
  return lax.conv_general_dilated(x, kernel, *arguments, **options)

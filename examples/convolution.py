"""Convolutions that are fast on CPUs, in anybody's layers: `python examples/convolution.py`.

Linen and NNX take the function that convolves; a layer of Equinox calls it itself. The three layers have the
same weights, and so the same outputs.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import nnx

from jaxreg.models import convolution

x = jax.random.normal(jax.random.key(0), (8, 16, 16, 32))

linen = nn.Conv(32, (3, 3), conv_general_dilated=convolution)
params = linen.init(jax.random.key(1), x)
kernel, bias = params["params"]["kernel"], params["params"]["bias"]
of_linen = linen.apply(params, x)

layer = nnx.Conv(32, 32, (3, 3), conv_general_dilated=convolution, rngs=nnx.Rngs(0))
layer.kernel[...], layer.bias[...] = kernel, bias
of_nnx = layer(x)


class Conv2d(eqx.nn.Conv2d):
  """Equinox's layer takes one image, `[channels, height, width]`, and its kernel has the outputs first."""

  def __call__(self, x, *, key=None):
    y = convolution(x[None], self.weight, self.stride, self.padding, rhs_dilation=self.dilation)
    return y[0] + self.bias


equinox = Conv2d(32, 32, 3, padding="SAME", key=jax.random.key(2))
weights = kernel.transpose(3, 2, 0, 1), bias[:, None, None]
equinox = eqx.tree_at(lambda layer: (layer.weight, layer.bias), equinox, weights)
of_equinox = jax.vmap(equinox)(x.transpose(0, 3, 1, 2)).transpose(0, 2, 3, 1)

for name, y in (("NNX", of_nnx), ("Equinox", of_equinox)):
  print(f"{name} differs from Linen by at most {float(jnp.abs(y - of_linen).max()):.1e}")
np.testing.assert_allclose(of_nnx, of_linen, rtol=1e-5, atol=1e-5)

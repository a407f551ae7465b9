"""Parameter sharing: a convolution is a Toeplitz layer, and a shared weight has the sum of the gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from scipy.linalg import toeplitz

WHERE = "parameter tying and parameter sharing"


def convolution(size=7, width=3, seed=0):
  """A layer and its kernel, an input, and the dense matrix `[outputs, inputs]`; all biases are 0."""
  rng = np.random.default_rng(seed)
  kernel, x = rng.normal(size=width), rng.normal(size=size)
  layer = nn.Conv(1, (width,), padding="VALID", use_bias=False, param_dtype=jnp.float64)
  apply = lambda kernel, x: layer.apply({"params": {"kernel": kernel[:, None, None]}}, x[None, :, None])[
    0, :, 0
  ]
  outputs = size - width + 1
  dense = toeplitz(np.r_[kernel[0], np.zeros(outputs - 1)], np.r_[kernel, np.zeros(outputs - 1)])
  return apply, kernel, x, dense


@pytest.mark.claim("regularization", WHERE, "a convolution is a dense layer with a Toeplitz matrix")
def test_a_convolution_is_a_toeplitz_layer(x64):
  apply, kernel, x, dense = convolution()
  np.testing.assert_allclose(apply(jnp.asarray(kernel), jnp.asarray(x)), dense @ x, rtol=1e-14, atol=1e-15)


@pytest.mark.claim("regularization", WHERE, "the gradient of a shared parameter is the sum, and not the mean")
def test_the_gradient_of_a_shared_weight_is_the_sum_of_the_untied_ones(x64):
  apply, kernel, x, dense = convolution()
  target = np.arange(5.0)
  loss = lambda kernel: jnp.sum((apply(kernel, jnp.asarray(x)) - target) ** 2) / 2
  untied = np.outer(dense @ x - target, x)  # d loss / d dense
  summed = [np.trace(untied, offset) for offset in range(len(kernel))]
  np.testing.assert_allclose(jax.grad(loss)(jnp.asarray(kernel)), summed, rtol=1e-13)

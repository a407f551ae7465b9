"""The convolution of the residual networks is Flax's, and XLA does not compute its input again."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from jaxreg.models._convolution import convolution

X = jax.random.normal(jax.random.key(0), (2, 6, 6, 3))
OURS = {"conv_general_dilated": convolution}


@pytest.mark.parametrize("options", [{}, {"strides": 2, "padding": [(1, 0), (0, 2)]}], ids=["", "strided"])
def test_values_and_derivatives_are_those_of_flax(options):
  params = nn.Conv(2, (3, 3), **options).init(jax.random.key(1), X)
  value = lambda model: lambda params, x: jnp.sum(jnp.sin(model.apply(params, x)))
  results = []
  for more in (OURS, {}):
    model = nn.Conv(2, (3, 3), **options, **more)
    results.append([model.apply(params, X), jax.grad(value(model), (0, 1))(params, X)])
    results[-1].append(jax.jvp(jax.grad(value(model)), (params, X), (params, X))[1])
  np.testing.assert_array_equal(results[0][0], results[1][0])
  for ours, theirs in zip(*map(jax.tree.leaves, results)):
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def inputs(convolve):
  """How many activations each transposing loop reads, in the gradient of six residual blocks."""

  def loss(kernels, x):
    for kernel in kernels:
      x = jax.nn.relu(x + convolve(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")))
    return jnp.sum(x**2)

  kernels, x = [jnp.ones((3, 3, 4, 4))] * 6, jnp.ones((8, 6, 6, 4))
  text = jax.jit(jax.grad(loss)).lower(kernels, x).compile().as_text()
  loops = re.findall(r"^%fused\S* \((.*)\) -> f32\[4,6,6,8\]", text, re.MULTILINE)
  return [loop.count("f32[8,6,6,4]") for loop in loops]


def test_the_gradient_of_a_kernel_does_not_compute_the_blocks_before_it_again():
  assert max(inputs(jax.lax.conv_general_dilated)) == 6
  assert max(inputs(convolution)) == 1

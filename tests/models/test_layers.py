"""The layers that the models share, against Linen's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from jaxreg.models._layers import max_pool


@pytest.mark.thorough
@pytest.mark.parametrize("size", [(4, 6), (5, 7), (2, 2)])
def test_max_pool_is_linens_in_value_and_gradient(size):
  x = jax.random.permutation(jax.random.key(0), jnp.arange(3.0 * size[0] * size[1] * 2)).reshape(3, *size, 2)
  weights = jax.random.normal(jax.random.key(1), max_pool(x).shape)
  linen = lambda x: nn.max_pool(x, (2, 2), strides=(2, 2))
  np.testing.assert_array_equal(max_pool(x), linen(x))
  for pool in (max_pool, linen):
    gradient = jax.jit(jax.grad(lambda x, pool=pool: (weights * pool(x)).sum()))(x)
    # Each weight goes to the largest of its window, and nothing anywhere else.
    assert np.count_nonzero(gradient) == weights.size
    np.testing.assert_allclose((gradient * x).sum(), (weights * linen(x)).sum(), rtol=1e-5)


@pytest.mark.thorough
def test_max_pool_shares_the_gradient_of_equals():
  gradient = jax.grad(lambda x: max_pool(x).sum())(jnp.ones((1, 2, 2, 1)))
  np.testing.assert_array_equal(gradient.ravel(), [0.25] * 4)

"""DropConnect against the enumeration of its masks."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest

from jaxreg import noise, paths

RATE = 0.3


def problem():
  rng = np.random.default_rng(0)
  return rng.normal(size=(3,)), rng.normal(size=(3, 2)), rng.normal(size=2)


def enumerated(inverted):
  """The layer under each of the 2^6 masks of its weights, and their probabilities."""
  x, kernel, bias = problem()
  masks = oracles.all_masks(6)
  outputs = np.einsum("f,mfu->mu", x, masks.reshape(-1, 3, 2) * kernel) / (1 - RATE if inverted else 1) + bias
  return outputs, oracles.mask_probabilities(masks, np.full(6, 1 - RATE))


@pytest.mark.parametrize("inverted", [True, False])
def test_draws_are_distributed_as_the_masks(inverted):
  outputs, weights = enumerated(inverted)
  x, kernel, bias = (jnp.asarray(a, jnp.float32) for a in problem())
  options = {"rate": RATE, "bias": bias, "per_example": False, "inverted": inverted}
  layer = jax.jit(jax.vmap(lambda key: noise.dropconnect(key, x, kernel, **options)))
  number = 4000
  got = np.asarray(layer(jax.random.split(jax.random.key(0), number)), np.float64)
  mean = weights @ outputs
  variance = weights @ (outputs - mean) ** 2
  assert (np.abs(got.mean(0) - mean) < 4 * np.sqrt(variance / number)).all()
  fourth = weights @ (outputs - mean) ** 4
  assert (np.abs(got.var(0) - variance) < 4 * np.sqrt((fourth - variance**2) / number) + 1e-3).all()
  # Each output is one of those that the masks give.
  assert np.abs(got[:, None] - outputs).max(-1).min(1).max() < 1e-5


@pytest.mark.thorough
def test_examples_have_masks_of_their_own_or_one():
  x, kernel = jnp.ones((6, 20)), jnp.ones((20, 3))
  own = np.asarray(noise.dropconnect(jax.random.key(1), x, kernel, rate=0.5))
  one = np.asarray(noise.dropconnect(jax.random.key(1), x, kernel, rate=0.5, per_example=False))
  assert len(np.unique(own, axis=0)) == 6
  assert len(np.unique(one, axis=0)) == 1


@pytest.mark.thorough
@pytest.mark.parametrize("per_example", [True, False])
def test_limits(per_example):
  x, kernel, bias = (jnp.asarray(a, jnp.float32) for a in problem())
  x = x[None]
  layer = lambda rate: noise.dropconnect(
    jax.random.key(2), x, kernel, rate=rate, bias=bias, per_example=per_example
  )
  np.testing.assert_allclose(layer(0.0), x @ kernel + bias[None], rtol=1e-6)
  np.testing.assert_array_equal(layer(1.0), bias[None])
  for rate in (0.0, 0.5, 1.0):
    gradients = jax.jit(
      jax.grad(
        lambda x, kernel, rate: noise.dropconnect(
          jax.random.key(2), x, kernel, rate=rate, per_example=per_example
        ).sum(),
        (0, 1, 2),
      )
    )(x, kernel, rate)
    assert all(np.isfinite(g).all() for g in gradients)


@pytest.mark.thorough
def test_params_of_a_model():
  params = {"a": {"kernel": jnp.ones((40, 50)), "bias": jnp.ones(50)}, "b": {"kernel": jnp.ones((50, 40))}}
  got = noise.dropconnect_params(jax.random.key(4), params, rate=0.25)
  np.testing.assert_array_equal(got["a"]["bias"], 1)
  for name in ("a", "b"):
    kernel = np.asarray(got[name]["kernel"])
    assert set(np.unique(kernel)) == {0.0, np.float32(1 / 0.75)}
    assert abs((kernel == 0).mean() - 0.25) < 4 * math.sqrt(0.25 * 0.75 / 2000)
  assert (got["a"]["kernel"].ravel() != got["b"]["kernel"].ravel()).any()
  # Which leaves are selected does not change what is drawn for the others.
  only = noise.dropconnect_params(
    jax.random.key(4), params, rate=0.25, mask=lambda params: paths.select(params, "b/*")
  )
  np.testing.assert_array_equal(only["b"]["kernel"], got["b"]["kernel"])
  np.testing.assert_array_equal(only["a"]["kernel"], 1)


def test_what_does_not_fit_is_refused():
  key, x = jax.random.key(0), jnp.ones((2, 3))
  for kernel in (jnp.ones((2, 3)), jnp.ones(3), jnp.ones((2, 3, 4))):
    with pytest.raises(ValueError, match="kernel must have shape"):
      noise.dropconnect(key, x, kernel, rate=0.5)
  with pytest.raises(ValueError, match="rate"):
    noise.dropconnect(key, x, jnp.ones((3, 1)), rate=1.5)
  with pytest.raises(ValueError, match="mask selects no parameter of params; there are weights"):
    noise.dropconnect_params(key, {"weights": jnp.ones(3)}, rate=0.5)
  with pytest.raises(TypeError, match="a/kernel must be floating"):
    noise.dropconnect_params(key, {"a": {"kernel": jnp.ones(3, int)}}, rate=0.5)

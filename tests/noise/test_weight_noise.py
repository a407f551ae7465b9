"""Noise on weights: its size, that it does not stick, and which parameters it reaches."""

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx

from jaxreg import noise, paths

PARAMS = {"a": {"kernel": jnp.full((200, 100), 2.0), "bias": jnp.full(100, 2.0)}, "b": {"scale": jnp.ones(3)}}


@pytest.mark.thorough
def test_relative_noise_is_alike_for_leaves_of_any_scale():
  small = {"kernel": jnp.asarray(np.random.default_rng(0).normal(size=(50, 50)) * 1e-3, jnp.float32)}
  large = {"kernel": 1e6 * small["kernel"]}
  one, two = (noise.weight_noise(jax.random.key(1), p, std=0.1, relative=True) for p in (small, large))
  np.testing.assert_allclose(1e6 * one["kernel"], two["kernel"], rtol=1e-4)
  zero = {"kernel": jnp.zeros(4)}
  total = lambda p: noise.weight_noise(jax.random.key(1), p, std=0.1, relative=True)["kernel"].sum()
  np.testing.assert_array_equal(jax.grad(total)(zero)["kernel"], 1)


@pytest.mark.thorough
def test_the_gradient_is_that_at_the_noisy_point():
  params = {"kernel": jnp.array([0.3, -0.7])}
  loss = lambda p: jnp.sin(p["kernel"]).prod()
  for options in ({}, {"relative": True}):
    noisy = lambda p, options=options: noise.weight_noise(jax.random.key(2), p, std=0.5, **options)
    got = jax.grad(lambda p, noisy=noisy: loss(noisy(p)))(params)
    want = jax.grad(loss)(noisy(params))
    np.testing.assert_allclose(got["kernel"], want["kernel"], rtol=1e-6)
  # Multiplied by the factor, for multiplicative noise.
  noisy = lambda p: noise.weight_noise(jax.random.key(2), p, std=0.5, kind="multiplicative")
  got = jax.grad(lambda p: loss(noisy(p)))(params)
  factor = noisy({"kernel": jnp.ones(2)})["kernel"]
  np.testing.assert_allclose(got["kernel"], factor * jax.grad(loss)(noisy(params))["kernel"], rtol=1e-5)


@pytest.mark.thorough
def test_no_noise_is_the_identity_and_std_may_be_traced():
  for options in ({}, {"kind": "multiplicative"}, {"relative": True}):
    function = jax.jit(
      lambda std, options=options: noise.weight_noise(jax.random.key(3), PARAMS, std=std, **options)
    )
    chex.assert_trees_all_equal(function(0.0), PARAMS)
    eager = noise.weight_noise(jax.random.key(3), PARAMS, std=0.2, **options)
    chex.assert_trees_all_close(function(0.2), eager, rtol=1e-5)


@pytest.mark.thorough
def test_masks():
  everything = noise.weight_noise(jax.random.key(4), PARAMS, std=0.1, mask=paths.everything)
  assert all((a != b).any() for a, b in zip(jax.tree.leaves(everything), jax.tree.leaves(PARAMS)))
  tree = {"a": {"kernel": False, "bias": True}, "b": {"scale": False}}
  biases = noise.weight_noise(jax.random.key(4), PARAMS, std=0.1, mask=tree)
  np.testing.assert_array_equal(biases["a"]["bias"], everything["a"]["bias"])
  np.testing.assert_array_equal(biases["a"]["kernel"], 2)
  # A bare array is a tree too.
  assert (noise.weight_noise(jax.random.key(4), jnp.ones(3), std=0.1, mask=paths.everything) != 1).all()


def test_leaves_keep_their_dtypes():
  params = {"kernel": jnp.ones(3, jnp.bfloat16), "other": {"kernel": jnp.ones(3)}, "count": jnp.zeros(2, int)}
  got = noise.weight_noise(jax.random.key(5), params, std=0.1)
  assert [x.dtype for x in jax.tree.leaves(got)] == [x.dtype for x in jax.tree.leaves(params)]


@pytest.mark.thorough
@pytest.mark.parametrize("relative", [False, True])
def test_a_leaf_of_no_size_is_none_to_disturb(relative):
  """Eagerly and compiled alike; the others get their noise."""
  params = {"a": {"kernel": jnp.zeros((0, 3))}, "b": {"kernel": jnp.ones(3)}}
  noisy = lambda key: noise.weight_noise(key, params, std=0.1, relative=relative)
  for function in (noisy, jax.jit(noisy)):
    got = function(jax.random.key(0))
    assert got["a"]["kernel"].shape == (0, 3)
    assert (got["b"]["kernel"] != 1).all()


def test_what_does_not_fit_is_refused():
  key = jax.random.key(0)
  with pytest.raises(ValueError, match="relative"):
    noise.weight_noise(key, PARAMS, std=0.1, kind="multiplicative", relative=True)
  with pytest.raises(ValueError, match="kind"):
    noise.weight_noise(key, PARAMS, std=0.1, kind="uniform")
  with pytest.raises(ValueError, match="std"):
    noise.weight_noise(key, PARAMS, std=-0.1)
  with pytest.raises(ValueError, match="mask selects no parameter of params; params is a single array"):
    noise.weight_noise(key, jnp.ones(3), std=0.1)
  with pytest.raises(TypeError, match="params must be floating"):
    noise.weight_noise(key, jnp.ones(3, int), std=0.1, mask=paths.everything)


def _linen():
  return nn.Dense(3).init(jax.random.key(1), jnp.zeros((1, 4))), paths.kernels_only


def _nnx():
  params = nnx.split(nnx.Linear(4, 3, rngs=nnx.Rngs(1)))[1]
  return params, lambda params: paths.select(params, "kernel*")


def _equinox():
  params, _ = eqx.partition(eqx.nn.Linear(4, 3, key=jax.random.key(1)), eqx.is_array)
  return params, lambda params: paths.select(params, "weight")


@pytest.mark.thorough
@pytest.mark.parametrize("framework", [_linen, _nnx, _equinox])
def test_every_kind_of_model(framework):
  params, mask = framework()
  for noisy in (
    noise.weight_noise(jax.random.key(0), params, std=0.1, mask=mask),
    noise.dropconnect_params(jax.random.key(0), params, rate=0.5, mask=mask),
    noise.rnn_weight_noise(
      jax.random.key(0), params, noise.rnn_weight_noise_init(params), std=0.1, mask=mask
    )[0],
  ):
    assert jax.tree.structure(noisy) == jax.tree.structure(params)
    changed = [(a != b).any() for a, b in zip(jax.tree.leaves(noisy), jax.tree.leaves(params))]
    assert sorted(map(bool, changed)) == [False, True]

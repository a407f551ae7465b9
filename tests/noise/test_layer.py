"""Noise functions as layers of Equinox and plain JAX, and with the channels first, as Equinox has them."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxreg import noise

X = jnp.asarray(np.random.default_rng(0).uniform(1, 2, (4, 5, 6)), jnp.float32)  # one example, channels first
FUNCTIONS = {
  "dropout": {"rate": 0.4, "shared_axes": (1,)},
  "gaussian_noise": {"std": 0.3},
  "drop_block": {"rate": 0.4, "block_size": 2, "channel_axis": -3},
  "spatial_dropout": {"rate": 0.4, "channel_axis": -3},
  "stochastic_depth": {"rate": 0.4, "per_example": False},
  "concrete_dropout": {"rate_logit": jnp.zeros(())},
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_layer_is_its_function_and_goes_through_filter_jit(name):
  function, options = getattr(noise, name), FUNCTIONS[name]
  layer = noise.layer(function, **options)
  run = eqx.filter_jit(lambda layer, x, key: layer(x, key=key))
  np.testing.assert_array_equal(run(layer, X, None), X)
  want = jax.jit(lambda key: function(key, X, **options))(jax.random.key(1))
  got = run(layer, X, jax.random.key(1))
  np.testing.assert_allclose(got, want, rtol=1e-6)
  assert (got != X).any()


class Net(eqx.Module):
  layers: eqx.nn.Sequential

  def __init__(self, key):
    drop = noise.layer(noise.concrete_dropout, rate_logit=jnp.zeros(()))
    self.layers = eqx.nn.Sequential(
      [eqx.nn.Linear(3, 4, key=key), drop, noise.layer(noise.dropout, rate=0.5)]
    )

  def __call__(self, x, *, key):
    return self.layers(x, key=key)


@pytest.mark.thorough
def test_an_equinox_model_holds_layers():
  """Their arrays are trained; `inference_mode` turns the noise off; none is the linear layer alone."""
  model, x = Net(jax.random.key(0)), jnp.ones(3)
  linear = model.layers[0]
  gradient = eqx.filter_jit(eqx.filter_grad(lambda model, key: model(x, key=key).sum()))(
    model, jax.random.key(2)
  )
  assert gradient.layers[1].arrays["rate_logit"] != 0
  assert gradient.layers[0].weight.shape == (4, 3)
  still = eqx.nn.inference_mode(model)
  for got in (model(x, key=None), still(x, key=jax.random.key(3))):
    np.testing.assert_array_equal(got, linear(x))
  back = eqx.nn.inference_mode(still, value=False)
  assert (back(x, key=jax.random.key(3)) != linear(x)).any()


def test_an_option_of_the_call_takes_the_place_of_the_layers():
  layer = noise.layer(noise.dropout, rate=0.9)
  run = jax.jit(lambda rate: layer(X, key=jax.random.key(0), rate=rate))
  np.testing.assert_allclose(run(0.3), noise.dropout(jax.random.key(0), X, rate=0.3), rtol=1e-6)
  np.testing.assert_array_equal(layer(X, key=jax.random.key(0), inference=True), X)


def test_a_list_counts_as_a_tuple():
  layer = noise.layer(noise.dropout, rate=0.5, shared_axes=[1])
  assert layer.options == noise.layer(noise.dropout, rate=0.5, shared_axes=(1,)).options


def test_what_does_not_fit_is_refused():
  with pytest.raises(TypeError, match="dropout does not take rat: "):
    noise.layer(noise.dropout, rat=0.5)
  with pytest.raises(TypeError, match="unhashable"):
    noise.layer(noise.dropout, rate=0.5, shared_axes={1})
  with pytest.raises(TypeError, match="'key'"):  # forgotten: None has to be said
    noise.layer(noise.dropout, rate=0.5)(X)


@pytest.mark.thorough
@pytest.mark.parametrize(
  "run",
  [
    functools.partial(noise.spatial_dropout, rate=0.4),
    functools.partial(noise.drop_block, rate=0.4, block_size=(2, 3)),
    functools.partial(noise.drop_block, rate=0.4, block_size=2, per_channel=False),
  ],
  ids=["spatial", "block", "shared"],
)
def test_channels_first_are_channels_last_moved(run):
  """One example of Equinox and a batch of them; the mask is the same."""
  for shape in ((5, 6, 4), (3, 5, 6, 4)):
    x = jnp.asarray(np.random.default_rng(0).uniform(1, 2, shape), jnp.float32)
    first_x = jnp.moveaxis(x, -1, -3)
    last = jax.jit(run)(jax.random.key(0), x)
    first = jax.jit(functools.partial(run, channel_axis=-3))(jax.random.key(0), first_x)
    np.testing.assert_array_equal(jnp.moveaxis(first, -3, -1), last)
    assert (last != x).any()
  with pytest.raises(ValueError, match="channel_axis"):
    run(jax.random.key(0), x, channel_axis=1)

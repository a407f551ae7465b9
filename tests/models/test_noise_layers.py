"""The noise layers: thin over the functions, keys only where noise is drawn, rates that follow a schedule."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from jaxreg import models, noise, paths

X = jnp.asarray(np.random.default_rng(0).uniform(1, 2, size=(4, 6, 5, 3)), jnp.float32)
LAYERS = {
  "Dropout": (models.Dropout(0.3), lambda k: noise.dropout(k, X, rate=0.3)),
  "shared": (
    models.Dropout(0.3, shared_axes=(1,)),
    lambda k: noise.dropout(k, X, rate=0.3, shared_axes=(1,)),
  ),
  "GaussianDropout": (models.GaussianDropout(0.3), lambda k: noise.gaussian_dropout(k, X, rate=0.3)),
  "GaussianNoise": (models.GaussianNoise(0.3), lambda k: noise.gaussian_noise(k, X, std=0.3)),
  "multiplicative": (
    models.GaussianNoise(0.3, "multiplicative"),
    lambda k: noise.gaussian_noise(k, X, std=0.3, kind="multiplicative"),
  ),
  "AlphaDropout": (models.AlphaDropout(0.3), lambda k: noise.alpha_dropout(k, X, rate=0.3)),
  "SpatialDropout": (models.SpatialDropout(0.3), lambda k: noise.spatial_dropout(k, X, rate=0.3)),
  "DropBlock": (models.DropBlock(0.3, 2), lambda k: noise.drop_block(k, X, rate=0.3, block_size=2)),
  "StochasticDepth": (models.StochasticDepth(0.3), lambda k: noise.stochastic_depth(k, X, rate=0.3)),
}


def stream(layer, seed=0):
  """The key that a layer of its own draws with from `rngs={"dropout": key}`."""

  class Reveal(nn.Module):
    def __call__(self):
      return self.make_rng("dropout")

  del layer
  return Reveal().apply({}, rngs={"dropout": jax.random.key(seed)})


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_its_function_with_the_streams_key(name):
  layer, function = LAYERS[name]
  got = layer.apply({}, X, train=True, rngs={"dropout": jax.random.key(0)})
  np.testing.assert_array_equal(got, function(stream(layer)))
  assert (got != X).any()
  other = layer.apply({}, X, train=True, rngs={"dropout": jax.random.key(1)})
  assert (got != other).any()


@pytest.mark.thorough
@pytest.mark.parametrize("name", LAYERS)
def test_no_key_is_needed_where_nothing_is_drawn(name):
  layer, _ = LAYERS[name]
  np.testing.assert_array_equal(layer.apply({}, X, train=False), X)
  size = "std" if hasattr(layer, "std") else "rate"
  np.testing.assert_array_equal(layer.clone(**{size: 0.0}).apply({}, X, train=True), X)
  with pytest.raises(Exception, match="dropout"):
    layer.apply({}, X, train=True)
  with pytest.raises(ValueError, match="rate or std"):
    layer.clone(**{size: -0.1}).apply({}, X, train=True, rngs={"dropout": jax.random.key(0)})


@pytest.mark.thorough
@pytest.mark.parametrize("name", LAYERS)
def test_a_traced_rate_takes_the_place_of_the_layers(name):
  layer, function = LAYERS[name]
  size = "std" if hasattr(layer, "std") else "rate"
  scheduled = layer.clone(**{size: 0.9})
  run = jax.jit(
    lambda value: scheduled.apply({}, X, train=True, rngs={"dropout": jax.random.key(0)}, **{size: value})
  )
  np.testing.assert_allclose(run(0.3), function(stream(layer)), rtol=1e-5)
  np.testing.assert_array_equal(run(0.0), X)


@pytest.mark.thorough
@pytest.mark.parametrize("name", LAYERS)
def test_a_known_array_is_a_rate_inside_jit_too(name):
  layer, function = LAYERS[name]
  size = "std" if hasattr(layer, "std") else "rate"
  none, some = jnp.float32(0.0), jnp.float32(0.3)
  run = lambda rate, **rngs: jax.jit(lambda: layer.apply({}, X, train=True, rngs=rngs, **{size: rate}))()
  np.testing.assert_array_equal(run(none), X)
  np.testing.assert_allclose(run(some, dropout=jax.random.key(0)), function(stream(layer)), rtol=1e-5)


@pytest.mark.thorough
def test_spatial_axes_are_those_between_batch_and_channels():
  for shape in ((4, 50, 6), (4, 3, 3, 3, 6)):
    got = models.SpatialDropout(0.5).apply(
      {}, jnp.ones(shape), train=True, rngs={"dropout": jax.random.key(0)}
    )
    got = np.asarray(got).reshape(4, -1, 6)
    np.testing.assert_array_equal(got, np.broadcast_to(got[:, :1], got.shape))


@pytest.mark.slow
def test_drop_connect_dense_is_dense_in_parameters_and_at_test_time():
  x = X[..., 0].reshape(4, -1)
  layer = models.DropConnectDense(7, 0.4)
  variables = layer.init(jax.random.key(0), x, train=False)
  assert paths.leaf_names(variables["params"]) == paths.leaf_names(
    nn.Dense(7).init(jax.random.key(0), x)["params"]
  )
  dense = nn.Dense(7).apply(variables, x)
  np.testing.assert_allclose(layer.apply(variables, x, train=False), dense, rtol=1e-5)
  np.testing.assert_allclose(layer.clone(rate=0.0).apply(variables, x, train=True), dense, rtol=1e-5)
  noisy = lambda key: layer.apply(variables, x, train=True, rngs={"dropout": key})
  draws = np.asarray(jax.jit(jax.vmap(noisy))(jax.random.split(jax.random.key(1), 3000)), np.float64)
  mean, variance = noise.dropconnect_moments(x, variables["params"]["kernel"], rate=0.4)
  assert (np.abs(draws.mean(0) - mean) < 4.5 * np.sqrt(np.asarray(variance) / 3000)).all()
  np.testing.assert_allclose(draws.var(0), variance, rtol=0.2)
  shared = layer.clone(per_example=False).apply(
    variables, jnp.ones_like(x), train=True, rngs={"dropout": jax.random.key(2)}
  )
  np.testing.assert_allclose(shared, np.broadcast_to(shared[:1], shared.shape), rtol=1e-6)


@pytest.mark.thorough
def test_concrete_dropout_learns_its_rate():
  """Where the noise costs nothing the entropy wins, and the rate rises; where it does, it falls."""
  x = jax.random.normal(jax.random.key(0), (64, 5))
  layer = models.ConcreteDropout(initial_rate=0.3)
  params = layer.init(jax.random.key(1), x, train=False)["params"]
  np.testing.assert_allclose(jax.nn.sigmoid(params["rate_logit"]), 0.3, rtol=1e-6)
  np.testing.assert_array_equal(layer.apply({"params": params}, x, train=False), x)
  kernel = jnp.ones((5, 3))

  def loss(params, key, scale):
    hidden = layer.apply({"params": params}, x, train=True, rngs={"dropout": key})
    fit = jnp.square(scale * (hidden - x) @ kernel).mean()
    return fit + noise.concrete_dropout_kl(kernel, rate_logit=params["rate_logit"], length_scale=0.1) / 64

  @functools.partial(jax.jit, static_argnames="steps")
  def train(scale, steps=200):
    step = lambda p, key: (jax.tree.map(lambda a, g: a - 1.0 * g, p, jax.grad(loss)(p, key, scale)), None)
    return jax.lax.scan(step, params, jax.random.split(jax.random.key(2), steps))[0]["rate_logit"]

  assert train(0.0) > params["rate_logit"] + 0.1
  assert train(1.0) < params["rate_logit"] - 1
  with pytest.raises(ValueError, match="initial_rate"):
    models.ConcreteDropout(initial_rate=0.0).init(jax.random.key(0), x, train=False)


@pytest.mark.thorough
def test_weight_decay_leaves_the_rate_alone():
  params = {"ConcreteDropout_0": {"rate_logit": jnp.zeros(())}, "Dense_0": {"kernel": jnp.ones((2, 2))}}
  assert not paths.kernels_only(params)["ConcreteDropout_0"]["rate_logit"]

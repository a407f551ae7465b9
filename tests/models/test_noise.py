"""`Noise`: thin over the functions, keys only where noise is drawn, what is trained, copies and names."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from jaxreg import models, noise, paths

X = jnp.asarray(np.random.default_rng(0).uniform(1, 2, size=(4, 6, 5, 3)), jnp.float32)
CASES = [
  (noise.dropout, {"rate": 0.3, "shared_axes": (1,)}),
  (noise.gaussian_dropout, {"rate": 0.3}),
  (noise.gaussian_noise, {"std": 0.3, "kind": "multiplicative"}),
  (noise.alpha_dropout, {"rate": 0.3}),
  (noise.spatial_dropout, {"rate": 0.3}),
  (noise.drop_block, {"rate": 0.3, "block_size": 2}),
  (noise.stochastic_depth, {"rate": 0.3}),
]


def stream(seed=0):
  """The key that a module of its own draws with from `rngs={"dropout": key}`."""

  class Reveal(nn.Module):
    def __call__(self):
      return self.make_rng("dropout")

  return Reveal().apply({}, rngs={"dropout": jax.random.key(seed)})


@pytest.mark.thorough
@pytest.mark.parametrize(("function", "options"), CASES)
def test_a_module_is_its_function_with_the_streams_key(function, options):
  module = models.Noise(function, **options)
  run = jax.jit(lambda key, **size: module.apply({}, X, train=True, rngs={"dropout": key}, **size))
  np.testing.assert_allclose(run(jax.random.key(0)), function(stream(), X, **options), rtol=1e-5)
  assert (run(jax.random.key(0)) != X).any()
  assert (run(jax.random.key(0)) != run(jax.random.key(1))).any()
  # A number of the call may be traced, and replaces the module's own.
  size = "std" if "std" in options else "rate"
  got = run(jax.random.key(0), **{size: 0.1})
  np.testing.assert_allclose(got, function(stream(), X, **options | {size: 0.1}), rtol=1e-5)


def test_no_key_is_needed_outside_training():
  module = models.Noise(noise.dropout, rate=0.3)
  np.testing.assert_array_equal(module.apply({}, X, train=False), X)
  with pytest.raises(Exception, match="dropout"):
    module.apply({}, X, train=True)
  mean = models.Noise(noise.shake_shake).apply({}, X, 3 * X, train=False)
  np.testing.assert_allclose(mean, 2 * X, rtol=1e-6)


def test_options_are_checked_and_kept_by_copies():
  with pytest.raises(TypeError, match="dropout does not take rat"):
    models.Noise(noise.dropout, rat=0.5)
  with pytest.raises(ValueError, match="rate"):
    models.Noise(noise.dropout, rate=-0.1).apply({}, X, train=False)
  module = models.Noise(noise.dropout, rate=0.5, name="drop")
  assert module.name == "drop"
  for copy in (module.clone(), module.copy(name=None)):
    assert copy.options == module.options == {"rate": 0.5}
    assert copy.function is noise.dropout
  assert hash(module.clone()) == hash(module)
  axes = [models.Noise(noise.dropout, rate=0.5, shared_axes=kind([1])) for kind in (list, tuple)]
  assert hash(axes[0]) == hash(axes[1])


@pytest.mark.thorough
def test_a_model_may_hold_it_in_either_style():
  class Compact(nn.Module):
    @nn.compact
    def __call__(self, x):
      return models.Noise(noise.dropout, rate=0.5, name="drop")(x, train=True)

  class Setup(nn.Module):
    def setup(self):
      self.drop = models.Noise(noise.dropout, rate=0.5)

    def __call__(self, x):
      return self.drop(x, train=True)

  rematerialised = nn.remat(Compact)
  draw = lambda model: model().apply({}, X, rngs={"dropout": jax.random.key(0)})
  assert (draw(Compact) == 0).any()
  for other in (Setup, rematerialised):
    np.testing.assert_array_equal(draw(Compact) == 0, draw(other) == 0)


@pytest.mark.thorough
def test_concrete_dropout_learns_its_rate():
  """Where the noise costs nothing the entropy wins, and the rate rises; where it does, it falls."""
  x = jax.random.normal(jax.random.key(0), (64, 5))
  layer = models.Noise(noise.concrete_dropout, rate_logit=jnp.log(0.3 / 0.7))
  params = layer.init(jax.random.key(1), x, train=False)["params"]
  np.testing.assert_allclose(jax.nn.sigmoid(params["rate_logit"]), 0.3, rtol=1e-6)
  np.testing.assert_array_equal(layer.apply({"params": params}, x, train=False), x)
  assert not paths.kernels_only(params)["rate_logit"]
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

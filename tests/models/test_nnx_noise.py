"""`NNXNoise`: its stream's keys, its modes, what of it is trained."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxreg import models, noise

X = jnp.asarray(np.random.default_rng(0).uniform(1, 2, (4, 6, 5, 3)), jnp.float32)


def key_of(number, seed=0):
  """What the stream of a module made with `nnx.Rngs(dropout=seed)` gives at its call of this number."""
  return jax.random.fold_in(nnx.Rngs(dropout=seed)["dropout"].fork().key[...], number)


@pytest.mark.thorough
@jax.debug_key_reuse(False)  # to look at a stream's key is to use it
@pytest.mark.parametrize(
  ("function", "options"),
  [
    (noise.dropout, {"rate": 0.3}),
    (noise.gaussian_noise, {"std": 0.3, "kind": "multiplicative"}),
    (noise.drop_block, {"rate": 0.3, "block_size": 2}),
    (noise.stochastic_depth, {"rate": 0.3}),
  ],
)
def test_a_module_is_its_function_with_the_stream_s_next_key(function, options):
  module = models.NNXNoise(function, rngs=nnx.Rngs(dropout=0), **options)
  run = nnx.jit(lambda module, x: module(x))
  for number in range(2):
    want = function(key_of(number), X, **options)
    np.testing.assert_allclose(run(module, X), want, rtol=1e-6)
    assert (want != X).any()


class Net(nnx.Module):
  def __init__(self, rngs):
    self.linear = nnx.Linear(3, 4, rngs=rngs)
    self.noise = models.NNXNoise(noise.concrete_dropout, rate_logit=jnp.zeros(()), rngs=rngs)

  def __call__(self, x):
    return self.noise(self.linear(x))


@pytest.mark.thorough
def test_modes_and_training():
  model = Net(nnx.Rngs(0))
  model.eval()
  np.testing.assert_array_equal(model(X), model.linear(X))
  model.train()
  assert (model(X) != model.linear(X)).any()
  gradient = nnx.jit(nnx.grad(lambda model: model(X).sum()))(model)
  assert gradient["noise"]["parameters"]["rate_logit"][...] != 0
  assert gradient["linear"]["kernel"][...].shape == (3, 4)


def test_a_view_of_the_model_has_its_own_mode():
  model = Net(nnx.Rngs(0))
  view = nnx.view(model, deterministic=True)
  np.testing.assert_array_equal(view(X), model.linear(X))
  assert (model(X) != model.linear(X)).any()
  assert (nnx.view(view, deterministic=False)(X) != model.linear(X)).any()
  alone = models.NNXNoise(noise.dropout, rate=0.5, rngs=nnx.Rngs(0))
  np.testing.assert_array_equal(nnx.view(alone, deterministic=True)(X), X)
  assert (nnx.view(alone)(X) != X).any()


def test_flax_describes_the_mode_of_a_view():
  text = "NNXNoise:\n  deterministic: bool | None = None\n    whether noise is off; None keeps the mode."
  assert nnx.view_info(Net(nnx.Rngs(0))).strip() == text


def test_a_graph_definition_may_be_a_static_argument():
  make = lambda axes: models.NNXNoise(noise.dropout, rate=0.5, shared_axes=axes, rngs=nnx.Rngs(0))
  call = jax.jit(lambda graph, state, x: nnx.merge(graph, state)(x), static_argnums=0)
  want = make((1,))(X)
  for axes in ([1], (1,)):
    np.testing.assert_array_equal(call(*nnx.split(make(axes)), X), want)
  assert call._cache_size() == 1


def test_keys_and_options_of_the_call():
  module = models.NNXNoise(noise.dropout, rate=0.9)
  got = module(X, rngs=jax.random.key(0), rate=0.3)
  np.testing.assert_array_equal(got, noise.dropout(jax.random.key(0), X, rate=0.3))
  assert (module(X, rngs=nnx.Rngs(0)) != X).any()
  np.testing.assert_array_equal(module(X, deterministic=True), X)
  with pytest.raises(ValueError, match="rngs must be given"):
    module(X)
  with pytest.raises(TypeError, match="dropout does not take rat"):
    models.NNXNoise(noise.dropout, rat=0.5)
  with pytest.raises(TypeError, match="rngs must be nnx"):
    models.NNXNoise(noise.dropout, rate=0.5, rngs=0)

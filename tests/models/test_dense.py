"""Dense layers of other kinds: their kernels by NumPy, their noise by its function; a model made of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from jaxreg import models, noise, paths, penalties

X = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
KINDS = ("weight_norm", "spectral_norm", "concrete_dropout", "variational_dropout")


def start(layer):
  return jax.device_get(jax.jit(lambda key: layer.init(key, X, train=False))(jax.random.key(0)))


def affine(params, kernel=None, x=X):
  return x @ (params["kernel"] if kernel is None else kernel) + params["bias"]


@pytest.mark.thorough
def test_weight_norm_has_lengths_of_its_own():
  layer = models.Dense(3, "weight_norm")
  params = start(layer)["params"]
  np.testing.assert_allclose(layer.apply({"params": params}, X, train=True), affine(params), rtol=1e-5)
  params["length"] = np.array([2.0, 3.0, 0.5], np.float32)
  kernel = params["length"] * params["kernel"] / np.linalg.norm(params["kernel"], axis=0)
  np.testing.assert_allclose(
    layer.apply({"params": params}, X, train=True), affine(params, kernel), rtol=1e-5, atol=1e-6
  )


@pytest.mark.thorough
def test_spectral_norm_converges_in_training_only():
  layer = models.Dense(3, "spectral_norm")
  variables = start(layer)
  kernel = variables["params"]["kernel"]
  _, after = layer.apply(variables, X, train=False, mutable=["spectral"])
  np.testing.assert_array_equal(after["spectral"]["u"], variables["spectral"]["u"])
  step = jax.jit(lambda variables: layer.apply(variables, X, train=True, mutable=["spectral"])[1])
  for _ in range(200):
    variables = {**variables, **step(variables)}
  got = layer.apply(variables, X, train=False)
  wanted = affine(variables["params"], kernel / np.linalg.norm(kernel, 2))
  np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
  np.testing.assert_array_equal(variables["params"]["kernel"], kernel)


def stream():
  """The key that a layer of its own draws with from `rngs={"dropout": key}`."""

  class Reveal(nn.Module):
    def __call__(self):
      return self.make_rng("dropout")

  return Reveal().apply({}, rngs={"dropout": jax.random.key(1)})


@pytest.mark.thorough
@pytest.mark.parametrize(
  ("kind", "disturb"),
  [
    ("concrete_dropout", lambda k, p: noise.concrete_dropout(k, X, rate_logit=p["rate_logit"])),
    ("variational_dropout", lambda k, p: noise.variational_dropout(k, X, log_alpha=p["log_alpha"])),
  ],
)
def test_learned_dropout_is_on_the_inputs(kind, disturb):
  layer = models.Dense(3, kind)
  params = start(layer)["params"]
  np.testing.assert_allclose(layer.apply({"params": params}, X, train=False), affine(params), rtol=1e-5)
  run = lambda params: layer.apply({"params": params}, X, train=True, rngs={"dropout": jax.random.key(1)})
  wanted = affine(params, x=np.asarray(disturb(stream(), params)))
  np.testing.assert_allclose(run(params), wanted, rtol=1e-4, atol=1e-5)
  loss = lambda params: jnp.square(run(params)).mean() + penalties.learned_dropout(params)
  gradient = jax.jit(jax.grad(loss))(params)
  assert all(np.abs(gradient[name]).max() > 0 for name in params if name not in ("kernel", "bias"))


@pytest.mark.thorough
def test_a_rate_belongs_to_the_kernel_beside_it():
  with pytest.raises(
    ValueError, match="params must have a/kernel, the kernel whose inputs a/rate_logit drops"
  ):
    penalties.learned_dropout({"a": {"rate_logit": jnp.zeros(())}, "kernel": jnp.ones((2, 2))})


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_a_perceptron_of_another_kind(kind):
  """Its layers have the names of dense ones, and it trains."""
  model = models.MLP((6, 3), layer=kind)
  variables = start(model)
  assert set(variables["params"]) == {"Dense_0", "Dense_1"}
  single = models.Dense(6, kind).apply(
    {name: group["Dense_0"] for name, group in variables.items()}, X, train=False
  )
  hidden = np.maximum(single, 0)
  last = {name: group["Dense_1"] for name, group in variables.items()}
  wanted = np.maximum(models.Dense(3, kind).apply(last, hidden, train=False), 0)
  np.testing.assert_allclose(model.apply(variables, X, train=False), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.thorough
def test_selu_with_alpha_dropout_keeps_mean_and_variance():
  """The fixed point of the source: inputs of mean 0 and variance 1 stay so through the layers."""
  x = np.random.default_rng(1).normal(size=(256, 400)).astype(np.float32)
  options = dict(activation="selu", initializer="lecun", dropout="alpha_dropout", dropout_rate=0.1)
  model = models.MLP((400, 400), **options)
  variables = jax.jit(model.init, static_argnames="train")(jax.random.key(0), x, train=False)
  rngs = {"dropout": jax.random.key(1)}
  out = jax.jit(lambda v, x: model.apply(v, x, train=True, rngs=rngs))(variables, x)
  assert abs(out.mean()) < 0.05
  assert abs(out.std() - 1) < 0.08


@pytest.mark.slow
def test_dropconnect_as_a_layer_is_dense_in_parameters_and_at_test_time():
  x = jnp.asarray(np.random.default_rng(0).uniform(1, 2, (4, 30)), jnp.float32)
  variables = nn.Dense(7).init(jax.random.key(0), x)
  dense = nn.Dense(7).apply(variables, x)
  layer = models.Noise(noise.dropconnect, rate=0.4, **variables["params"])
  assert paths.leaf_names(layer.init(jax.random.key(0), x, train=False)) == paths.leaf_names(variables)
  np.testing.assert_allclose(layer.apply(variables, x, train=False), dense, rtol=1e-5)
  rngs = {"dropout": jax.random.key(1)}
  undropped = layer.apply(variables, x, train=True, rate=0.0, rngs=rngs)
  np.testing.assert_allclose(undropped, dense, rtol=1e-5)
  noisy = lambda key: layer.apply(variables, x, train=True, rngs={"dropout": key})
  draws = np.asarray(jax.jit(jax.vmap(noisy))(jax.random.split(jax.random.key(1), 3000)), np.float64)
  wide, kernel = np.asarray(x, np.float64), np.asarray(variables["params"]["kernel"], np.float64)
  mean, variance = wide @ kernel, 0.4 / 0.6 * (wide**2 @ kernel**2)
  assert (np.abs(draws.mean(0) - mean) < 4.5 * np.sqrt(variance / 3000)).all()
  np.testing.assert_allclose(draws.var(0), variance, rtol=0.2)
  shared = layer.apply(
    variables, jnp.ones_like(x), train=True, per_example=False, rngs={"dropout": jax.random.key(2)}
  )
  np.testing.assert_allclose(shared, np.broadcast_to(shared[:1], shared.shape), rtol=1e-6)

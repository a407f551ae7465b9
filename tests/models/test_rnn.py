"""The recurrent network: its equations, its dropout and its weight noise."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from jaxreg import models, paths

pytestmark = pytest.mark.thorough


X = np.random.default_rng(0).normal(size=(3, 7, 4)).astype(np.float32)


def initial(model, x=X):
  return jax.jit(lambda key, x: model.init(key, x, train=False))(jax.random.key(0), x)


@functools.cache
def applied(model, train):
  rngs = lambda seed: {"dropout": jax.random.key(seed)} if train else {}
  return jax.jit(lambda v, x, seed: model.apply(v, x, train=train, rngs=rngs(seed)))


def run(model, variables, x=X, seed=None):
  return np.asarray(applied(model, seed is not None)(variables, x, seed or 0))


def test_elmans_network_step_by_step():
  model = models.RNN(5)
  variables = initial(model)
  weights = jax.tree.map(lambda w: np.asarray(w, np.float64), variables["params"])
  h = np.zeros((3, 5))
  for t in range(7):
    h = np.tanh(
      X[:, t] @ weights["input"]["kernel"] + weights["input"]["bias"] + h @ weights["recurrent"]["kernel"]
    )
  np.testing.assert_allclose(run(model, variables), h, rtol=1e-4, atol=1e-5)


def test_gated_units_are_linens():
  model = models.RNN(5, cell="gru")
  variables = initial(model)
  bias = jax.random.normal(jax.random.key(3), (15,))
  params = {**variables["params"], "input": {**variables["params"]["input"], "bias": bias}}
  kernels = {
    side: jnp.split(params[name]["kernel"], 3, axis=-1) for side, name in (("i", "input"), ("h", "recurrent"))
  }
  cell = nn.GRUCell(5)
  theirs = {f"{side}{gate}": {"kernel": kernels[side][i]} for side in "ih" for i, gate in enumerate("rzn")}
  for i, gate in enumerate("rzn"):
    theirs[f"i{gate}"]["bias"] = bias.reshape(3, 5)[i]
  theirs["hn"]["bias"] = jnp.zeros(5)
  h = jnp.zeros((3, 5))
  for t in range(7):
    h, _ = cell.apply({"params": theirs}, h, X[:, t])
  np.testing.assert_allclose(run(model, {"params": params}), h, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("cell", "parameters"), [("tanh", 4 * 6 + 6 + 36), ("gru", 3 * (4 * 6 + 6 + 36))])
def test_parameters_and_their_initial_values(cell, parameters):
  params = initial(models.RNN(6, cell=cell))["params"]
  assert sum(leaf.size for leaf in jax.tree.leaves(params)) == parameters
  assert paths.leaf_names(params) == ["input/bias", "input/kernel", "recurrent/kernel"]
  for kernel in jnp.split(params["recurrent"]["kernel"], parameters // 66, axis=-1):
    np.testing.assert_allclose(kernel.T @ kernel, np.eye(6), atol=1e-5)
  bound = np.sqrt(6 / 10)
  assert 0.8 * bound < np.abs(params["input"]["kernel"]).max() <= bound


def test_images_are_read_row_by_row():
  images = np.random.default_rng(1).normal(size=(2, 6, 5, 3)).astype(np.float32)
  model = models.RNN(4)
  variables = initial(model, images)
  assert variables["params"]["input"]["kernel"].shape == (15, 4)
  flat = run(model, variables, images.reshape(2, 6, 15))
  np.testing.assert_allclose(run(model, variables, images), flat, rtol=1e-6)


NOISY = {
  "input dropout": {"input_dropout_rate": 0.5},
  "dropout": {"dropout_rate": 0.5},
  **{
    f"weight noise {kind} {cumulative} {per_step}": {
      "weight_noise_std": 0.2,
      "weight_noise_kind": kind,
      "weight_noise_cumulative": cumulative,
      "weight_noise_per_step": per_step,
    }
    for kind, cumulative, per_step in (
      ("multiplicative", True, True),
      ("additive", True, False),
    )
  },
}


@pytest.mark.parametrize("name", NOISY)
@pytest.mark.parametrize("cell", ["tanh", "gru"])
def test_noise_is_in_training_only(name, cell):
  model = models.RNN(5, cell=cell, **NOISY[name])
  variables = initial(model)
  quiet = run(models.RNN(5, cell=cell), variables)
  np.testing.assert_array_equal(run(model, variables), quiet)
  noisy = run(model, variables, seed=1)
  np.testing.assert_array_equal(noisy, run(model, variables, seed=1))
  assert np.abs(noisy - quiet).max() > 1e-3
  assert (noisy != run(model, variables, seed=2)).any()
  with pytest.raises(Exception, match="dropout"):
    jax.eval_shape(lambda v: model.apply(v, X, train=True), variables)


def test_without_noise_training_needs_no_key():
  model = models.RNN(5)
  variables = initial(model)
  np.testing.assert_array_equal(model.apply(variables, X, train=True), run(model, variables))


def test_the_same_units_are_dropped_at_every_step():
  """All but unit 0 of the state dead: whether unit 0 is read is one coin for the whole sequence."""
  model = models.RNN(1, dropout_rate=0.5)
  one = lambda value: jnp.full((1, 1), value)
  params = {"input": {"kernel": one(1.0), "bias": jnp.zeros(1)}, "recurrent": {"kernel": one(0.5)}}
  x = np.full((400, 5, 1), 0.1, np.float32)
  got = run(model, {"params": params}, x, seed=3)
  # Dropped: tanh(0.1) for ever. Kept: doubled, so a recurrent weight of 1.
  h = 0.0
  for _ in range(5):
    h = np.tanh(0.1 + h)
  np.testing.assert_allclose(np.unique(got.round(5)), np.sort(np.round([np.tanh(0.1), h], 5)), atol=2e-5)
  assert abs((got > 0.2).mean() - 0.5) < 4 * np.sqrt(0.25 / 400)


def test_weight_noise_is_shared_by_the_examples_and_leaves_biases():
  model = models.RNN(3, weight_noise_std=0.5)
  same = np.broadcast_to(X[:1], X.shape)
  variables = initial(model)
  got = run(model, variables, same, seed=4)
  np.testing.assert_array_equal(got, np.broadcast_to(got[:1], got.shape))
  # At inputs and a state of zero only biases are left.
  params = {**variables["params"], "input": {**variables["params"]["input"], "bias": jnp.zeros(3)}}
  np.testing.assert_array_equal(run(model, {"params": params}, np.zeros_like(X), seed=4), 0)


def test_multiplicative_noise_of_a_linear_unit_over_time():
  """A weight of 1 on inputs of 0 and a bias of 1e-3 (tanh is linear there): E h_T is the noiseless sum, and
  its spread that of products of factors."""
  number, std = 2000, 0.1
  model = models.RNN(1, weight_noise_std=std, weight_noise_kind="multiplicative")
  one = lambda value: jnp.full((1, 1), value)
  params = {"input": {"kernel": one(1.0), "bias": jnp.zeros(1)}, "recurrent": {"kernel": one(1.0)}}
  x = np.zeros((1, 6, 1), np.float32)
  x[:, 0] = 1e-3  # one impulse, then five multiplications by 1 + n
  keys = jax.random.split(jax.random.key(5), number)
  apply = lambda key: model.apply({"params": params}, x, train=True, rngs={"dropout": key})[0, 0]
  got = np.asarray(jax.jit(jax.vmap(apply))(keys), np.float64) / 1e-3
  spread = np.sqrt((1 + std**2) ** 6 - 1)
  assert abs(got.mean() - 1) < 4 * spread / np.sqrt(number)
  np.testing.assert_allclose(got.std(), spread, rtol=0.1)


def test_gradients_reach_all_parameters():
  model = models.RNN(4, cell="gru", dropout_rate=0.3, weight_noise_std=0.1, weight_noise_cumulative=True)
  variables = initial(model)
  loss = lambda v: model.apply(v, X, train=True, rngs={"dropout": jax.random.key(6)}).sum()
  for leaf in jax.tree.leaves(jax.jit(jax.grad(loss))(variables)):
    assert np.isfinite(leaf).all()
    assert np.abs(leaf).max() > 0

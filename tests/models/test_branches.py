"""Noise on residual branches and feature maps, at rates where a block is known without it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from jaxreg import models
from jaxreg.models import _resnet
from jaxreg.models._hidden_noise import make_drop
from jaxreg.models._resnet import BasicBlock

pytestmark = pytest.mark.thorough

# Large, so that the last ReLU does nothing and a block is its input plus its branch.
X = 50 + np.random.default_rng(0).normal(size=(8, 4, 4, 2)).astype(np.float32)
NORM = functools.partial(nn.BatchNorm, use_running_average=True)


def block(kind="", rate=0.0, train=False):
  return BasicBlock(2, 1, NORM, projected=False, branch_noise=kind, branch_rate=rate, train=train)


def start(module):
  return module.init({"params": jax.random.key(0), "dropout": jax.random.key(1)}, X)


def branch_of(module, variables, seed=2):
  return np.asarray(module.apply(variables, X, rngs={"dropout": jax.random.key(seed)})) - X


def test_a_branch_that_is_always_dropped():
  variables = start(block())
  plain = branch_of(block(), variables)
  assert np.abs(plain).min(axis=(1, 2, 3)).max() > 0
  np.testing.assert_array_equal(branch_of(block("stochastic_depth", 1.0, train=True), variables), 0)
  np.testing.assert_array_equal(branch_of(block("stochastic_depth", 0.7), variables), plain)
  halved = branch_of(block("shake_drop", 0.5), variables)
  np.testing.assert_allclose(halved, plain / 2, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", ["stochastic_depth", "shake_drop"])
def test_examples_have_factors_of_their_own(kind):
  variables = start(block())
  ratio = branch_of(block(kind, 0.5, train=True), variables, seed=4) / branch_of(block(), variables)
  factors = ratio.mean(axis=(1, 2, 3))
  np.testing.assert_allclose(ratio, np.broadcast_to(factors[:, None, None, None], ratio.shape), atol=0.1)
  assert len({round(float(factor), 2) for factor in factors}) > 1
  if kind == "stochastic_depth":
    np.testing.assert_allclose(np.minimum(abs(factors), abs(factors - 2)), 0, atol=1e-2)


def test_layer_scale_multiplies_the_branch():
  module = block().clone(layer_scale=0.25)
  variables = start(module)
  plain = {group: {k: v for k, v in of.items() if k != "LayerScale_0"} for group, of in variables.items()}
  got, want = branch_of(module, variables), branch_of(block(), plain)
  np.testing.assert_allclose(got, want / 4, rtol=1e-3, atol=1e-4)


def test_a_standardised_convolution():
  """Of 1x1, which is a product with the standardised matrix."""
  layer = models.StandardizedConv(3, (1, 1), use_bias=False)
  variables = layer.init(jax.random.key(0), X)
  kernel = np.asarray(variables["params"]["kernel"], np.float64)[0, 0]
  kernel = (kernel - kernel.mean(0)) / np.sqrt(kernel.var(0) + 1e-5)
  np.testing.assert_allclose(layer.apply(variables, X), X @ kernel, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("depth", [18, 50])
def test_a_resnet_of_standardised_kernels(depth):
  """Shapes alone: every convolution is of that kind."""
  model = models.ResNet(depth, width=1, standardized=True, layer_scale=0.1, branch_schedule="constant")
  make = lambda: model.init(jax.random.key(0), jnp.zeros((1, 8, 8, 1)), train=False)
  names = [
    jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(jax.eval_shape(make)["params"])
  ]
  assert any("StandardizedConv" in name for name in names)
  assert not any("'Conv_" in name for name in names)
  assert sum("LayerScale" in name for name in names) == {18: 8, 50: 16}[depth]


def test_shake_shake_mixes_two_branches():
  module = block("shake_shake")
  variables = start(module)
  names = {"Conv_2": "Conv_0", "Conv_3": "Conv_1", "BatchNorm_2": "BatchNorm_0", "BatchNorm_3": "BatchNorm_1"}
  second = {
    group: {names[name]: value for name, value in of.items() if name in names}
    for group, of in variables.items()
  }
  first = {
    group: {name: value for name, value in of.items() if name not in names} for group, of in variables.items()
  }
  one, two = branch_of(block(), first), branch_of(block(), second)
  np.testing.assert_allclose(branch_of(module, variables), (one + two) / 2, rtol=1e-3, atol=1e-4)
  mixed = branch_of(block("shake_shake", train=True), variables)
  alpha = ((mixed - two) * (one - two)).sum((1, 2, 3)) / ((one - two) ** 2).sum((1, 2, 3))
  assert ((alpha > 0) & (alpha < 1)).all()
  alpha = np.broadcast_to(alpha[:, None, None, None], one.shape)
  np.testing.assert_allclose(mixed, alpha * one + (1 - alpha) * two, rtol=1e-3, atol=1e-3)


def test_rates_grow_with_depth(monkeypatch):
  """Of three blocks the last is dropped always, the others in one and two of three examples."""
  seen = []

  def spy(module, make, *, kind, rate, train):
    seen.append(rate)
    return make()

  model = models.CifarResNet(8, width=2, branch_noise="stochastic_depth", branch_rate=1.0)
  monkeypatch.setattr(_resnet, "branch", spy)
  jax.eval_shape(lambda: model.init(jax.random.key(0), jnp.zeros((1, 8, 8, 1)), train=False))
  np.testing.assert_allclose(seen, [1 / 3, 2 / 3, 1])
  seen.clear()
  model = models.ResNet(50, width=1, branch_noise="stochastic_depth", branch_rate=0.5)
  jax.eval_shape(lambda: model.init(jax.random.key(0), jnp.zeros((1, 8, 8, 1)), train=False))
  np.testing.assert_allclose(seen, np.arange(1, 17) / 32)


@pytest.mark.parametrize("name", ["dropout", "spatial_dropout", "drop_block"])
def test_dropout_of_feature_maps(name):
  """Of units, of channels, of squares."""
  model = models.CifarResNet(8, width=2, dropout=name, dropout_rate=0.3, block_size=3)
  kept = np.asarray(make_drop(model)(jax.random.key(3), jnp.ones((2, 12, 12, 8)))) > 0
  assert 0 < kept.mean() < 1
  whole = kept.all((1, 2)) | ~kept.any((1, 2))
  assert whole.all() == (name == "spatial_dropout")
  # A dropped square of side 3 has a dropped neighbour on one side or the other.
  dropped = ~kept
  beside = dropped[:, :, 1:-1] & ~dropped[:, :, :-2] & ~dropped[:, :, 2:]
  assert beside.any() == (name == "dropout")


def test_an_rnn_that_reads_some_steps():
  x = np.random.default_rng(0).normal(size=(4, 5, 3)).astype(np.float32)
  model = models.RNN(2, num_kept=1)
  variables = model.init(jax.random.key(0), x, train=False)
  got = np.asarray(model.apply(variables, x, train=True, rngs={"dropout": jax.random.key(1)}))
  each = np.stack([model.apply(variables, x[:, t : t + 1], train=False) for t in range(5)], axis=1)
  distance = np.abs(each - got[:, None]).max(-1)
  np.testing.assert_allclose(distance.min(1), 0, atol=1e-6)
  assert len(set(distance.argmin(1).tolist())) > 1
  whole = models.RNN(2, num_kept=5).apply(variables, x, train=True, rngs={"dropout": jax.random.key(1)})
  np.testing.assert_allclose(whole, model.apply(variables, x, train=False), rtol=1e-5)

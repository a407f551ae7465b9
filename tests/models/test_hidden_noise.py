"""Noise on hidden features: where it acts, by rates of 1 and by closed forms."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from jaxreg import models
from jaxreg.models import _resnet

KEYS = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
relu = lambda x: np.maximum(x, 0)


def started(model, size):
  """The variables, with biases that are not 0, and two images."""
  x = jnp.asarray(np.random.default_rng(0).normal(size=(2, size, size, 1)), jnp.float32)
  draw = np.random.default_rng(1)
  variables = jax.eval_shape(lambda: model.init(KEYS, x, train=False))
  make = lambda leaf: jnp.asarray(abs(draw.normal(size=leaf.shape, scale=0.3)), leaf.dtype)
  return jax.tree.map(make, variables), x


def dense(variables, *names):
  """The features of dense layers that see zeros."""
  layers = [variables["params"][name] for name in names]
  out = relu(np.asarray(layers[0]["bias"]))
  for layer in layers[1:]:
    out = relu(out @ np.asarray(layer["kernel"]) + np.asarray(layer["bias"]))
  return out


VGG = models.VGG(11, width=1, hidden=3)


@pytest.mark.thorough
@pytest.mark.parametrize(
  ("model", "size", "names", "kind"),
  [
    (models.LeNet(), 16, ["Dense_0"], "spatial_dropout"),
    (VGG, 32, ["Dense_0", "Dense_1"], "drop_block"),
    (models.VGG9(width=1, batch_norm=False), 8, ["Dense_0", "Dense_1"], "spatial_dropout"),
  ],
  ids=lambda value: type(value).__name__ if hasattr(value, "clone") else None,
)
def test_if_all_maps_are_dropped_the_dense_layers_see_zeros(model, size, names, kind):
  model = model.clone(dropout=kind, dropout_rate=1.0)
  variables, x = started(model, size)
  got = model.apply(variables, x, train=True, rngs=KEYS)
  np.testing.assert_allclose(got, np.tile(dense(variables, *names), (2, 1)), rtol=1e-5)
  assert not np.allclose(model.apply(variables, x, train=False), got)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["dropout", "gaussian_dropout"])
@pytest.mark.parametrize(("model", "size"), [(models.LeNet(), 16), (VGG, 32)])
def test_dropout_of_units_acts_on_the_last_units(model, size, kind):
  model = model.clone(dropout=kind, dropout_rate=0.5)
  variables, x = started(model, size)
  factors = model.apply(variables, x, train=True, rngs=KEYS) / model.apply(variables, x, train=False)
  if kind == "dropout" and size == 16:  # VGG drops before its last layer, too
    assert set(np.asarray(factors).round(4).ravel()) == {0.0, 2.0}
  assert len(set(np.asarray(factors).round(4).ravel())) > (2 if kind == "gaussian_dropout" else 1)


@pytest.mark.thorough
@pytest.mark.parametrize(
  ("model", "size"),
  [
    (models.MLP((400,)), 2),
    pytest.param(models.LeNet(), 16, marks=pytest.mark.thorough),
    pytest.param(models.VGG9(width=1, batch_norm=False), 8, marks=pytest.mark.thorough),
  ],
)
def test_gaussian_noise_is_added_to_the_last_hidden_units(model, size):
  """All weights are 0, so that the noise of earlier layers does not reach the last one."""
  model = model.clone(hidden_noise_std=0.3)
  variables, x = started(model, size)
  variables = jax.tree.map(jnp.zeros_like, variables)
  x = jnp.tile(x, (100, 1, 1, 1))
  got = np.asarray(model.apply(variables, x, train=True, rngs=KEYS))
  assert abs(got.mean()) < 4 * 0.3 / np.sqrt(got.size)
  assert abs(got.std() - 0.3) < 4 * 0.3 / np.sqrt(2 * got.size)
  np.testing.assert_array_equal(model.apply(variables, x, train=False), 0)


@pytest.mark.thorough
def test_a_bottleneck_whose_branch_is_always_dropped_is_its_input():
  norm = functools.partial(nn.BatchNorm, use_running_average=True)
  block = _resnet.Bottleneck(2, 1, norm, branch_noise="stochastic_depth", branch_rate=1.0, train=True)
  x = 1 + jnp.abs(jnp.asarray(np.random.default_rng(0).normal(size=(2, 4, 4, 8)), jnp.float32))
  variables = block.init(KEYS, x)
  np.testing.assert_array_equal(block.apply(variables, x, rngs=KEYS), x)
  assert not np.allclose(block.clone(branch_rate=0.0).apply(variables, x, rngs=KEYS), x)


@pytest.mark.parametrize("model", [models.LeNet, models.VGG9, models.VGG, models.CifarResNet, models.ResNet])
def test_unknown_noise_is_refused(model):
  with pytest.raises(ValueError, match=r"dropout must be one of dropout, gaussian_dropout, .*, got 'drop'"):
    jax.eval_shape(lambda: model(dropout="drop").init(KEYS, jnp.zeros((1, 32, 32, 1)), train=True))

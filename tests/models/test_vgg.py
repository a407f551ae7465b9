"""The VGG networks against convolutions by SciPy, their numbers of parameters, and where they drop."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import signal

from jaxreg import models, paths


def shapes(model, size=32, channels=3):
  x = jax.ShapeDtypeStruct((1, size, size, channels), jnp.float32)
  return jax.eval_shape(lambda key, x: model.init(key, x, train=False), jax.random.key(0), x)


def random_variables(model, size, channels, seed=0):
  random = np.random.default_rng(seed)
  make = lambda leaf: jnp.asarray(random.normal(size=leaf.shape) * 0.4 + 0.1, leaf.dtype)
  variables = jax.tree.map(make, shapes(model, size, channels))
  if "batch_stats" in variables:
    variables["batch_stats"] = jax.tree.map(jnp.abs, variables["batch_stats"])
  return variables


@pytest.mark.parametrize("batch_norm", [True, False])
def test_number_of_parameters(batch_norm):
  model = models.Classifier(models.VGG9(batch_norm=batch_norm), models.SoftmaxHead(10))
  pairs = [(3, 64), (64, 64), (64, 128), (128, 128), (128, 256), (256, 256)]
  # A bias for each channel, or BatchNorm's two numbers.
  convolutions = sum(9 * a * b + b * (2 if batch_norm else 1) for a, b in pairs)
  dense = 4 * 4 * 256 * 256 + 256 + 256 * 256 + 256 + 256 * 10 + 10
  params = shapes(model)["params"]
  assert sum(leaf.size for leaf in jax.tree.leaves(params)) == convolutions + dense
  assert sum(name.endswith("kernel") for name in paths.leaf_names(params)) == 9


@pytest.mark.parametrize(
  ("options", "count"),
  [
    # The usual ImageNet models'; the source's table 2 rounds to 133, 133, 138 and 144 million.
    ({"depth": 11}, 132_863_336),
    *(
      pytest.param({"depth": depth}, count, marks=pytest.mark.thorough)
      for depth, count in ((13, 133_047_848), (16, 138_357_544), (19, 143_667_240))
    ),
  ],
)
def test_published_numbers_of_parameters(options, count):
  model = models.Classifier(models.VGG(**options), models.SoftmaxHead(1000))
  params = shapes(model, 224)["params"]
  assert sum(leaf.size for leaf in jax.tree.leaves(params)) == count
  assert sum(name.endswith("kernel") for name in paths.leaf_names(params)) == options["depth"]
  # BatchNorm has two numbers a channel where there was one bias.
  normalised = shapes(models.VGG(batch_norm=True, **options), 224)["params"]
  plain = shapes(models.VGG(**options), 224)["params"]
  channels = sum(layer["bias"].size for name, layer in plain.items() if name.startswith("Conv"))
  size = lambda tree: sum(leaf.size for leaf in jax.tree.leaves(tree))
  assert size(normalised) == size(plain) + channels


VGG9_POOLS, VGG11_POOLS, VGG16_POOLS = (1, 3, 5), (0, 1, 3, 5, 7), (1, 3, 6, 9, 12)


@pytest.mark.thorough
@pytest.mark.parametrize("batch_norm", [True, False])
@pytest.mark.parametrize(
  ("model", "pools", "size", "features"),
  [
    (models.VGG9(width=2), VGG9_POOLS, 8, 8),
    pytest.param(models.VGG(depth=11, width=1, hidden=6), VGG11_POOLS, 32, 6, marks=pytest.mark.thorough),
    pytest.param(models.VGG(depth=16, width=1, hidden=6), VGG16_POOLS, 32, 6, marks=pytest.mark.thorough),
  ],
)
def test_it_is_the_layers_in_their_order(model, pools, size, features, batch_norm):
  model = model.clone(batch_norm=batch_norm)
  x = np.random.default_rng(1).normal(size=(2, size, size + 1, 3))
  variables = random_variables(model, size, 3)
  got = jax.jit(functools.partial(model.apply, train=False))(variables, x.astype(np.float32))
  weights = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), variables)
  params, stats = weights["params"], weights.get("batch_stats")
  h = x
  for number in range(pools[-1] + 1):
    kernel = params[f"Conv_{number}"]["kernel"]
    correlate = lambda image, k: sum(
      signal.correlate2d(image[..., c], k[..., c], mode="same") for c in range(image.shape[-1])
    )
    h = np.stack([[correlate(im, k) for k in np.moveaxis(kernel, -1, 0)] for im in h])
    h = np.moveaxis(h, 1, -1)
    if batch_norm:
      name = f"BatchNorm_{number}"
      h = (h - stats[name]["mean"]) / np.sqrt(stats[name]["var"] + 1e-5)
      h = h * params[name]["scale"] + params[name]["bias"]
    else:
      h = h + params[f"Conv_{number}"]["bias"]
    h = np.maximum(h, 0)
    if number in pools:
      even = h[:, : h.shape[1] // 2 * 2, : h.shape[2] // 2 * 2]
      corners = [even[:, i::2, j::2] for i in range(2) for j in range(2)]
      h = np.max(corners, axis=0)
  h = h.reshape(2, -1)
  for number in range(2):
    h = np.maximum(h @ params[f"Dense_{number}"]["kernel"] + params[f"Dense_{number}"]["bias"], 0)
  assert got.shape == h.shape == (2, features)
  np.testing.assert_allclose(got, h, rtol=1e-4, atol=1e-5 * h.max())
  assert (h > 0).any()


def copies(shape):
  """A convolution that hands its channels on, each to as many as it takes."""
  kernel = np.zeros(shape, np.float32)
  for c in range(shape[-1]):
    kernel[1, 1, c % shape[-2], c] = 1
  return kernel


@pytest.mark.thorough
def test_dropout_follows_each_pooling():
  model = models.VGG9(width=1, batch_norm=False, dropout_rate=0.5)
  number = 2000
  variables = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), shapes(model, 8, 1))
  for layer in variables["params"].values():
    dense = layer["kernel"].ndim == 2
    layer["kernel"] = (
      np.eye(*layer["kernel"].shape, dtype=np.float32) if dense else copies(layer["kernel"].shape)
    )
  x = np.ones((number, 8, 8, 1), np.float32)
  apply = jax.jit(lambda key: model.apply(variables, x, train=True, rngs={"dropout": key}))
  one, again, other = (np.asarray(apply(jax.random.key(seed))) for seed in (1, 1, 2))
  np.testing.assert_array_equal(one, again)
  assert (one != other).any()
  # Doubled three times where it survives all three; at each pooling one of four suffices.
  assert set(np.unique(one)) == {0, 8}
  alive = 0.5
  for _ in range(2):
    alive = 0.5 * (1 - (1 - alive) ** 4)
  first = one[:, 0] > 0
  assert abs(first.mean() - alive) < 4 * np.sqrt(alive * (1 - alive) / number)
  # Without dropout no key is needed, and evaluation has none.
  clean = model.apply(variables, x[:2], train=False)
  np.testing.assert_array_equal(clean, 1)
  np.testing.assert_array_equal(model.clone(dropout_rate=0.0).apply(variables, x[:2], train=True), 1)


@pytest.mark.thorough
def test_dropout_of_vgg_follows_each_dense_layer():
  number, hidden = 8, 500
  model = models.VGG(depth=11, width=1, hidden=hidden)
  variables = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), shapes(model, 32, 1))
  variables["params"]["Dense_0"]["bias"][:] = 1
  variables["params"]["Dense_1"]["kernel"][:] = np.eye(hidden)
  x = np.ones((number, 32, 32, 1), np.float32)
  apply = jax.jit(lambda key: model.apply(variables, x, train=True, rngs={"dropout": key}))
  one, again, other = (np.asarray(apply(jax.random.key(seed))) for seed in (1, 1, 2))
  np.testing.assert_array_equal(one, again)
  assert (one != other).any()
  # Doubled twice where it survives both, which were one if they drew the same.
  assert set(np.unique(one)) == {0, 4}
  assert abs((one > 0).mean() - 0.25) < 4 * np.sqrt(0.25 * 0.75 / one.size)
  evaluate = jax.jit(functools.partial(model.apply, train=False))
  np.testing.assert_array_equal(evaluate(variables, x), 1)

"""The residual networks against their published sizes, and what their switches leave unchanged."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from scipy import signal

from jaxreg import models, paths
from jaxreg.models import _resnet


def parameters(backbone, classes, size):
  model = models.Classifier(backbone, models.SoftmaxHead(classes))
  init = lambda: model.init(jax.random.key(0), jnp.zeros((1, size, size, 3)), train=False)
  return sum(np.prod(x.shape) for x in jax.tree.leaves(jax.eval_shape(init)["params"]))


@pytest.mark.thorough
@pytest.mark.parametrize(
  ("backbone", "classes", "size", "count"),
  [
    # The numbers of parameters of the source's table 6 (0.27M, 0.46M) and of the usual ImageNet models.
    (models.CifarResNet(depth=20), 10, 32, 269_722),
    (models.CifarResNet(depth=32), 10, 32, 464_154),
    (models.ResNet(depth=18, stem="imagenet"), 1000, 224, 11_689_512),
    *(
      pytest.param(models.ResNet(depth=depth, stem="imagenet"), 1000, 224, count, marks=pytest.mark.thorough)
      for depth, count in ((34, 21_797_672), (50, 25_557_032), (101, 44_549_160), (152, 60_192_808))
    ),
  ],
)
def test_number_of_parameters(backbone, classes, size, count):
  assert parameters(backbone, classes, size) == count


@pytest.mark.parametrize(
  ("backbone", "size", "features"),
  [
    (models.CifarResNet(depth=8, width=4), 32, 16),
    (models.ResNet(depth=18, width=8, stem="cifar"), 32, 64),
    (models.ResNet(depth=18, width=8, stem="imagenet"), 64, 64),
    pytest.param(models.ResNet(depth=50, width=2, stem="imagenet"), 64, 64, marks=pytest.mark.thorough),
  ],
)
def test_feature_shapes(backbone, size, features):
  x = jnp.zeros((2, size, size, 3))
  out = jax.eval_shape(lambda: backbone.init_with_output(jax.random.key(0), x, train=False)[0])
  assert out.shape == (2, features)


@pytest.mark.thorough
def test_a_block_with_zeroed_convolutions_is_its_shortcut():
  backbone = models.CifarResNet(depth=8, width=2)
  x = jax.random.normal(jax.random.key(1), (2, 8, 8, 3))
  shapes = jax.eval_shape(lambda: backbone.init(jax.random.key(0), x, train=False))
  rng = np.random.default_rng(0)
  variables = jax.tree.map(lambda s: jnp.asarray(rng.uniform(0.5, 1.5, s.shape), s.dtype), shapes)
  params = dict(variables["params"])
  for name, block in params.items():
    if "block" in name:
      params[name] = jax.tree.map(jnp.zeros_like, block)
  apply = jax.jit(
    lambda v: backbone.apply(v, x, train=False, capture_intermediates=True, mutable="intermediates")
  )
  features, _ = apply({**variables, "params": params})
  # Option A: subsampled by 4 in all, and 2 channels padded to 4 and then to 8 with zeros on either side.
  first = apply(variables)[1]["intermediates"]["BatchNorm_0"]["__call__"][0]
  expected = np.zeros((2, 8))
  expected[:, 3:5] = np.maximum(np.asarray(first), 0)[:, ::4, ::4].mean(axis=(1, 2))
  np.testing.assert_allclose(features, expected, rtol=1e-5, atol=1e-6)


def convolved(image, kernel, stride):
  """A padded convolution of one image, in float64, by SciPy."""
  planes = [
    sum(signal.correlate2d(image[..., c], k[..., c], mode="same") for c in range(image.shape[-1]))
    for k in np.moveaxis(kernel, -1, 0)
  ]
  return np.stack(planes, axis=-1)[::stride, ::stride]


@pytest.mark.thorough
@pytest.mark.parametrize(
  ("channels", "stride"), [(8, 1), pytest.param(3, 1, marks=pytest.mark.thorough), (8, 2)]
)
def test_a_bottleneck_is_its_three_convolutions_and_its_shortcut(channels, stride):
  norm = functools.partial(nn.BatchNorm, use_running_average=True, momentum=0.9)
  block = _resnet.Bottleneck(width=2 * stride, stride=stride, norm=norm)
  random = np.random.default_rng(0)
  x = random.normal(size=(2, 6, 8, channels))
  shapes = jax.eval_shape(lambda: block.init(jax.random.key(0), jnp.asarray(x, jnp.float32)))
  make = lambda leaf: jnp.asarray(random.uniform(-1, 1, leaf.shape), leaf.dtype)
  variables = jax.tree.map(make, shapes)
  variables["batch_stats"] = jax.tree.map(jnp.abs, variables["batch_stats"])
  got = jax.jit(block.apply)(variables, x.astype(np.float32))
  weights = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), variables)
  params, stats = weights["params"], weights["batch_stats"]

  def layer(h, number, stride=1):
    h = np.stack([convolved(image, params[f"Conv_{number}"]["kernel"], stride) for image in h])
    name = f"BatchNorm_{number}"
    h = (h - stats[name]["mean"]) / np.sqrt(stats[name]["var"] + 1e-5)
    return h * params[name]["scale"] + params[name]["bias"]

  # The stride is that of the 3x3 convolution; where the shapes agree the shortcut is the identity.
  h = np.maximum(layer(x, 0), 0)
  h = layer(np.maximum(layer(h, 1, stride), 0), 2)
  identity = channels == 8 and stride == 1
  assert len(params) == (6 if identity else 8)
  expected = np.maximum(h + (x if identity else layer(x, 3, stride)), 0)
  assert got.shape == expected.shape == (2, 6 // stride, 8 // stride, 8 * stride)
  np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5 * expected.max())


@pytest.mark.thorough
def test_rematerialisation_leaves_the_parameters_of_a_resnet_50_as_they_are():
  x = jnp.zeros((1, 32, 32, 3))
  init = lambda backbone: lambda: backbone.init(jax.random.key(0), x, train=False)
  trees = [jax.eval_shape(init(models.ResNet(depth=50, width=2, remat=remat))) for remat in (False, True)]
  assert trees[0] == trees[1]


@pytest.mark.slow
@pytest.mark.parametrize(
  "make",
  [
    functools.partial(models.CifarResNet, depth=8, width=2),
    functools.partial(models.ResNet, depth=50, width=2),
  ],
)
def test_rematerialisation_changes_neither_parameters_nor_gradients(make):
  x = jax.random.normal(jax.random.key(1), (2, 8, 8, 3))
  results = []
  for remat in (False, True):
    backbone = make(remat=remat)
    variables = backbone.init(jax.random.key(0), x, train=False)

    def loss(params, backbone=backbone, variables=variables):
      out, _ = backbone.apply({**variables, "params": params}, x, train=True, mutable=["batch_stats"])
      return (out**2).sum()

    results.append((variables["params"], jax.jit(jax.grad(loss))(variables["params"])))
  assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(results))
  chex.assert_trees_all_close(*results, rtol=1e-4, atol=1e-5)


def dropped_resnet(**options):
  """A small one, random weights for it, and what its layers give in training."""
  backbone = models.CifarResNet(depth=8, width=2, **options)
  x = jax.random.normal(jax.random.key(1), (4, 8, 8, 3))
  random = np.random.default_rng(0)
  shapes = jax.eval_shape(lambda: backbone.init(jax.random.key(0), x, train=False))
  variables = jax.tree.map(lambda s: jnp.asarray(random.uniform(0.5, 1.5, s.shape), s.dtype), shapes)
  mutable = ["intermediates", "batch_stats"]
  apply = lambda v, x, **rngs: backbone.apply(
    v, x, train=True, capture_intermediates=True, mutable=mutable, **rngs
  )
  return variables, functools.partial(jax.jit(apply), variables, x)


@pytest.mark.thorough
def test_dropout_is_between_each_convolution_and_its_normalisation():
  variables, apply = dropped_resnet(dropout_rate=0.5)
  features, state = apply(rngs={"dropout": jax.random.key(2)})
  layers = jax.tree.map(np.asarray, state["intermediates"])
  for block in ("stage0_block0", "stage2_block0"):
    for number in range(2):
      inside = np.float64(layers[block][f"Conv_{number}"]["__call__"][0])
      got = layers[block][f"BatchNorm_{number}"]["__call__"][0]
      # What was dropped is 0 before the normalisation, and so one number in each channel after it.
      zeros = []
      for channel in np.moveaxis(got, -1, 0):
        values, counts = np.unique(channel, return_counts=True)
        zeros.append(channel == values[counts.argmax()])
      mask = ~np.stack(zeros, axis=-1)
      assert abs(mask.mean() - 0.5) < 4 * np.sqrt(0.25 / mask.size)
      dropped = 2 * inside * mask
      norm = variables["params"][block][f"BatchNorm_{number}"]
      want = (dropped - dropped.mean((0, 1, 2))) / np.sqrt(dropped.var((0, 1, 2)) + 1e-5)
      want = want * np.float64(norm["scale"]) + np.float64(norm["bias"])
      np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3)
  # Not after the first convolution, which is in no block.
  stem = layers["BatchNorm_0"]["__call__"][0]
  assert len(np.unique(stem)) > 0.9 * stem.size
  again, _ = apply(rngs={"dropout": jax.random.key(2)})
  np.testing.assert_array_equal(features, again)
  assert (features != apply(rngs={"dropout": jax.random.key(3)})[0]).any()


@pytest.mark.thorough
def test_without_dropout_the_residual_network_is_the_same_and_needs_no_key():
  variables, apply = dropped_resnet()
  dropping, _ = dropped_resnet(dropout_rate=0.5)
  assert paths.leaf_names(variables) == paths.leaf_names(dropping)
  x = jax.random.normal(jax.random.key(1), (4, 8, 8, 3))
  evaluate = lambda model: jax.jit(lambda v: model.apply(v, x, train=False))(variables)
  np.testing.assert_array_equal(
    evaluate(models.CifarResNet(depth=8, width=2)),
    evaluate(models.CifarResNet(depth=8, width=2, dropout_rate=0.5)),
  )
  assert np.isfinite(apply()[0]).all()
  with pytest.raises(Exception, match="dropout"):
    dropped_resnet(dropout_rate=0.5)[1]()


@pytest.mark.thorough
def test_convolutions_start_by_the_rule_of_he_for_their_outputs():
  model = models.ResNet(18, width=8)
  initial = jax.jit(functools.partial(model.init, train=False))(jax.random.key(0), np.ones((1, 8, 8, 3), "f"))
  kernels = [leaf for leaf in jax.tree.leaves(initial["params"]) if leaf.ndim == 4]
  assert len(kernels) == 1 + 16 + 3
  for kernel in kernels:
    outputs = kernel.shape[0] * kernel.shape[1] * kernel.shape[3]
    # The mean of the squares of n normal numbers has the relative deviation sqrt(2 / n).
    assert abs(outputs / 2 * np.square(kernel).mean() - 1) < 5 * np.sqrt(2 / kernel.size)

"""The fast CIFAR-10 network against convolutions by SciPy, and its size."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import signal

from configs.fast_cifar10 import get_config
from jaxreg import models
from jaxreg.models import _airbench
from jaxreg.train.assemble.load_data import load_data

KEYS = {"params": jax.random.key(0), "dropout": jax.random.key(1)}


def random_variables(model, x, seed=0):
  random = np.random.default_rng(seed)
  abstract = jax.eval_shape(lambda: model.init(KEYS, x, train=False))
  variables = jax.tree.map(lambda leaf: (random.normal(size=leaf.shape) * 0.4).astype(np.float32), abstract)
  return {**variables, "batch_stats": jax.tree.map(abs, variables["batch_stats"])}


def correlate(images, kernel, mode):
  channels = range(kernel.shape[2])
  one = lambda image, k: sum(signal.correlate2d(image[..., c], k[..., c], mode=mode) for c in channels)
  return np.stack([np.stack([one(image, k) for k in np.moveaxis(kernel, -1, 0)], -1) for image in images])


def test_it_is_the_layers_in_their_order():
  model = models.Airbench(widths=(3, 4))
  x = np.random.default_rng(1).normal(size=(2, 9, 10, 3))
  variables = random_variables(model, x.astype(np.float32))
  got = jax.jit(functools.partial(model.apply, train=False))(variables, x.astype(np.float32))
  weights = jax.tree.map(lambda leaf: leaf.astype(np.float64), variables)
  params, stats = weights["params"], weights["batch_stats"]
  relu = lambda h: np.maximum(h, 0)

  def normalise(h, number):
    at = stats[f"BatchNorm_{number}"]
    return (h - at["mean"]) / np.sqrt(at["var"] + 1e-5) + 8 * params[f"FastBias_{number}"]["bias"]

  assert not any(name.startswith("BatchNorm") for name in params), "no scales, and the biases are ours"
  h = relu(correlate(x, params["Conv_0"]["kernel"], "valid"))
  assert h.shape == (2, 8, 9, 24)
  for block in range(2):
    h = correlate(h, params[f"Conv_{2 * block + 1}"]["kernel"], "same")
    even = h[:, : h.shape[1] // 2 * 2, : h.shape[2] // 2 * 2]
    h = np.max([even[:, i::2, j::2] for i in range(2) for j in range(2)], axis=0)
    h = relu(normalise(h, 2 * block))
    h = relu(normalise(correlate(h, params[f"Conv_{2 * block + 2}"]["kernel"], "same"), 2 * block + 1))
  np.testing.assert_allclose(got, h.max((1, 2)) / 9, rtol=1e-4, atol=1e-5 * h.max())
  assert got.shape == (2, 4)
  assert (np.asarray(got) > 0).any()


def test_number_of_parameters():
  model = models.Classifier(models.Airbench(), models.SoftmaxHead(10))
  x = jnp.zeros((1, 32, 32, 3))
  params = jax.eval_shape(lambda: model.init(KEYS, x, train=False))["params"]
  # The released network has 24 biases in its first layer, which we have not, and none in its head.
  pairs = [(24, 64), (64, 64), (64, 256), (256, 256), (256, 256), (256, 256)]
  expected = 2 * 2 * 3 * 24 + sum(9 * a * b + b for a, b in pairs) + 256 * 10 + 10
  assert sum(leaf.size for leaf in jax.tree.leaves(params)) == expected
  assert round(expected / 1e6, 2) == 1.97


def initial(**options):
  model = models.Airbench(**options)
  return model.init(KEYS, jnp.zeros((1, 32, 32, 3)), train=False)["params"]


@pytest.mark.thorough
def test_kernels_start_as_the_identity():
  params = initial(widths=(30, 12))
  assert params.keys() >= {f"FastBias_{number}" for number in range(4)}
  x = np.random.default_rng(0).normal(size=(1, 5, 6, 30))
  for number, (inputs, outputs) in enumerate([(24, 30), (30, 30), (30, 12), (12, 12)], 1):
    kernel = np.asarray(params[f"Conv_{number}"]["kernel"], np.float64)
    assert kernel.shape == (3, 3, inputs, outputs)
    kept = min(inputs, outputs)
    got = correlate(x[..., :inputs], kernel, "same")[..., :kept]
    np.testing.assert_array_equal(got, x[..., :kept])
  rest, bound = np.asarray(params["Conv_1"]["kernel"])[..., 24:], 1 / np.sqrt(9 * 24)
  assert np.abs(rest).max() <= bound
  # The mean of the squares of n such numbers is bound^2 / 3, with the deviation bound^2 sqrt(4 / 45 n).
  assert abs((rest**2).mean() / bound**2 - 1 / 3) < 4 * np.sqrt(4 / 45 / rest.size)


@pytest.mark.thorough
def test_whitened_filters_on_photographs(data_dir):
  config = get_config()
  config.data.tfds.data_dir = str(data_dir / "tfds")
  images = load_data(config).train.inputs[np.arange(500)]
  x = (images / 255 - config.augment.mean) / config.augment.std
  kernel = np.asarray(initial(whitened=True)["Conv_0"]["kernel"], np.float64)
  patches = np.stack([x[:, i : i + 31, j : j + 31] for i in (0, 1) for j in (0, 1)], axis=3).reshape(-1, 12)
  responses = patches @ kernel.reshape(12, 24)
  np.testing.assert_allclose(responses[:, 12:], -responses[:, :12])
  covariance = responses[:, :12].T @ responses[:, :12] / len(patches)
  # The number that is added to the variances counts for the finest colours only.
  assert ((covariance.diagonal() > 0.5) & (covariance.diagonal() < 1.15)).all()
  assert (covariance.diagonal() > 0.85).sum() >= 8
  correlations = covariance / np.sqrt(np.outer(covariance.diagonal(), covariance.diagonal()))
  assert np.abs(correlations - np.eye(12)).max() < 0.4
  plain = patches.T @ patches / len(patches)
  assert np.linalg.cond(covariance) < np.linalg.cond(plain) / 1000


@pytest.mark.thorough
def test_noise_follows_each_block(monkeypatch):
  """With weights of 0, only the noise after the last block is in the features."""
  disturbed, seen = _airbench.disturbed, []

  def recorded(module, x, *, train):
    seen.append(x.shape)
    return disturbed(module, x, train=train)

  monkeypatch.setattr(_airbench, "disturbed", recorded)
  model = models.Airbench(widths=(2, 300), hidden_noise_std=0.3, scale=1.0)
  x = np.ones((4, 6, 6, 3), np.float32)
  zeros = jax.tree.map(np.zeros_like, random_variables(model, x))
  seen.clear()
  got, _ = model.apply(zeros, x, train=True, rngs=KEYS, mutable=["batch_stats"])
  assert seen == [(4, 2, 2, 2), (4, 1, 1, 300)]
  assert abs(got.mean()) < 4 * 0.3 / np.sqrt(got.size)
  assert abs(got.std() - 0.3) < 4 * 0.3 / np.sqrt(2 * got.size)


@pytest.mark.parametrize(
  ("options", "shape", "message"),
  [
    ({"widths": ()}, (1, 32, 32, 3), r"widths must be numbers of at least 1, got \(\)"),
    ({"widths": (4, 0)}, (1, 32, 32, 3), r"widths must be numbers of at least 1, got \(4, 0\)"),
    ({"dropout": "drop"}, (1, 32, 32, 3), "dropout must be one of dropout, .*, got 'drop'"),
    ({"whitened": True}, (1, 32, 32, 1), r"whitened filters need .* three channels, got \(1, 32, 32, 1\)"),
    ({}, (1, 3072), r"Airbench needs images .*got \(1, 3072\)"),
    ({}, (1, 32, 8, 3), r"at least 9x9, got \(1, 32, 8, 3\)"),
  ],
)
def test_refusals(options, shape, message):
  with pytest.raises(ValueError, match=message):
    jax.eval_shape(lambda: models.Airbench(**options).init(KEYS, jnp.zeros(shape), train=True))

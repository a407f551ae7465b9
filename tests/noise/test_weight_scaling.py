"""The weight-scaling rule: what it is exact for, what not, and masks of one's own against a shared one."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest

from jaxreg import noise, paths


def log_softmax(logits):
  return np.log(oracles.softmax(logits))


def problem(seed=0):
  rng = np.random.default_rng(seed)
  return rng.normal(size=5), rng.normal(size=(5, 3)), rng.normal(size=3)


def masked(keep, x):
  masks = oracles.all_masks(len(x))
  return masks * x, oracles.mask_probabilities(masks, np.full(len(x), keep))


@pytest.mark.parametrize("keep", [0.3, 0.5, 0.8])
@pytest.mark.claim(
  "regularization",
  "weight scaling inference rule",
  "the renormalised geometric mean of softmax regressions has the weights p W; for p other than 1/2 the mean "
  "must be weighted by the masks' probabilities, not the 2^d-th root that is printed",
  status="erratum",
  size="enumeration",
)
def test_geometric_mean_of_softmax_regressions_is_scaled_weights(keep):
  x, kernel, bias = problem()
  xs, weights = masked(keep, x)
  each = log_softmax(xs @ kernel + bias)
  geometric = oracles.softmax(weights @ each)
  with jax.enable_x64(True):
    params = noise.scale_weights(
      {"kernel": jnp.asarray(kernel), "bias": jnp.asarray(bias)}, rate=1 - keep, mask=paths.kernels_only
    )
    scaled = jax.nn.softmax(x @ params["kernel"] + params["bias"])
  np.testing.assert_allclose(scaled, geometric, rtol=1e-12)
  # As printed, every mask alike: right at 1/2 only. And the arithmetic mean is another thing.
  printed = oracles.softmax(each.mean(0))
  assert (np.abs(printed - geometric).max() < 1e-12) == (keep == 0.5)
  assert np.abs(weights @ np.exp(each) - geometric).max() > 1e-3
  # Whatever normalises each member drops out; without renormalising the sum is below 1.
  shifted = oracles.softmax(weights @ (each + np.random.default_rng(1).normal(size=(len(each), 1))))
  np.testing.assert_allclose(shifted, geometric, rtol=1e-12)
  assert np.exp(weights @ each).sum() < 1


@pytest.mark.parametrize("keep", [0.3, 0.8])
@pytest.mark.claim(
  "regularization",
  "dropout",
  "weights times p: the output at test time is the expected output of training",
  size="enumeration",
)
def test_scaled_weights_are_the_mean_of_linear_layers(keep):
  """One layer, and two with masks before each: E W2 (m2 * (W1 (m1 * x))) = (p W2)(p W1) x."""
  x, kernel, bias = problem()
  second = np.random.default_rng(2).normal(size=(3, 2))
  xs, weights = masked(keep, x)
  hidden = xs @ kernel + bias
  masks = oracles.all_masks(3)
  inner = oracles.mask_probabilities(masks, np.full(3, keep))
  mean = np.einsum("m,n,mh,nh,ho->o", weights, inner, hidden, masks, second)
  with jax.enable_x64(True):
    params = {"a": {"kernel": jnp.asarray(kernel), "bias": jnp.asarray(bias)}, "b": {"kernel": second}}
    scaled = noise.scale_weights(params, rate=1 - keep, mask=paths.kernels_only)
    one = x @ scaled["a"]["kernel"] + scaled["a"]["bias"]
    two = one @ scaled["b"]["kernel"]
  np.testing.assert_allclose(one, weights @ hidden, rtol=1e-12)
  np.testing.assert_allclose(two, mean, rtol=1e-12)
  # Biases must not be scaled, nor weights that write the dropped units rather than read them.
  assert np.abs(keep * (x @ kernel + bias) - weights @ hidden).max() > 0.1


def test_which_layer():
  """Dropping the hidden units scales the layer that reads them."""
  params = {"Dense_0": {"kernel": jnp.ones(2)}, "Dense_1": {"kernel": jnp.ones(2), "bias": jnp.ones(1)}}
  got = noise.scale_weights(params, rate=0.5, mask=lambda p: paths.select(p, "Dense_1/kernel"))
  assert [float(leaf.sum()) for leaf in jax.tree.leaves(got)] == [2.0, 1.0, 1.0]
  with pytest.raises(ValueError, match="rate"):
    noise.scale_weights(params, rate=1.5, mask=paths.kernels_only)
  with pytest.raises(TypeError, match="kernel must be floating"):
    noise.scale_weights({"kernel": jnp.ones(2, int)}, rate=0.5, mask=paths.kernels_only)
  with pytest.raises(ValueError, match="mask selects no parameter"):
    noise.scale_weights(params, rate=0.5, mask=lambda p: paths.select(p, "nothing"))


@pytest.mark.claim(
  "adaptive_sgd",
  "testing",
  "f at the mean mask only approximates the mean of f: through ReLU and softmax they differ",
  size="enumeration",
)
def test_scaled_weights_are_not_the_mean_through_relu_and_softmax():
  rng = np.random.default_rng(4)
  x, first, second = rng.normal(size=6), rng.normal(size=(6, 5)) * 2, rng.normal(size=(5, 3)) * 2
  network = lambda x, kernel: oracles.softmax(np.maximum(x @ kernel, 0) @ second)
  xs, weights = masked(0.5, x)
  scaled = noise.scale_weights({"kernel": jnp.asarray(first, jnp.float32)}, rate=0.5, mask=paths.everything)
  assert np.abs(network(x, np.asarray(scaled["kernel"])) - weights @ network(xs, first)).max() > 0.05


@pytest.mark.thorough
@pytest.mark.claim(
  "adaptive_sgd",
  "expected loss",
  "noise drawn for each example by itself: the gradient stays unbiased, and varies less than with one draw "
  "for the batch",
  size="toy",
)
def test_masks_of_their_own_vary_the_gradient_less_than_a_shared_one():
  """The mean gradient of a batch of 3 squared errors with 3 inputs: all masks, and what is drawn."""
  rng = np.random.default_rng(6)
  base = rng.normal(size=3)
  x, w, y, keep = base + 0.3 * rng.normal(size=(3, 3)), rng.normal(size=3), rng.normal(size=3) * 0.1, 0.5
  masks = oracles.all_masks(3)
  weights = oracles.mask_probabilities(masks, np.full(3, keep))
  xs = masks[:, None] * x / keep  # [masks, examples, inputs]
  each = 2 * ((xs @ w - y)[..., None] * xs)
  mean = np.einsum("m,mei->ei", weights, each)
  shared = (weights[:, None] * (each.mean(1) - mean.mean(0)) ** 2).sum()
  own = np.einsum("m,mei->", weights, (each - mean) ** 2) / 9
  assert shared > 1.5 * own

  @functools.partial(jax.jit, static_argnames="axes")
  def gradients(keys, axes):
    def loss(w, key):
      noisy = noise.dropout(key, jnp.asarray(x, jnp.float32), rate=1 - keep, shared_axes=axes)
      return ((noisy @ w - jnp.asarray(y, jnp.float32)) ** 2).mean()

    return jax.vmap(lambda key: jax.grad(loss)(jnp.asarray(w, jnp.float32), key))(keys)

  for axes, variance in (((), own), ((0,), shared)):
    got = np.asarray(gradients(jax.random.split(jax.random.key(0), 20_000), axes), np.float64)
    assert np.abs(got.mean(0) - mean.mean(0)).max() < 4 * np.sqrt(variance / 20_000)
    np.testing.assert_allclose(got.var(0).sum(), variance, rtol=0.1)

"""Means over members and over all masks, against enumeration in float64 NumPy; bagging."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest

from jaxreg import ensembles, noise, paths

MEANS = (ensembles.arithmetic, ensembles.geometric)
both = jax.jit(lambda log_probs, weights=None: tuple(mean(log_probs, weights=weights) for mean in MEANS))


def predictions(members=4, batch=(3,), classes=3, seed=0):
  return oracles.softmax(np.random.default_rng(seed).normal(size=(members, *batch, classes)) * 2)


def masked_regressions(d, keep, seed=0):
  """Softmax regression on one input under all masks: x, W, b, log-probabilities `[2^d, classes]`, weights."""
  rng = np.random.default_rng(seed)
  x, kernel, bias = rng.normal(size=d), rng.normal(size=(d, 3)), rng.normal(size=3)
  masks = oracles.all_masks(d)
  return x, kernel, bias, np.log(oracles.softmax(masks * x @ kernel + bias)), masks


@pytest.mark.parametrize("weights", [None, [0.1, 0.0, 0.7, 0.6]])
def test_means_against_numpy(weights):
  probs, used = predictions(), np.ones(4) if weights is None else oracles.f64(weights)
  used = used / used.sum()
  product = np.prod(probs ** used[:, None, None], axis=0)
  with jax.enable_x64(True):
    arithmetic, geometric = both(np.log(probs), None if weights is None else np.float64(weights))
  np.testing.assert_allclose(np.exp(arithmetic), np.einsum("m,mbk->bk", used, probs), rtol=1e-13)
  np.testing.assert_allclose(np.exp(geometric), product / product.sum(-1, keepdims=True), rtol=1e-13)
  assert arithmetic.dtype == geometric.dtype == np.float64


@pytest.mark.parametrize("keep", [0.3, 0.5, 0.8])
@pytest.mark.claim(
  "regularization",
  "weight scaling inference rule",
  "the geometric mean of softmax regressions under all masks is softmax of p W'v + b, the arithmetic is not",
  size="enumeration",
)
def test_geometric_mean_over_masks_is_scaled_weights(keep):
  x, kernel, bias, log_probs, masks = masked_regressions(6, keep)
  scaled = noise.scale_weights({"kernel": kernel, "bias": bias}, rate=1 - keep, mask=paths.kernels_only)
  with jax.enable_x64(True):
    arithmetic, geometric = map(np.exp, both(log_probs, oracles.mask_probabilities(masks, np.full(6, keep))))
  np.testing.assert_allclose(geometric, oracles.softmax(x @ np.asarray(scaled["kernel"]) + bias), rtol=1e-5)
  np.testing.assert_allclose(geometric, oracles.softmax(keep * x @ kernel + bias), rtol=1e-13)
  exact = oracles.mask_probabilities(masks, np.full(6, keep)) @ np.exp(log_probs)
  np.testing.assert_allclose(arithmetic, exact, rtol=1e-13)
  assert np.abs(geometric - arithmetic).max() > 0.005


def test_a_thousand_masks_do_not_underflow_in_float32():
  """As printed, the 2^d-th root of a product: 0 in float32 from 10 units on."""
  x, kernel, bias, log_probs, _ = masked_regressions(10, 0.5)
  got = np.exp(both(np.float32(log_probs))[1])
  np.testing.assert_allclose(got, oracles.softmax(0.5 * x @ kernel + bias), atol=1e-6)
  assert (np.prod(np.exp(np.float32(log_probs)), axis=0) == 0).all()


@jax.jit
def values_and_gradients(log_probs, weights):
  """Of both means, and the gradient of the sum of all their probabilities."""
  values = both(log_probs, weights)
  return values, [jax.grad(lambda x, i=i: jnp.exp(both(x, weights)[i]).sum())(log_probs) for i in (0, 1)]


def test_one_member_can_veto_a_class_in_the_geometric_mean_only():
  with np.errstate(divide="ignore"):
    log_probs = np.log(np.float32([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5]]))
  (arithmetic, geometric), _ = values_and_gradients(log_probs, np.float32([1, 1]))
  np.testing.assert_allclose(np.exp(arithmetic), [0.25, 0.5, 0.25], rtol=1e-6)
  np.testing.assert_array_equal(np.exp(geometric), [0, 1, 0])
  # Weight 0 is absence; a class that nobody gives a probability is -inf, without NaN in value or gradient.
  values, gradients = values_and_gradients(log_probs, np.float32([1, 0]))
  for value, gradient in zip(values, gradients):
    np.testing.assert_allclose(value, log_probs[0], rtol=1e-6)
    assert np.isfinite(gradient).all()


@pytest.mark.thorough
@pytest.mark.parametrize("huge", [1e30, 3.4e38])
def test_means_keep_their_digits_beside_huge_numbers(huge):
  """Each class is nearly vetoed once: what is left decides, as exact fractions say."""
  log_probs = np.float32(
    [[-0.125, -huge, -2.125], [-huge, -0.5, -0.9375], [-0.75, -0.625, -huge], [-3, -1, -0.5625]]
  )
  sums = [sum(map(Fraction, column)) / 4 for column in log_probs.T.tolist()]
  gaps = np.array([float(total - max(sums)) for total in sums])
  probs = np.exp(np.float64(log_probs)) / 4
  want = np.log(probs.sum(0)), gaps - np.log(np.exp(gaps).sum())
  values, gradients = values_and_gradients(log_probs, np.ones(4, np.float32))
  for got in (values, [mean(log_probs) for mean in MEANS]):
    for mean, exact in zip(got, want):
      np.testing.assert_allclose(mean, exact, rtol=1e-6)
  # The geometric mean sums to 1 wherever its members lie.
  np.testing.assert_allclose(gradients[0], probs, rtol=1e-5)
  np.testing.assert_allclose(gradients[1], 0, atol=1e-6)


@pytest.mark.claim(
  "regularization", "bagging", "the mean of the members' probabilities has at most the mean of their NLLs"
)
def test_the_mean_of_members():
  rng = np.random.default_rng(3)
  x, labels = np.float32(rng.normal(size=(20, 4))), rng.integers(0, 3, 20)
  kernels = np.float32(rng.normal(size=(5, 4, 3)) * 2)
  log_probs = lambda kernels: jax.nn.log_softmax(jax.vmap(lambda kernel: x @ kernel)(kernels))
  predict = jax.jit(lambda kernels, weights=None: ensembles.arithmetic(log_probs(kernels), weights=weights))
  got = np.asarray(predict(kernels))
  each = oracles.softmax(np.einsum("bf,mfk->mbk", x, kernels))
  np.testing.assert_allclose(np.exp(got), each.mean(0), rtol=1e-4)
  rows = np.arange(20)
  members, ensemble = -np.log(each[:, rows, labels]).mean(), -got[rows, labels].mean()
  assert ensemble < members - 0.1
  weights = np.float32([0, 3, 1, 0, 4])
  weighted = predict(kernels, weights)
  np.testing.assert_allclose(np.exp(weighted), np.einsum("m,mbk->bk", weights / 8, each), rtol=1e-4)
  # One member is that model.
  one = predict(kernels[:1])
  np.testing.assert_allclose(np.exp(one), each[0], rtol=1e-5)


def test_what_does_not_fit_is_refused():
  log_probs = jnp.full((2, 3), -jnp.log(3))
  for mean in MEANS:
    with pytest.raises(TypeError, match="log_probs must be floating"):
      mean(jnp.zeros((2, 3), int))
    with pytest.raises(ValueError, match="weights must have shape"):
      mean(log_probs, weights=jnp.ones(3))
    with pytest.raises(ValueError, match="members"):
      mean(jnp.zeros(3))
    for weights in ([2.0, -1.0], [0.0, 0.0]):
      with pytest.raises(ValueError, match="weights must not be negative and not all 0, got"):
        mean(log_probs, weights=jnp.array(weights))
  assert all(np.isnan(x).all() for x in both(log_probs, jnp.array([2.0, -1.0])))  # traced

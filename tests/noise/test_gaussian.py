"""Gaussian noise and Gaussian dropout: moments, limits, and what noise on the inputs amounts to."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxreg import noise
from jaxreg.noise._dropout import dropout_mask

FUNCTIONS = {
  "additive": lambda key, x, std: noise.gaussian_noise(key, x, std=std),
  "multiplicative": lambda key, x, std: noise.gaussian_noise(key, x, std=std, kind="multiplicative"),
  "dropout": lambda key, x, std: noise.gaussian_dropout(key, x, std=std),
}


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_mean_is_kept_and_std_is_as_asked(kind):
  x = jnp.full((300, 300), 2.0)
  got = np.asarray(FUNCTIONS[kind](jax.random.key(0), x, 0.5), np.float64)
  std = 0.5 if kind == "additive" else 1.0
  assert abs(got.mean() - 2) < 4 * std / 300
  assert abs(got.std() / std - 1) < 4 / math.sqrt(2 * got.size)
  # Normal, not only of the right moments: a third is outside one standard deviation.
  assert abs((np.abs(got - 2) > std).mean() - 0.317311) < 4 * math.sqrt(0.22 / got.size)


@pytest.mark.parametrize("rate", [0.2, 0.5, 0.9])
@pytest.mark.claim(
  "adaptive_sgd",
  "mathematical model, Gaussian dropout",
  "factors N(1, (1 - p) / p) have mean and variance of Bernoulli factors divided by p",
)
def test_gaussian_dropout_has_the_variance_of_inverted_dropout(rate):
  factors = np.array([0.0, 1 / (1 - rate)])
  weights = np.array([rate, 1 - rate])
  mean, variance = weights @ factors, weights @ factors**2 - (weights @ factors) ** 2
  x = jnp.ones((400, 250))
  got = np.asarray(noise.gaussian_dropout(jax.random.key(1), x, rate=rate), np.float64)
  assert abs(got.mean() - mean) < 4 * math.sqrt(variance / got.size)
  assert abs(got.var() / variance - 1) < 4 * math.sqrt(2 / got.size)


def test_rate_and_std_are_two_names():
  x = jax.random.normal(jax.random.key(0), (50,))
  by_rate = noise.gaussian_dropout(jax.random.key(1), x, rate=0.3)
  by_std = noise.gaussian_dropout(jax.random.key(1), x, std=math.sqrt(3 / 7))
  np.testing.assert_allclose(by_rate, by_std, rtol=1e-5)
  for wrong in ({}, {"rate": 0.1, "std": 0.1}):
    with pytest.raises(ValueError, match="one of rate and std"):
      noise.gaussian_dropout(jax.random.key(1), x, **wrong)


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_no_noise_is_the_identity(kind):
  x = np.random.default_rng(0).normal(size=(5, 7)).astype(np.float32)
  np.testing.assert_array_equal(FUNCTIONS[kind](jax.random.key(0), x, 0.0), x)
  np.testing.assert_array_equal(noise.gaussian_dropout(jax.random.key(0), x, rate=0.0), x)


@pytest.mark.parametrize("rate", [0.0, 0.4, 1.0])
def test_a_traced_rate_has_finite_gradients_at_both_ends(rate):
  x = jnp.arange(1.0, 6.0)
  loss = lambda x, rate: noise.gaussian_dropout(jax.random.key(2), x, rate=rate).sum()
  value, (by_x, by_rate) = jax.jit(jax.value_and_grad(loss, (0, 1)))(x, rate)
  assert np.isfinite(value)
  assert np.isfinite(by_x).all()
  assert np.isfinite(by_rate)
  if rate == 1:
    assert value == 0
    np.testing.assert_array_equal(by_x, 0)
  if rate == 0.4:
    factors = noise.gaussian_dropout(jax.random.key(2), jnp.ones(5), rate=0.4)
    # d sigma / d rate = sigma / (2 rate (1 - rate)).
    np.testing.assert_allclose(by_rate, ((factors - 1) * x).sum() / (2 * 0.4 * 0.6), rtol=1e-4)


@pytest.mark.claim(
  "regularization", "dataset augmentation", "dropout constructs new inputs by multiplying by noise"
)
def test_multiplying_by_bernoulli_noise_of_the_same_key_is_dropout():
  x = jax.random.normal(jax.random.key(0), (20, 30))
  factors = dropout_mask(jax.random.key(4), x.shape, rate=0.5).astype(jnp.float32)
  assert 0 < factors.mean() < 1
  np.testing.assert_array_equal(x * factors, noise.dropout(jax.random.key(4), x, rate=0.5, inverted=False))


@pytest.mark.claim(
  "regularization",
  "dataset augmentation",
  "for a linear model noise on the inputs is a penalty on the norm of the weights",
)
def test_input_noise_on_a_linear_model_is_ridge():
  """E (w (x + sigma n) - y)^2 = (w x - y)^2 + sigma^2 |w|^2; antithetic pairs, or the noise of what is odd
  in n hides it."""
  rng = np.random.default_rng(0)
  x, w, y, std, draws = rng.normal(size=5), rng.normal(size=5), 0.7, 0.3, 100_000
  n = np.asarray(noise.gaussian_noise(jax.random.key(5), jnp.zeros((draws, 5)), std=std), np.float64)
  each = (((x + n) @ w - y) ** 2 + ((x - n) @ w - y) ** 2) / 2 - (x @ w - y) ** 2
  want = std**2 * (w**2).sum()
  assert abs(each.mean() - want) < 4 * want * math.sqrt(2 / draws)


def test_shared_axes_share_one_draw():
  x = jnp.ones((4, 5, 6))
  for function in (
    lambda x, axes: noise.gaussian_noise(jax.random.key(6), x, std=1.0, shared_axes=axes),
    lambda x, axes: noise.gaussian_dropout(jax.random.key(6), x, rate=0.5, shared_axes=axes),
  ):
    got = np.asarray(function(x, (1,)))
    np.testing.assert_array_equal(got, np.broadcast_to(got[:, :1], got.shape))
    assert len(np.unique(got)) == 24
    with pytest.raises(ValueError, match="shared_axes"):
      function(x, (3,))


def test_options_out_of_range_are_refused():
  x, key = jnp.ones(3), jax.random.key(0)
  for std in (-0.1, math.nan):
    with pytest.raises(ValueError, match="std"):
      noise.gaussian_noise(key, x, std=std)
    with pytest.raises(ValueError, match="std"):
      noise.gaussian_dropout(key, x, std=std)
  with pytest.raises(ValueError, match="kind"):
    noise.gaussian_noise(key, x, std=0.1, kind="cauchy")
  with pytest.raises(ValueError, match="rate"):
    noise.gaussian_dropout(key, x, rate=1.1)

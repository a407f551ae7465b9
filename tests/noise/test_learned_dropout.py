"""Concrete and variational dropout: their limits, and what their costs are exactly."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats
from scipy.special import logit

from jaxreg import noise

pytestmark = pytest.mark.thorough


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.8])
def test_concrete_dropout_becomes_dropout_as_the_temperature_falls(rate):
  x = jnp.full((200, 200), 3.0)
  got = noise.concrete_dropout(jax.random.key(0), x, rate_logit=logit(rate), temperature=1e-5)
  got = np.asarray(got, np.float64)
  dropped, kept = np.isclose(got, 0, atol=1e-3), np.isclose(got, 3 / (1 - rate), rtol=1e-3)
  assert (dropped | kept).mean() > 0.999
  assert abs(dropped.mean() - rate) < 4 * math.sqrt(rate * (1 - rate) / got.size) + 1e-3


@pytest.mark.parametrize("rate_logit", [-1e4, -100.0, 0.0, 100.0, 1e4])
def test_concrete_dropout_is_finite_at_any_rate(rate_logit):
  kernel = jnp.full((3, 2), 1e3)

  def loss(x, kernel, a):
    noisy = noise.concrete_dropout(jax.random.key(2), x, rate_logit=a)
    return noisy.sum() + noise.concrete_dropout_kl(kernel, rate_logit=a), noisy

  (value, noisy), gradients = jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True))(
    jnp.ones(50), kernel, rate_logit
  )
  assert np.isfinite(value)
  assert all(np.isfinite(g).all() for g in gradients)
  if rate_logit == -1e4:
    np.testing.assert_array_equal(noisy, 1)
  if rate_logit == 1e4:
    np.testing.assert_array_equal(noisy, 0)
    assert gradients[2] > 0  # the rate can come back


def test_stationary_rate_of_the_concrete_kl():
  """d KL / d a = l^2 / 2 |W|^2 exp(a) + K a p (1 - p) for a = logit p, from the two terms by hand."""
  kernel = jnp.asarray(np.random.default_rng(0).normal(size=(4, 5)), jnp.float32)
  slope = jax.jit(jax.grad(lambda a: noise.concrete_dropout_kl(kernel, rate_logit=a, length_scale=0.3)))
  square = np.square(np.asarray(kernel, np.float64)).sum()
  for a in (-6.0, -1.0, 0.0, 2.0):
    p = 1 / (1 + math.exp(-a))
    want = 0.3**2 / 2 * square * math.exp(a) + 4 * a * p * (1 - p)
    np.testing.assert_allclose(slope(a), want, rtol=1e-5)
  # Without data the rate goes up for as long as the weights cost less than the entropy gains.
  assert slope(-6.0) < 0 < slope(2.0)


def test_concrete_kl_is_that_of_the_weights_that_are_dropped():
  """Under inverted dropout the layer multiplies x m / (1 - p) by W: the paper's M is W / (1 - p)."""
  kernel, p = np.random.default_rng(1).normal(size=(4, 5)), 0.3
  paper = (1 - p) / 2 * ((kernel / (1 - p)) ** 2).sum() - 4 * (-p * math.log(p) - (1 - p) * math.log(1 - p))
  np.testing.assert_allclose(
    noise.concrete_dropout_kl(jnp.asarray(kernel, jnp.float32), rate_logit=logit(p)), paper, rtol=1e-5
  )


def exact_kl(log_alpha):
  """KL from the scale-invariant prior up to its constant: half of E log chi^2_1(1 / alpha) less that at 0,
  as log |w|, w ~ N(1, alpha), is half the logarithm of a non-central chi-square: a Poisson mixture."""
  u = 0.5 * math.exp(-log_alpha)
  k = np.arange(int(u + 12 * math.sqrt(u) + 60))
  return 0.5 * (stats.poisson.pmf(k, u) * (special.digamma(k + 0.5) - special.digamma(0.5))).sum()


def test_variational_kl_is_within_a_hundredth_of_the_exact_one_everywhere():
  points = np.linspace(-8, 10, 91)
  got = np.asarray(noise.variational_dropout_kl(jnp.asarray(points, jnp.float32)), np.float64)
  exact = np.array([exact_kl(a) for a in points])
  assert np.abs(got - exact).max() < 0.01
  assert (np.diff(got) < 0).all()
  np.testing.assert_allclose(got[-1], 0, atol=1e-4)
  # The slope is Dawson's integral: d KL / d log alpha = -sqrt(u) D(sqrt(u)).
  u = 0.5 * np.exp(-points)
  slope = jax.vmap(jax.grad(noise.variational_dropout_kl))(jnp.asarray(points, jnp.float32))
  assert np.abs(np.asarray(slope) + np.sqrt(u) * special.dawsn(np.sqrt(u))).max() < 0.02


@pytest.mark.parametrize("log_alpha", [-1e4, 0.0, 1e4])
def test_variational_dropout_is_finite_at_any_variance(log_alpha):
  x = jnp.ones(20)
  loss = lambda x, a: (
    noise.variational_dropout(jax.random.key(3), x, log_alpha=a).sum() + noise.variational_dropout_kl(a)
  )
  value, gradients = jax.jit(jax.value_and_grad(loss, (0, 1)))(x, log_alpha)
  assert np.isfinite(value)
  assert all(np.isfinite(g).all() for g in gradients)
  if log_alpha == -1e4:
    np.testing.assert_array_equal(noise.variational_dropout(jax.random.key(3), x, log_alpha=log_alpha), x)


def test_variational_dropout_is_gaussian_dropout_of_its_rate():
  x = jax.random.normal(jax.random.key(0), (50, 4))
  rate = 0.3
  got = noise.variational_dropout(jax.random.key(4), x, log_alpha=math.log(rate / (1 - rate)))
  np.testing.assert_allclose(got, noise.gaussian_dropout(jax.random.key(4), x, rate=rate), rtol=1e-5)
  bounded = noise.variational_dropout(jax.random.key(4), x, log_alpha=jnp.full(4, 5.0), max_log_alpha=0.0)
  np.testing.assert_allclose(bounded, noise.gaussian_dropout(jax.random.key(4), x, std=1.0), rtol=1e-5)


def test_each_unit_has_its_variance():
  log_alpha = jnp.array([-4.0, 0.0, 2.0])
  got = noise.variational_dropout(jax.random.key(5), jnp.ones((40_000, 3)), log_alpha=log_alpha)
  np.testing.assert_allclose(np.asarray(got).var(0), np.exp(log_alpha), rtol=4 * math.sqrt(2 / 40_000))


def test_what_does_not_fit_is_refused():
  key, x = jax.random.key(0), jnp.ones((2, 3))
  with pytest.raises(ValueError, match="temperature"):
    noise.concrete_dropout(key, x, rate_logit=0.0, temperature=0.0)
  with pytest.raises(ValueError, match="rate_logit"):
    noise.concrete_dropout(key, x, rate_logit=jnp.zeros(3))
  with pytest.raises(ValueError, match="kernel"):
    noise.concrete_dropout_kl(jnp.ones(3), rate_logit=0.0)
  with pytest.raises(ValueError, match="log_alpha"):
    noise.variational_dropout(key, x, log_alpha=jnp.zeros(2))

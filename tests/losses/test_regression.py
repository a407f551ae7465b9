"""Losses of real targets: what the likelihoods are for, and what the quantile loss finds."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.stats

from jaxreg import losses

RNG = np.random.default_rng(0)
OUTPUTS, LOG_VARS, TARGETS = np.float32(RNG.normal(size=(3, 7)))
of_all = lambda loss, *arguments: jax.grad(lambda *x: loss(*x).sum(), (0, 1))(*arguments)


@pytest.mark.thorough
@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_beta_weighs_the_gradient_by_a_power_of_the_variance(beta):
  """The factor itself has no gradient; at 1 the mean's is that of half the squared error."""
  likelihood = lambda m, s: -jax.scipy.stats.norm.logpdf(TARGETS, m, jnp.exp(s / 2))
  got = of_all(lambda m, s: losses.gaussian_nll(m, s, TARGETS, beta=beta), OUTPUTS, LOG_VARS)
  for of, want in zip(got, of_all(likelihood, OUTPUTS, LOG_VARS)):
    np.testing.assert_allclose(of, np.exp(LOG_VARS) ** beta * want, rtol=2e-5, atol=1e-6)
  if beta == 1:
    squared = jax.grad(lambda m: optax.losses.squared_error(m, TARGETS).sum() / 2)(OUTPUTS)
    np.testing.assert_allclose(got[0], squared, rtol=1e-5)


@pytest.mark.thorough
def test_the_best_variance_is_that_of_the_residuals():
  residuals = np.float32(RNG.normal(size=400) * 3)
  log_var = jnp.log(np.square(residuals).mean())
  loss = lambda s: losses.gaussian_nll(jnp.zeros(400), jnp.full(400, s), residuals).mean()
  assert abs(jax.grad(loss)(log_var)) < 1e-5


@pytest.mark.thorough
@pytest.mark.parametrize("df", [1.0, 2.5, 30.0])
def test_student_t_is_scipys(df):
  got = losses.student_t_nll(OUTPUTS, LOG_VARS, TARGETS, df=df)
  want = -scipy.stats.t.logpdf(np.float64(TARGETS), df, np.float64(OUTPUTS), np.exp(np.float64(LOG_VARS)))
  np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
  slope = jax.grad(lambda df: losses.student_t_nll(OUTPUTS, LOG_VARS, TARGETS, df=df).sum())(df)
  at = lambda df: -scipy.stats.t.logpdf(np.float64(TARGETS), df, OUTPUTS, np.exp(np.float64(LOG_VARS))).sum()
  np.testing.assert_allclose(slope, (at(df + 1e-4) - at(df - 1e-4)) / 2e-4, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("df", [1e3, 1e5, 1e6, 1e7])
def test_student_t_with_many_degrees_of_freedom_in_float32(df):
  """The first two terms of the expansion in `1 / df`, at a standardised error of `x`."""
  x = 1.0
  zero = jnp.float32([0.0])
  loss = lambda df: losses.student_t_nll(zero, zero, jnp.float32([x]), df=df)[0]
  value, slope = jax.value_and_grad(loss)(jnp.float32(df))
  factor = (1 + 2 * x**2 - x**4) / 4
  np.testing.assert_allclose(value, np.log(2 * np.pi) / 2 + x**2 / 2 + factor / df, rtol=2e-6)
  np.testing.assert_allclose(slope, -factor / df**2, rtol=10 / df + 1e-5)


def test_an_outlier_moves_student_t_by_a_bounded_slope():
  slope = lambda y: jax.grad(lambda m: losses.student_t_nll(m, jnp.zeros(()), y))(jnp.zeros(()))
  assert abs(slope(jnp.array(1e6))) < 1e-5 < abs(slope(jnp.array(1.0)))


@pytest.mark.thorough
def test_pinball_is_least_at_the_quantiles():
  targets = np.float32(RNG.exponential(size=2001))
  levels = np.float32([0.1, 0.5, 0.9])
  loss = lambda f: losses.pinball(jnp.broadcast_to(f, (2001, 3)), targets, levels=levels).mean()
  best = np.quantile(targets, levels, method="inverted_cdf").astype(np.float32)
  for level in range(3):
    for step in (-0.02, 0.02):
      assert loss(best) < loss(best + step * np.eye(3, dtype=np.float32)[level])


def test_the_median_is_of_half_the_absolute_error():
  got = losses.pinball(OUTPUTS[:, None], TARGETS, levels=np.float32([0.5]))
  np.testing.assert_allclose(got, np.abs(OUTPUTS - TARGETS) / 2, rtol=1e-6)


@pytest.mark.parametrize(
  ("call", "message"),
  [
    (lambda: losses.gaussian_nll(OUTPUTS, LOG_VARS, TARGETS, beta=2.0), r"beta must lie in \[0, 1\]"),
    (lambda: losses.student_t_nll(OUTPUTS, LOG_VARS, TARGETS, df=0.0), r"df must lie in \(0, inf"),
    (lambda: losses.pinball(OUTPUTS[:, None], TARGETS, levels=np.float32([1.5])), "levels must lie in"),
    (lambda: losses.pinball(OUTPUTS[0], TARGETS[0], levels=np.float32([0.5])), "outputs must be"),
  ],
)
def test_the_argument_is_named(call, message):
  with pytest.raises(ValueError, match=message):
    call()

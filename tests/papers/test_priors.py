"""Priors over the weights, against SciPy's densities."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from papers.regularization import gaussian_prior, laplace_prior


def prior_params():
  rng = np.random.default_rng(4)
  return {
    "a": {"kernel": jnp.asarray(rng.normal(size=(3, 4)))},
    "b": {"embedding": jnp.asarray(rng.normal(size=5))},
  }


def flat(params):
  return np.concatenate([np.ravel(x) for x in jax.tree.leaves(params)])


@pytest.mark.thorough
@pytest.mark.claim("regularization", "L1 regularization", "L2 is the MAP estimate under a normal prior")
def test_gaussian_prior_is_the_log_density(x64):
  params = prior_params()
  want = -scipy.stats.norm(scale=3.0**-0.5).logpdf(flat(params)).sum()
  np.testing.assert_allclose(gaussian_prior(params, precision=3.0), want, rtol=1e-13)
  gradient = jax.grad(lambda params: gaussian_prior(params, precision=3.0))(params)
  np.testing.assert_allclose(flat(gradient), 3 * flat(params), rtol=1e-13)


@pytest.mark.claim(
  "regularization",
  "L1 regularization",
  "the log of a Laplace prior is -alpha L1 + log alpha - log 2; the constants come n times",
  status="erratum",
)
def test_laplace_prior_is_the_log_density(x64):
  params, rate = prior_params(), 3.0
  w = flat(params)
  want = -scipy.stats.laplace(scale=1 / rate).logpdf(w).sum()
  got = laplace_prior(params, rate=rate)
  np.testing.assert_allclose(got, want, rtol=1e-13)
  printed = rate * np.abs(w).sum() - (np.log(rate) - np.log(2))
  np.testing.assert_allclose(printed - got, (w.size - 1) * (np.log(rate) - np.log(2)), rtol=1e-12)


@pytest.mark.parametrize(
  ("prior", "match"),
  [
    (lambda params: gaussian_prior(params, precision=0.0), "precision must lie in"),
    (lambda params: laplace_prior(params, rate=-1.0), "rate must lie in"),
  ],
)
def test_scales_must_be_positive(prior, match):
  with pytest.raises(ValueError, match=match):
    prior(prior_params())

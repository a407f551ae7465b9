"""DropMax with q = p: its equilibrium, and that it is DropMax with the prior as posterior."""

import jax
import numpy as np
import oracles
import pytest

from jaxreg.losses import dropmax_qp_terms

GENERATOR = np.random.default_rng(0)
LOGITS = GENERATOR.normal(size=(12, 5)).astype(np.float32) * 2
PRIOR = GENERATOR.normal(size=(12, 5)).astype(np.float32) * 2
LABELS = GENERATOR.integers(0, 5, 12)


@pytest.mark.thorough
@pytest.mark.parametrize(("gamma", "expected"), [(1.0, 0.782188), (0.1, 0.99995)])
@pytest.mark.claim(
  "dropmax",
  "table 1",
  "DropMax (q = p): the target settles at 0.78 for an entropy weight of 1, at 1 for 0.1",
  size="toy",
)
def test_without_a_likelihood_the_target_settles_at_the_equilibrium(gamma, expected):
  """a = 1 / (gamma sigmoid(a)); the others, which nothing but the entropy moves, at one half."""
  with jax.enable_x64(True):
    zeros, label = np.zeros((1, 3)), np.zeros(1, int)

    def objective(prior):
      terms = dropmax_qp_terms(jax.random.key(0), zeros, prior, label, entropy_weight=gamma)
      return (terms["kl"] + terms["neg_entropy"]).sum()

    # Newton's method on each logit, kept from overshooting.
    gradient = jax.jit(jax.grad(objective))
    prior = np.array([[1.0 / gamma, 0.5, -0.5]])
    curvature = jax.jit(jax.hessian(lambda prior: objective(prior[None])))
    for _ in range(100):
      step = np.linalg.solve(np.asarray(curvature(prior[0])), np.asarray(gradient(prior))[0])
      prior = prior - np.clip(step, -0.3, 0.3)
    assert np.abs(gradient(prior)).max() < 1e-9
    keep = oracles.sigmoid(prior[0])
  assert keep[0] == pytest.approx(expected, abs=5e-6)
  assert prior[0, 0] == pytest.approx(1 / (gamma * keep[0]), rel=1e-6)
  np.testing.assert_allclose(keep[1:], 0.5, atol=1e-9)


@pytest.mark.thorough
@pytest.mark.claim("dropmax", "table 1", "baseline DropMax (q = p): the prior as posterior")
def test_the_likelihood_trains_the_prior_of_the_others_only():
  nll = lambda prior: dropmax_qp_terms(jax.random.key(4), LOGITS, prior, LABELS)["nll"].sum()
  gradient = jax.jit(jax.grad(nll))(PRIOR)
  target = oracles.one_hot(LABELS, 5) > 0
  assert (np.asarray(gradient)[target] == 0).all()
  # To keep a wrong class never makes the target likelier.
  assert (np.asarray(gradient)[~target] >= 0).all()
  assert (np.asarray(gradient)[~target] > 1e-6).any()

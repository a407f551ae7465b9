"""Where KL and entropy leave the retain probabilities: against root finding in probability form."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
import scipy.optimize
import scipy.special
from contract import jit
from scipy.special import logit

from jaxreg import losses
from papers import dropmax

A = 1 + scipy.special.lambertw(1 / math.e).real
equilibrium = jit(dropmax.dropmax_equilibrium)


def objective(rho, g, weight=1.0):
  """KL(Ber(g) || Ber(rho)) - weight * entropy of rho, less the part without rho."""
  log_on, log_off = np.log(rho), np.log1p(-rho)
  return -g * log_on - (1 - g) * log_off + weight * (rho * log_on + (1 - rho) * log_off)


@pytest.mark.usefixtures("x64")
@pytest.mark.claim("dropmax", "poster", "the equilibria 0.782188 and 0.217812")
def test_section_1_7_limits():
  a = equilibrium(np.array([np.inf, -np.inf, 800.0, -1e300]))
  np.testing.assert_allclose(a, [A, -A, A, -A], rtol=1e-12)
  np.testing.assert_allclose(A, 1.2784645, atol=5e-8)
  np.testing.assert_allclose(oracles.sigmoid(a[:2]), [0.782188, 0.217812], atol=5e-7)


@pytest.mark.usefixtures("x64")
@pytest.mark.claim("dropmax", "poster", "rho(g): the prior settles between its two limits, by the posterior")
def test_section_1_7_table():
  g = np.array([0.05, 0.10, 0.25, 0.5, 0.75, 0.9])
  table = [0.2541, 0.2865, 0.3722, 0.5, 0.6278, 0.7135]
  np.testing.assert_allclose(oracles.sigmoid(equilibrium(logit(g))), table, atol=5.1e-5)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("weight", [0.02, 0.3, 1.0, 4.0, 50.0])
def test_equilibrium_is_the_one_minimum(weight):
  g = np.r_[1e-6, 1e-3, np.linspace(0.01, 0.99, 25), 1 - 1e-3]
  rho = oracles.sigmoid(equilibrium(logit(g), entropy_weight=weight))
  grid = np.linspace(1e-3, 1 - 1e-3, 999)
  for mine, want in zip(rho, g):
    assert objective(mine, want, weight) <= objective(grid, want, weight).min() + 1e-12
    slope = lambda r, want=want: r - want + weight * r * (1 - r) * (math.log(r) - math.log1p(-r))
    root = scipy.optimize.brentq(slope, 1e-9, 1 - 1e-9, xtol=1e-15, rtol=1e-14)
    np.testing.assert_allclose(mine, root, rtol=1e-9)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("weight", [0.01, 0.1, 1.0, 3.0])
def test_equilibrium_of_the_target_is_lamberts(weight):
  """Section 3.1: a = 1 / (weight * rho)."""
  a = float(equilibrium(np.inf, entropy_weight=weight))
  np.testing.assert_allclose(
    a, 1 / weight + scipy.special.lambertw(math.exp(-1 / weight) / weight).real, rtol=1e-12
  )
  np.testing.assert_allclose(a, 1 / (weight * oracles.sigmoid(a)), rtol=1e-12)
  if weight == 0.1:
    np.testing.assert_allclose(oracles.sigmoid(a), 0.99995, atol=1e-5)


@pytest.mark.usefixtures("x64")
def test_labels_name_the_class_whose_posterior_is_1():
  q, y = np.random.default_rng(0).normal(size=(3, 4)), np.array([0, 3, 1])
  target = oracles.one_hot(y, 4) > 0
  a = np.asarray(equilibrium(q, y))
  np.testing.assert_allclose(a[target], A, rtol=1e-12)
  np.testing.assert_allclose(a[~target], np.asarray(equilibrium(q))[~target], rtol=1e-14)


@pytest.mark.usefixtures("x64")
def test_the_loss_stands_still_there():
  """The gradient of KL + neg_entropy in the retain logits vanishes at the equilibrium of its posterior."""
  q, y = np.random.default_rng(1).normal(size=(3, 4)) * 3, np.array([0, 3, 1])

  def regularisation(ph):
    terms = losses.dropmax_terms(jax.random.key(0), q, ph, q, y, posterior_logits=q)
    return (terms["kl"] + terms["neg_entropy"]).sum()

  slope = jit(jax.grad(regularisation))
  np.testing.assert_allclose(slope(equilibrium(q, y)), 0, atol=1e-12)
  assert np.abs(slope(jnp.asarray(q))).max() > 0.1


@pytest.mark.usefixtures("x64")
def test_equilibrium_is_odd_increasing_and_between():
  q = np.linspace(-60, 60, 241)
  a = np.asarray(equilibrium(q))
  np.testing.assert_allclose(a, -a[::-1], rtol=1e-12, atol=1e-14)
  assert (np.diff(a) >= 0).all()
  assert (np.diff(a[np.abs(q) < 20][::4]) > 0).all()
  assert (np.abs(a) <= np.minimum(np.abs(q), A * (1 + 1e-12))).all()


@pytest.mark.thorough
@pytest.mark.usefixtures("x64")
def test_derivative_of_the_root():
  q = np.r_[np.linspace(-8, 8, 9), 1e4, np.inf]  # with 0, where the mirroring meets
  slope = jit(jax.vmap(jax.grad(dropmax.dropmax_equilibrium)))(q)
  step = 1e-5
  numeric = (np.asarray(equilibrium(q[:9] + step)) - np.asarray(equilibrium(q[:9] - step))) / (2 * step)
  np.testing.assert_allclose(slope[:9], numeric, rtol=1e-6)
  np.testing.assert_allclose(slope[4], 0.5, rtol=1e-12)
  np.testing.assert_array_equal(slope[9:], 0)
  in_weight = jit(jax.grad(lambda w: dropmax.dropmax_equilibrium(2.0, entropy_weight=w)))(0.7)
  at = lambda w: float(equilibrium(2.0, entropy_weight=w))
  np.testing.assert_allclose(in_weight, (at(0.7 + step) - at(0.7 - step)) / (2 * step), rtol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("weight", [1e-3, 1.0, 1e3])
def test_float32_is_finite_and_accurate(weight):
  q = np.array([-np.inf, -1e4, -90, -17, -1, 0, 1e-6, 3, 40, 500, 1e3, 1e4, np.inf], np.float32)
  got = np.asarray(equilibrium(q, entropy_weight=weight))
  assert got.dtype == np.float32
  with jax.enable_x64(True):
    want = np.asarray(equilibrium(q.astype(np.float64), entropy_weight=weight))
  np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-7)
  assert dropmax.dropmax_equilibrium(jnp.zeros(2, jnp.bfloat16)).dtype == jnp.float32


@pytest.mark.parametrize("weight", [0.0, -1.0, math.nan])
def test_weights_out_of_range_are_refused(weight):
  with pytest.raises(ValueError, match="entropy_weight"):
    dropmax.dropmax_equilibrium(jnp.zeros(2), entropy_weight=weight)


def test_misfits_are_refused():
  with pytest.raises(TypeError, match="posterior_logits"):
    dropmax.dropmax_equilibrium(jnp.zeros(2, int))
  with pytest.raises(ValueError, match="labels"):
    dropmax.dropmax_equilibrium(jnp.zeros((2, 3)), jnp.zeros(3, int))

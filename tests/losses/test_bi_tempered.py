"""Bi-tempered loss: temperatures of 1, the normaliser against bisection, and the bound."""

import cases_losses
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from contract import jit

from jaxreg import losses

LOGITS = np.array([[3.0, -1.0, 0.5], [0.0, 0.0, 0.0], [-20.0, 4.0, 4.0]])
LABELS = np.array([2, 0, 1])


def test_temperatures_of_one_are_the_cross_entropy():
  with jax.enable_x64(True):
    run = lambda o: [
      losses.bi_tempered(o, LABELS, t1=t1, t2=t2) for t1, t2 in ((1, 1), (1, 1 + 1e-9), (1 - 1e-9, 1))
    ]
    for got in jit(run)(LOGITS):
      np.testing.assert_allclose(got, oracles.cross_entropy(LOGITS, LABELS), rtol=1e-6)


@pytest.mark.parametrize(("t1", "t2"), [(0.2, 4.0), (1.0, 1.3), (0.0, 1.0)])
def test_other_temperatures_against_bisection(t1, t2):
  with jax.enable_x64(True):
    got = jit(lambda o: losses.bi_tempered(o, LABELS, t1=t1, t2=t2))(LOGITS)
  np.testing.assert_allclose(got, cases_losses.bi_tempered(LOGITS, LABELS, t1, t2), rtol=1e-9, atol=1e-12)


@pytest.mark.thorough
def test_the_loss_is_bounded_and_its_slope_vanishes_far_out():
  function = lambda o: losses.bi_tempered(o, jnp.array([0, 0]), t1=0.5, t2=1.5)
  o = jnp.array([[-1e4, 0.0], [-10.0, 0.0]])
  loss, slope = jit(lambda o: (function(o), jax.grad(lambda o: function(o).sum())(o)))(o)
  assert (loss < 2).all()
  assert (loss > 1).all()
  assert -1e-4 < slope[0, 0] < 0
  assert slope[1, 0] < 10 * slope[0, 0]


@pytest.mark.parametrize("label", [-1, 3, 99])
def test_an_unknown_label_is_nan(label):
  for classes, labels in ((3, jnp.array([label])), (128, jnp.array([min(label, -1)], jnp.int8))):
    run = jax.jit(lambda logits, labels: losses.bi_tempered(logits, labels, t1=0.5, t2=1.0))
    assert np.isnan(run(jnp.zeros((1, classes)), labels)[0])


def test_refusals():
  for options, name in (({"t1": 1.5}, "t1"), ({"t2": 0.5}, "t2")):
    with pytest.raises(ValueError, match=f"{name} must lie in"):
      losses.bi_tempered(jnp.zeros((1, 2)), jnp.array([0]), **options)


@pytest.mark.parametrize("size", [1.0, 1e4, 1e6, 1e8])
def test_gradients_far_from_the_boundary_are_those_of_float64(size):
  """By the rule of implicit differentiation, written out: `p` has no digits near 1 but `1 - p` has."""
  t1, t2 = 0.8, 1.3
  logits = np.float64(np.float32([1.0, 0.0, -0.5])) * size
  low, high = logits.max(), logits.max() + 10.0
  root = lambda x: np.float64(1 + (t2 - 1) * (x - logits)) ** (-1 / (t2 - 1))
  for _ in range(200):
    middle = (low + high) / 2
    low, high = (middle, high) if root(middle).sum() > 1 else (low, middle)
  p = root(high)
  weights = p**t2 / (p**t2).sum()
  # Of the loss in each logit less the normaliser.
  slope = (p ** (2 - t1) - np.array([0, 1, 0]) * p ** (1 - t1)) * p ** (t2 - 1)
  others = (slope - weights * slope.sum())[1:]
  want = np.array([-others.sum(), *others])  # a shift of all logits changes nothing
  got = jit(jax.grad(lambda o: losses.bi_tempered(o, jnp.array(1))))(jnp.float32(logits))
  np.testing.assert_allclose(got, want, rtol=1e-4)


@pytest.mark.parametrize("t2", [1.3, 10.0, 100.0])
def test_equal_logits_of_many_classes_have_equal_probabilities(t2):
  """The normaliser itself is beyond float32 for the larger two."""
  logits = jnp.zeros((1, 50_000))
  np.testing.assert_allclose(losses.bi_tempered_log_probs(logits, t2=t2), -np.log(50_000), rtol=1e-5)
  value, slope = jax.value_and_grad(lambda o: losses.bi_tempered(o, jnp.array([0]), t2=t2)[0])(logits)
  p, t1 = 1 / 50_000, 0.8
  want = (1 - p ** (1 - t1)) / (1 - t1) - (1 - 50_000 * p ** (2 - t1)) / (2 - t1)
  np.testing.assert_allclose(value, want, rtol=1e-5)
  assert np.isfinite(slope).all()

"""Neighbourhoods that scale with the weights, and the gap between a loss and the loss uphill."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxreg import optim

SIZES = np.array([0.5, 4.0, 0.1])


@pytest.fixture
def x64():
  with jax.enable_x64(True):
    yield


def top(tx, gradient, params):
  """The point at which the second gradient is taken."""
  seen = []
  tx.update(gradient, tx.init(params), params, grad_fn=lambda w: seen.append(w) or w)
  return seen[0]


def test_rescaled_weights_have_the_rescaled_neighbourhood(x64):
  """A loss of w is the same loss of v = s w, with the gradient g / s; of `sam` the points differ."""
  rng = np.random.default_rng(0)
  w, g = rng.normal(size=3), rng.normal(size=3)
  at = lambda tx, scale: top(tx, {"kernel": g / scale}, {"kernel": w * scale})["kernel"] / scale
  asam, sam = optim.asam(optax.sgd(0.1), rho=0.3, eps=0.0), optim.sam(optax.sgd(0.1), rho=0.3)
  np.testing.assert_allclose(at(asam, SIZES), at(asam, 1), rtol=1e-12)
  assert np.abs(at(sam, SIZES) - at(sam, 1)).max() > 0.1


@pytest.mark.thorough
def test_biases_move_as_in_sam(x64):
  """Beside a kernel of ones, whose `T` is 1 too."""
  params = {"kernel": np.ones((2, 2)), "bias": np.array([3.0, -5.0])}
  gradient = {"kernel": np.eye(2), "bias": np.array([2.0, -1.0])}
  got, want = (top(t(optax.sgd(0.1), rho=0.3), gradient, params) for t in (_plain_asam, optim.sam))
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), got, want)


def _plain_asam(inner, rho):
  return optim.asam(inner, rho=rho, eps=0.0)


def test_a_step_along_the_correction_closes_the_gap(x64):
  """On a quadratic, whose loss uphill is known: it stays to first order, and the loss at `w` rises."""
  curvature, w = np.array([1.0, 9.0]), np.array([1.0, 0.4])
  loss = lambda w: 0.5 * (curvature * w**2).sum()
  gradient = lambda w: curvature * w
  uphill = lambda w: w + 0.2 * gradient(w) / np.linalg.norm(gradient(w))
  moves = []
  for alpha in (0.0, 1.0):
    tx = optim.gsam(optax.sgd(1e-4), rho=0.2, weight=alpha)
    update, _ = tx.update(gradient(w), tx.init(w), w, grad_fn=lambda w: jnp.asarray(gradient(w)))
    moves.append(np.asarray(update))
  np.testing.assert_allclose(moves[0], -1e-4 * gradient(uphill(w)), rtol=1e-10)
  correction = moves[1] - moves[0]
  assert abs(correction @ gradient(uphill(w))) < 1e-12 * np.linalg.norm(gradient(w))
  assert loss(w + correction) > loss(w)


@pytest.mark.parametrize("make", [optim.asam, optim.gsam])
def test_refusals(make):
  with pytest.raises(TypeError, match="inner must be an Optax transform"):
    make(0.1)
  with pytest.raises(ValueError, match="rho must lie in"):
    make(optax.sgd(0.1), rho=-1.0)
  tx, params = make(optax.sgd(0.1)), {"kernel": jnp.ones(2)}
  with pytest.raises(ValueError, match="grad_fn must be given"):
    tx.update(params, tx.init(params), params)
  if make is optim.asam:
    with pytest.raises(ValueError, match="mask selects no parameter"):
      tx.update(jnp.ones(2), tx.init(jnp.ones(2)), jnp.ones(2), grad_fn=lambda w: w)

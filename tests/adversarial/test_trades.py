"""TRADES on logistic regression, where the worst inputs and the gradient are known."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from contract import jit

from jaxreg import adversarial

rng = np.random.default_rng(0)
X, W, EPS = rng.normal(size=(16, 3)), np.array([1.0, -2.0, 0.5]), 0.2


def log_probs(w, x):
  return jax.nn.log_sigmoid(jnp.stack([x @ w, -(x @ w)], axis=-1))


def loss(w, x, key, **options):
  options = {"eps": EPS, "step_size": EPS, "num_steps": 4, **options}
  return adversarial.trades_loss(key, functools.partial(log_probs, w), x, **options)


def kl(d, other):
  p, q = oracles.sigmoid(d), oracles.sigmoid(other)
  return p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))


@pytest.mark.thorough
def test_the_inputs_end_in_a_corner_of_the_box_and_both_predictions_learn():
  """The divergence is convex along `w`: the attack ends at one of two corners, by its random start."""
  w, x, key = jnp.float32(W), jnp.float32(X), jax.random.key(1)
  got = np.asarray(jit(loss)(w, x, key))
  d, corners = X @ W, np.stack([X + sign * EPS * np.sign(W) for sign in (1, -1)])
  values = np.stack([kl(d, corner @ W) for corner in corners])
  chosen = np.abs(values - got).argmin(0)
  np.testing.assert_allclose(got, np.take_along_axis(values, chosen[None], 0)[0], rtol=1e-4)
  assert set(chosen) == {0, 1}
  moved = corners[chosen, np.arange(16)]
  p, q = oracles.sigmoid(d), oracles.sigmoid(moved @ W)
  clean = (p * (1 - p) * (d - moved @ W))[:, None] * X
  gradient = jit(jax.grad(lambda w: loss(w, x, jax.random.clone(key)).sum()))(w)
  np.testing.assert_allclose(gradient, (clean + (q - p)[:, None] * moved).sum(0), rtol=1e-4, atol=1e-5)


@pytest.mark.thorough
def test_bounds_and_refusals():
  w, x = jnp.float32(W), jnp.float32(X)
  assert (jit(functools.partial(loss, eps=0.0))(w, x, jax.random.key(1)) == 0).all()
  with pytest.raises(TypeError, match="key must be a typed key"):
    loss(w, x, 0)
  with pytest.raises(ValueError, match="norm must be"):
    loss(w, x, jax.random.key(1), norm="l3")
  with pytest.raises(ValueError, match="log_probs_fn must give"):
    adversarial.trades_loss(jax.random.key(1), lambda x: x[0, 0], x, eps=0.1, step_size=0.1)

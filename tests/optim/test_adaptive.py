"""Adagrad, RMSProp and Adam: against float64 loops and Optax, at zero gradients, and convergence."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from contract import jit

from jaxreg import optim

RATE = 0.1


def run(tx, grads, params=None):
  """The updates of each step."""

  def step(state, g):
    updates, state = tx.update(g, state, g if params is None else params)
    return state, updates

  start = jax.tree.map(lambda g: jnp.zeros_like(g[0]), grads)
  return jit(lambda grads: jax.lax.scan(step, tx.init(start), grads)[1])(grads)


def random_gradients(seed=0, steps=50, size=4):
  return np.random.default_rng(seed).normal(size=(steps, size)) * np.array([1.0, 1e-3, 20.0, 0.3])[:size]


@pytest.mark.claim("adaptive_sgd", "Adagrad", "the mean over 1/sqrt(t) is the root of the sum of squares")
def test_adagrad_is_the_sum_of_squares(x64):
  g = random_gradients()
  got = run(optim.exact_adagrad(RATE), g)
  np.testing.assert_allclose(got, -RATE * g / np.sqrt(np.cumsum(g**2, 0)), rtol=1e-12)
  np.testing.assert_allclose(got, run(optax.adagrad(RATE, 0.0, 0.0), g), rtol=0, atol=1e-15)
  flat = run(optim.exact_adagrad(RATE, anneal=False), g)
  mean = np.cumsum(g**2, 0) / np.arange(1, 51)[:, None]
  np.testing.assert_allclose(flat, -RATE * g / np.sqrt(mean), rtol=1e-12)
  # Optax's default begins with 0.1 in the accumulator: off by half the learning rate.
  assert np.abs(run(optax.adagrad(RATE), g) - got).max() > 0.4 * RATE


@pytest.mark.thorough
@pytest.mark.claim(
  "adaptive_sgd",
  "RMSProp",
  "EWA is an average: weights that sum to 1. The recursion alone makes a first step of eps / sqrt(1 - beta)",
)
@pytest.mark.claim("adaptive_sgd", "Adam", "a running mean of gradients over the root of one of squares")
@pytest.mark.parametrize("debias", [True, False])
def test_rmsprop_and_adam(debias, x64):
  """Against Optax and at the first step; `cases_optim` has all steps by the weights of the averages."""
  g = random_gradients(1)
  got = run(optim.adaptive(RATE, b2=0.9, debias=debias), g)
  theirs = run(optax.rmsprop(RATE, decay=0.9, eps=0.0, bias_correction=debias), g)
  np.testing.assert_allclose(got, theirs, rtol=0, atol=1e-14)
  first = RATE * (1 if debias else 1 / np.sqrt(0.1))
  np.testing.assert_allclose(got[0], -first * np.sign(g[0]), rtol=1e-12)
  got, theirs = run(optim.exact_adam(RATE, debias=debias), g), run(optax.adam(RATE, eps=0.0), g)
  first = RATE * (1 if debias else 0.1 / np.sqrt(0.001))
  np.testing.assert_allclose(got[0], -first * np.sign(g[0]), rtol=1e-10)
  assert (np.abs(got - theirs).max() < 1e-14) == debias
  # With Optax's own epsilon they differ where gradients are small.
  assert np.abs(run(optax.adam(RATE), g) - got).max() > 1e-9


@pytest.mark.claim(
  "adaptive_sgd",
  "Adagrad, RMSProp, Adam",
  "there is no epsilon in the denominators, and none for a gradient of 0: 0/0 must be 0, where Optax has NaN",
  status="erratum",
)
def test_zero_gradients_do_not_move():
  g = np.zeros((3, 2), np.float32)
  g[2, 0] = -1e-30  # a square would vanish
  for tx in (
    optim.exact_adagrad(RATE),
    optim.adaptive(RATE, b2=0.9),
    optim.exact_adam(RATE),
    optim.exact_adam(RATE, debias=False),
  ):
    got = np.asarray(run(tx, g))
    assert np.isfinite(got).all()
    np.testing.assert_array_equal(got[:2], 0)
    np.testing.assert_array_equal(got[:, 1], 0)
    assert got[2, 0] > 0.01 * RATE
  assert np.isnan(run(optax.adam(RATE, eps=0.0), g)).any()
  assert np.isnan(run(optax.rmsprop(RATE, eps=0.0), g)).any()


@pytest.mark.thorough
@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_steps_do_not_depend_on_the_size_of_the_gradients(size):
  g = random_gradients(3).astype(np.float32)
  for tx in (optim.exact_adagrad(RATE), optim.exact_adam(RATE)):
    np.testing.assert_allclose(run(tx, g * np.float32(size)), run(tx, g), rtol=1e-4, atol=1e-6)


@pytest.mark.claim(
  "adaptive_sgd",
  "practical solution",
  "the norm of the mean is at most the root of the mean of squares: with equal decays steps are at most eps",
)
def test_the_mean_is_at_most_the_root_of_the_mean_of_squares(x64):
  g = np.concatenate([random_gradients(4), np.full((60, 4), 20.0)])
  for debias in (True, False):
    got = np.abs(run(optim.adaptive(1.0, b1=0.9, b2=0.9, debias=debias), g))
    # The recursion's weights sum to 1 - 0.9^t, and the mean is at most the root of that times the other.
    limit = 1 if debias else np.sqrt(1 - 0.9 ** np.arange(1, len(g) + 1))[:, None]
    assert (got <= limit * (1 + 1e-12)).all()
    np.testing.assert_allclose(got[0], np.ravel(limit)[0], rtol=1e-12)
  assert np.abs(run(optim.adaptive(1.0, b1=0.9, b2=0.9), g))[-1].min() > 0.9


def test_unequal_decays_leave_the_trust_region(x64):
  """After a spike Adam's step is up to (1 - b1) / sqrt(1 - b2) = 3.16 times the learning rate."""
  g = np.full((4000, 1), 1e-6)
  g[-1] = 1.0
  last = abs(float(run(optim.exact_adam(1.0), g)[-1, 0]))
  assert 3.0 < last <= 0.1 / np.sqrt(0.001)


@pytest.mark.claim(
  "adaptive_sgd", "Adagrad", "1/sqrt(t) guarantees convergence; a constant rate needs it too", size="toy"
)
def test_the_root_of_t_converges(x64):
  """On E|w - xi| / 2-like noise: gradients sign(w) + noise, the minimum at 0, from 3, 400 runs at once."""
  rng = np.random.default_rng(5)
  noise = jnp.asarray(rng.normal(size=(4000, 400)))

  def errors(tx):
    def step(carry, xi):
      w, state = carry
      updates, state = tx.update(jnp.tanh(w) + xi, state, w)
      return (w + updates, state), jnp.mean(w**2)

    start = jnp.full(400, 3.0)
    return np.asarray(jit(lambda noise: jax.lax.scan(step, (start, tx.init(start)), noise)[1])(noise))

  annealed, constant = errors(optim.exact_adagrad(1.0)), errors(optim.adaptive(0.1, b2=0.99))
  # The squared distance falls as the rate does: 1/sqrt(t), a factor of 4 in 16 times the steps.
  ratio = annealed[200:250].mean() / annealed[-800:].mean()
  assert 3 < ratio < 6
  # A constant rate stays where its noise balances the pull.
  assert 0.7 < constant[1000:2000].mean() / constant[-1000:].mean() < 1.4
  assert annealed[-800:].mean() < 0.7 * constant[-1000:].mean()


def test_refusals():
  with pytest.raises(ValueError, match="b2 must lie in"):
    optim.adaptive(0.1, b2=1.5)
  with pytest.raises(ValueError, match="without debias must lie in"):
    optim.adaptive(0.1, b2=1.0, debias=False)

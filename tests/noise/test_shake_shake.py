"""Shake-shake and ShakeDrop: what goes forward, what goes backward, and that they are two things."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxreg import noise


def coefficients(function, *xs, seed=0):
  """Of the branches forward (by a value of 1 in one of them), and backward."""
  key = lambda: jax.random.key(seed)
  ones, zeros = jnp.ones_like(xs[0]), jnp.zeros_like(xs[0])
  forward = [function(key(), *(ones if i == j else zeros for j in range(len(xs)))) for i in range(len(xs))]
  backward = jax.grad(lambda *xs: function(key(), *xs).sum(), tuple(range(len(xs))))(*xs)
  return np.asarray(forward, np.float64)[..., 0], np.asarray(backward, np.float64)[..., 0]


X = jnp.ones((2000, 1))


@pytest.mark.thorough
def test_forward_and_backward_coefficients_are_two_draws():
  (alpha, alpha2), (beta, beta2) = coefficients(noise.shake_shake, X, X)
  np.testing.assert_allclose(alpha + alpha2, 1, rtol=1e-6)
  np.testing.assert_allclose(beta + beta2, 1, rtol=1e-6)
  for draw in (alpha, beta):
    assert 0 <= draw.min() < 0.01
    assert 0.99 < draw.max() <= 1
    assert abs(draw.mean() - 0.5) < 4 * math.sqrt(1 / 12 / 2000)
  assert abs(np.corrcoef(alpha, beta)[0, 1]) < 4 / math.sqrt(2000)


@pytest.mark.parametrize("forward", ["shake", "even"])
@pytest.mark.parametrize("backward", ["shake", "even", "keep"])
def test_options(forward, backward):
  mix = lambda key, *xs: noise.shake_shake(key, *xs, forward=forward, backward=backward)
  (alpha, _), (beta, _) = coefficients(mix, X[:50], X[:50])
  assert (np.ptp(alpha) > 0) == (forward == "shake")
  assert (np.ptp(beta) > 0) == (backward == "shake" or (backward == "keep" and forward == "shake"))
  if forward == "even":
    np.testing.assert_array_equal(alpha, 0.5)
  if backward == "even":
    np.testing.assert_array_equal(beta, 0.5)
  if backward == "keep":
    np.testing.assert_array_equal(beta, alpha)


@pytest.mark.thorough
def test_a_batch_has_one_mixture_if_asked():
  (alpha, _), (beta, _) = coefficients(
    lambda k, *xs: noise.shake_shake(k, *xs, per_example=False), X[:9], X[:9]
  )
  assert np.ptp(alpha) == np.ptp(beta) == 0
  assert alpha[0] != beta[0]
  (factor,), (back,) = coefficients(lambda k, x: noise.shake_drop(k, x, rate=1.0, per_example=False), X[:9])
  assert np.ptp(factor) == np.ptp(back) == 0


@pytest.mark.thorough
def test_forward_mode_has_the_backward_coefficients_too():
  x = jax.random.normal(jax.random.key(1), (5, 3))
  for function in (
    lambda x: noise.shake_shake(jax.random.key(0), x, 2 * x),
    lambda x: noise.shake_drop(jax.random.key(0), x, rate=0.5),
  ):
    tangent = jax.random.normal(jax.random.key(2), x.shape)
    _, pushed = jax.jvp(function, (x,), (tangent,))
    cotangent = jax.random.normal(jax.random.key(3), x.shape)
    (pulled,) = jax.vjp(function, x)[1](cotangent)
    np.testing.assert_allclose((pushed * cotangent).sum(), (tangent * pulled).sum(), rtol=1e-4)


@pytest.mark.parametrize("rate", [0.0, 0.4, 1.0])
def test_shake_drop_disturbs_at_its_rate(rate):
  (forward,), (backward,) = coefficients(lambda k, x: noise.shake_drop(k, x, rate=rate), X)
  whole = forward == 1
  assert abs(whole.mean() - (1 - rate)) <= 4 * math.sqrt(rate * (1 - rate) / 2000) + 1e-3
  # The derivative is whole where the value is.
  np.testing.assert_array_equal(backward[whole], 1)
  if rate:
    assert -1 <= forward.min() < -0.98
    assert 0 <= backward.min() < 0.02
    assert abs(forward.mean() - (1 - rate)) < 4 * math.sqrt((1 - rate) * rate + rate / 3) / math.sqrt(2000)
    assert abs(backward.mean() - (1 - rate / 2)) < 4 / math.sqrt(2000)
    assert abs(np.corrcoef(forward[~whole], backward[~whole])[0, 1]) < 4 / math.sqrt((~whole).sum())


def test_shake_drop_at_ranges_of_a_point_is_stochastic_depth():
  draw = lambda key, x: noise.shake_drop(key, x, rate=0.5, forward=(0.0, 0.0), backward=(0.0, 0.0))
  (forward,), (backward,) = coefficients(draw, X)
  assert set(np.unique(forward)) == {0.0, 1.0}
  np.testing.assert_array_equal(forward, backward)


def test_a_traced_rate():
  loss = lambda x, rate: noise.shake_drop(jax.random.key(0), x, rate=rate).sum()
  for rate in (0.0, 1.0):
    assert all(np.isfinite(g).all() for g in jax.jit(jax.grad(loss, (0, 1)))(X[:5], rate))


def test_what_does_not_fit_is_refused():
  key, x = jax.random.key(0), jnp.ones((2, 3))
  with pytest.raises(TypeError, match="x2 must have the dtype of x1"):
    noise.shake_shake(key, x, x.astype(jnp.bfloat16))
  for name, value in (("forward", "keep"), ("backward", "no")):
    with pytest.raises(ValueError, match=f"{name} must be"):
      noise.shake_shake(key, x, x, **{name: value})
  with pytest.raises(ValueError, match="rate"):
    noise.shake_drop(key, x, rate=2.0)

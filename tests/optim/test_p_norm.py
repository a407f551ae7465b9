"""p-norm descent: against a search of the printed proximal problem, and at its ends."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from contract import jit

from jaxreg.optim import p_norm_sgd

WHERE = "Proximal Problem"


def step(tx, g):
  return np.asarray(jit(lambda g: tx.update(g, tx.init(g))[0])(g))


def argmin(g, p, alpha):
  """Of g d + |d|^p / (p alpha), by a grid that is refined."""
  low, high = -60.0, 60.0
  for _ in range(12):
    grid = np.linspace(low, high, 2001)
    at = grid[np.argmin(g * grid + np.abs(grid) ** p / (p * alpha))]
    low, high = at - (high - low) / 500, at + (high - low) / 500
  return at


@pytest.mark.claim(
  "adaptive_sgd",
  WHERE,
  "printed is -alpha sign(J) abs(J)^{1/(p-1)}; in the minimiser the power is of alpha too: the same for p=2",
  status="erratum",
)
@pytest.mark.parametrize("p", [1.5, 2.0, 3.0, 4.0])
def test_is_the_minimiser_of_the_printed_problem(p, x64):
  g, alpha = np.array([-2.0, -0.3, 0.7, 1.9]), 0.4
  want = np.array([argmin(x, p, alpha) for x in g])
  got = step(p_norm_sgd(weight=alpha, p=p), g)
  np.testing.assert_allclose(got, want, atol=1e-6)
  printed = -alpha * np.sign(g) * np.abs(g) ** (1 / (p - 1))
  if p == 2:
    np.testing.assert_allclose(printed, got, rtol=1e-12)
  else:
    assert np.abs(printed - want).max() > 0.1
  np.testing.assert_allclose(step(p_norm_sgd(weight=1.0, p=p), g), printed / alpha, rtol=1e-12)


@pytest.mark.claim(
  "adaptive_sgd", WHERE, "the printed step with rate eps solves the problem with alpha = eps^{p-1}"
)
def test_the_rate_and_the_weight(x64):
  g = np.array([-2.0, 0.0, 0.7])
  for p, eps in ((1.5, 0.3), (3.0, 0.2)):
    np.testing.assert_allclose(
      step(p_norm_sgd(eps, p=p), g), step(p_norm_sgd(weight=eps ** (p - 1), p=p), g), rtol=1e-12
    )


@pytest.mark.claim("adaptive_sgd", WHERE, "with p = 2 the proximal step is common SGD, -alpha J")
def test_two_is_sgd():
  g = np.float32([-3.0, 1e-20, 0.0, 5.0])
  np.testing.assert_allclose(step(p_norm_sgd(0.5), g), step(optax.sgd(0.5), g), rtol=1e-6)


def test_large_p_is_the_sign():
  g = np.float32([-3.0, 1e-3, 0.0])
  np.testing.assert_array_equal(step(p_norm_sgd(0.5, p=np.inf), g), step(optax.sign_sgd(0.5), g))
  np.testing.assert_allclose(step(p_norm_sgd(0.5, p=1e6), g), step(optax.sign_sgd(0.5), g), rtol=1e-4)
  # Of the minimiser itself alpha is no step size any more.
  for alpha in (0.01, 100.0):
    np.testing.assert_allclose(step(p_norm_sgd(weight=alpha, p=1e6), g), -np.sign(g), rtol=1e-4)


def test_odd_and_finite_towards_one():
  g = np.float32([1e-30, 0.5, 2.0, 1e30, 0.0])
  for p in (1.0001, 1.5, 7.0):
    up, down = step(p_norm_sgd(-1.0, p=p), g), step(p_norm_sgd(-1.0, p=p), -g)
    np.testing.assert_array_equal(up, -down)
    assert np.isfinite(up).all()
    assert up[-1] == 0
  # alpha and the gradient meet before either overflows.
  np.testing.assert_allclose(step(p_norm_sgd(p=1.0001, weight=0.5), np.float32([-2.0])), 1.0, rtol=1e-2)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_what_overflows_is_held_at_the_largest_number_of_its_dtype(dtype):
  largest = float(jnp.finfo(dtype).max)
  got = step(p_norm_sgd(-1.0, p=1.01), jnp.array([30.0, -30.0, 1.0], dtype))
  np.testing.assert_array_equal(got.astype(np.float64), [largest, -largest, 1])


def test_refusals():
  with pytest.raises(ValueError, match="p must lie in"):
    p_norm_sgd(0.1, p=1.0)
  with pytest.raises(ValueError, match="one of learning_rate and weight"):
    p_norm_sgd(0.1, p=3.0, weight=0.1)
  with pytest.raises(ValueError, match="one of learning_rate and weight"):
    p_norm_sgd(p=3.0)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_steps_in_16_bits_are_rounded_once(dtype):
  """Neither the power of a gradient nor a small step leaves the range before the learning rate is in."""
  g = jnp.array([0.5, 0.9, 1.5, -1.9, 2.0, -3.0], dtype)
  powers = np.sign(np.float64(g)) * np.abs(np.float64(g)) ** 20
  for rate in (1e-4, 0.1, optax.constant_schedule(100.0)):
    scale = 100.0 if callable(rate) else rate
    tx = p_norm_sgd(rate, p=1.05)
    got = jit(lambda g, tx=tx: tx.update(g, tx.init(g))[0])(g)
    assert got.dtype == dtype
    largest = float(jnp.finfo(dtype).max)
    want = np.clip(-scale * powers, -largest, largest)
    info = jnp.finfo(dtype)
    np.testing.assert_allclose(np.float64(got), want, rtol=float(info.eps), atol=float(info.smallest_normal))

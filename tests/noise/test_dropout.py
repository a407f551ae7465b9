"""Dropout's masks, and weight scaling as the exact mean of what is linear and of nothing else."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest

from jaxreg import noise
from jaxreg.noise._dropout import dropout_mask


def scaled(x, rate):
  return noise.scale_weights(x, rate=rate, mask=True)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_mask_statistics(rate):
  mask = np.asarray(dropout_mask(jax.random.key(0), (200, 500), rate=rate), np.float64)
  keep = 1 - rate
  assert abs(mask.mean() - keep) < 4 * math.sqrt(keep * rate / mask.size)
  fourth = keep * rate * (1 - 3 * keep * rate)  # the fourth central moment of a Bernoulli
  assert abs(mask.var() - keep * rate) < 4 * math.sqrt(
    (fourth - (keep * rate) ** 2) / mask.size + 1 / mask.size**2
  )
  # Rows and columns are as spread as independent entries are.
  assert np.abs(mask.mean(0) - keep).max() < 5 * math.sqrt(keep * rate / 200)
  assert abs(np.corrcoef(mask[:, 0], mask[:, 1])[0, 1]) < 4 / math.sqrt(200)


@pytest.mark.parametrize("rate", [0.25, 0.5])
def test_dropout_keeps_with_the_mask_of_its_key(rate):
  x = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
  mask = np.asarray(dropout_mask(jax.random.key(1), x.shape, rate=rate))
  assert 0 < mask.mean() < 1
  for inverted, scale in ((True, 1 / (1 - rate)), (False, 1.0)):
    got = noise.dropout(jax.random.key(1), x, rate=rate, inverted=inverted)
    np.testing.assert_allclose(got, mask * x * scale, rtol=1e-6)


def enumerated(x, keep, inverted):
  """Every masked `x` with its probability."""
  masks = oracles.all_masks(len(x))
  return masks * x / (keep if inverted else 1.0), oracles.mask_probabilities(masks, np.full(len(x), keep))


@pytest.mark.parametrize("inverted", [True, False])
def test_scaling_is_the_exact_mean_of_a_linear_map(inverted):
  rng = np.random.default_rng(3)
  x, w, rate = rng.normal(size=8), rng.normal(size=(8, 3)), 0.25
  xs, weights = enumerated(x, 1 - rate, inverted)
  with jax.enable_x64(True):
    mean = x if inverted else scaled(x, rate)
    np.testing.assert_allclose(mean, weights @ xs, rtol=1e-14, atol=1e-15)
    np.testing.assert_allclose(mean @ w, weights @ (xs @ w), rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("inverted", [True, False])
def test_rate_zero_is_the_identity(inverted):
  x = np.random.default_rng(6).normal(size=(5, 7)).astype(np.float32)
  np.testing.assert_array_equal(noise.dropout(jax.random.key(0), x, rate=0.0, inverted=inverted), x)
  np.testing.assert_array_equal(scaled(x, 0.0), x)
  assert dropout_mask(jax.random.key(0), (50, 50), rate=0.0).all()


@pytest.mark.parametrize("inverted", [True, False])
def test_rate_one_is_zero_with_zero_gradient(inverted):
  x = jnp.array([1.0, -1e30, jnp.inf])
  function = lambda x: noise.dropout(jax.random.key(0), x, rate=1.0, inverted=inverted)
  np.testing.assert_array_equal(function(x), 0)
  np.testing.assert_array_equal(jax.grad(lambda x: function(x).sum())(x), 0)
  assert not dropout_mask(jax.random.key(0), (50, 50), rate=1.0).any()


@pytest.mark.thorough
@pytest.mark.parametrize("inverted", [True, False])
def test_rate_may_be_traced(inverted):
  x = np.random.default_rng(7).normal(size=(64,)).astype(np.float32)
  function = jax.jit(lambda x, rate: noise.dropout(jax.random.key(4), x, rate=rate, inverted=inverted))
  for rate in (0.0, 0.3, 1.0):
    np.testing.assert_allclose(
      function(x, rate), noise.dropout(jax.random.key(4), x, rate=rate, inverted=inverted), rtol=1e-6
    )
    by_x, by_rate = jax.grad(lambda x, rate: function(x, rate).sum(), (0, 1))(x, rate)
    assert np.isfinite(by_x).all()
    assert np.isfinite(by_rate)
  np.testing.assert_allclose(jax.jit(scaled)(x, 0.3), 0.7 * x, rtol=1e-6)


@pytest.mark.parametrize("axes", [(1,), (-1,), (1, 2), ()])
def test_shared_axes_share_one_mask(axes):
  x = jnp.ones((50, 6, 8))
  got = np.asarray(noise.dropout(jax.random.key(5), x, rate=0.5, shared_axes=axes))
  for axis in range(3):
    constant = (got == got.take([0], axis)).all()
    assert constant == (axis in {a % 3 for a in axes})
  assert set(np.unique(got)) == {0.0, 2.0}


def test_a_shared_axis_that_is_not_there_is_refused():
  with pytest.raises(ValueError, match="axes"):
    noise.dropout(jax.random.key(0), jnp.ones((2, 3)), rate=0.5, shared_axes=(2,))


def test_inverted_and_scaled_weights_are_the_same_network():
  """Inverted dropout with W, and plain dropout with W / p, agree mask for mask; at test W and p (W / p)."""
  rng = np.random.default_rng(8)
  x, w, rate = rng.normal(size=(9, 6)).astype(np.float32), rng.normal(size=(6, 2)).astype(np.float32), 0.5
  one = noise.dropout(jax.random.key(6), x, rate=rate) @ w
  two = noise.dropout(jax.random.key(6), x, rate=rate, inverted=False) @ (w / (1 - rate))
  np.testing.assert_allclose(one, two, rtol=1e-6)
  np.testing.assert_allclose(x @ w, scaled(x, rate) @ (w / (1 - rate)), rtol=1e-5, atol=1e-6)


@pytest.mark.thorough
def test_dropped_entries_hide_what_they_held():
  x = jnp.array([jnp.nan, jnp.inf, 1.0, -jnp.inf] * 20)
  mask = dropout_mask(jax.random.key(7), x.shape, rate=0.5)
  got = noise.dropout(jax.random.key(7), x, rate=0.5)
  assert 0 < mask.sum() < x.size
  np.testing.assert_array_equal(got[~mask], 0)


@pytest.mark.parametrize("rate", [-0.1, 1.1, math.nan])
def test_rate_out_of_range_is_refused(rate):
  for function in (
    lambda: noise.dropout(jax.random.key(0), jnp.ones(3), rate=rate),
    lambda: scaled(jnp.ones(3), rate),
  ):
    with pytest.raises(ValueError, match="rate"):
      function()


def test_bfloat16_keeps_its_dtype_and_the_mask_of_float32():
  x = jnp.ones((64, 64), jnp.bfloat16)
  narrow = noise.dropout(jax.random.key(8), x, rate=0.5)
  wide = noise.dropout(jax.random.key(8), x.astype(jnp.float32), rate=0.5)
  assert narrow.dtype == jnp.bfloat16
  np.testing.assert_array_equal(narrow.astype(jnp.float32), wide)


@pytest.mark.thorough
@pytest.mark.parametrize(
  ("function", "factor"),
  [
    (lambda x: noise.dropout(jax.random.key(8), x, rate=0.1), 1 / 0.9),
    (
      lambda x: noise.drop_block(jax.random.key(8), x[:, None, None], rate=0.1, block_size=1)[:, 0, 0],
      1 / 0.9,
    ),
    (lambda x: scaled(x, 0.1), 0.9),
  ],
)
def test_bfloat16_is_rounded_once(function, factor):
  x = jnp.arange(1, 257, dtype=jnp.bfloat16)
  got = np.asarray(function(x), np.float64)
  kept = got != 0
  assert kept.mean() > 0.8
  # Half of a last place: the significand has 8 bits.
  np.testing.assert_allclose(got[kept], factor * np.arange(1.0, 257)[kept], rtol=2**-8)

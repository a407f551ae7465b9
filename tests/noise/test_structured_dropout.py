"""Dropout of what belongs together: channels, blocks, branches, sequences, tokens; and alpha dropout."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxreg import noise

pytestmark = pytest.mark.thorough

IMAGE = (6, 5, 4, 3)
FUNCTIONS = {
  "spatial": lambda key, x, rate: noise.spatial_dropout(key, x, rate=rate),
  "block": lambda key, x, rate: noise.drop_block(key, x, rate=rate, block_size=2),
  "shared block": lambda key, x, rate: noise.drop_block(
    key, x, rate=rate, block_size=3, shared_channels=True
  ),
  "example": lambda key, x, rate: noise.stochastic_depth(key, x, rate=rate),
  "batch": lambda key, x, rate: noise.stochastic_depth(key, x, rate=rate, per="batch"),
  "sequence": lambda key, x, rate: noise.recurrent_dropout(key, x, rate=rate),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_limits_and_gradients_at_traced_rates(name):
  x = jax.random.normal(jax.random.key(0), IMAGE)
  function = FUNCTIONS[name]
  np.testing.assert_array_equal(function(jax.random.key(1), x, 0.0), x)
  np.testing.assert_array_equal(function(jax.random.key(1), x, 1.0), 0)
  gradient = jax.jit(jax.grad(lambda x, rate: function(jax.random.key(1), x, rate).sum(), (0, 1)))
  for rate in (0.0, 0.5, 1.0):
    by_x, by_rate = gradient(x, rate)
    assert np.isfinite(by_x).all()
    assert np.isfinite(by_rate)
    if rate in (0, 1):
      np.testing.assert_array_equal(by_x, 1 - rate)
  with pytest.raises(ValueError, match="rate"):
    function(jax.random.key(1), x, -0.1)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_it_is_unbiased(name):
  """The mean of what is kept, scaled, at every position: over 4000 draws."""
  keys = jax.random.split(jax.random.key(2), 4000)
  draws = jax.jit(jax.vmap(lambda key: FUNCTIONS[name](key, jnp.ones(IMAGE), 0.3)))(keys)
  mean = np.asarray(draws, np.float64).mean(0)
  # Of 360 positions the largest of so many deviations.
  assert np.abs(mean - 1).max() < 5 * math.sqrt(0.3 / 0.7 / 4000)
  assert set(np.unique(draws)) == {0.0, np.float32(1 / 0.7)}


@pytest.mark.parametrize(
  ("name", "axes"), [("spatial", (1, 2)), ("example", (1, 2, 3)), ("batch", (0, 1, 2, 3)), ("sequence", (2,))]
)
def test_what_belongs_together_is_dropped_together(name, axes):
  got = np.asarray(FUNCTIONS[name](jax.random.key(4), jnp.ones((20, 5, 6, 7)), 0.5))
  for axis in range(4):
    constant = (got == got.take([0], axis)).all()
    assert constant == (axis in axes)


def test_spatial_axes_by_number():
  x = jnp.ones((2, 3, 4, 5, 6))
  got = np.asarray(noise.spatial_dropout(jax.random.key(5), x, rate=0.5, num_spatial=3))
  np.testing.assert_array_equal(got, np.broadcast_to(got[:, :1, :1, :1], got.shape))
  with pytest.raises(ValueError, match="3 spatial axes"):
    noise.spatial_dropout(jax.random.key(5), jnp.ones((2, 3, 4)), rate=0.5, num_spatial=3)


@pytest.mark.parametrize("size", [1, 2, 3, 4, (2, 3)])
@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_expected_fraction_of_blocks_is_the_rate_at_every_position(size, rate):
  """Odd and even sizes, in the middle and in the corners; the paper's first-order gamma falls short."""
  number = 6000
  mask = noise.drop_block_mask(jax.random.key(6), (number, 5, 4, 1), rate=rate, block_size=size)
  mask = np.asarray(mask, np.float64)
  assert np.abs(mask.mean((0, 3)) - (1 - rate)).max() < 4.5 * math.sqrt(rate * (1 - rate) / number)
  height, width = size if isinstance(size, tuple) else (size, size)
  area = height * width
  inside = (5 - height + 1) * (4 - width + 1)
  paper = rate / area * 20 / inside
  kept = np.mean(
    [
      (1 - paper)
      ** (
        sum(0 <= h - i <= 5 - height for i in range(height))
        * sum(0 <= w - j <= 4 - width for j in range(width))
      )
      for h in range(5)
      for w in range(4)
    ]
  )
  if area > 1 and rate == 0.5:
    assert kept - (1 - rate) > 0.02


def test_a_block_is_contiguous():
  """What is dropped is a union of whole blocks: one of a block that covers it and fits is dropped too."""
  mask = ~np.asarray(noise.drop_block_mask(jax.random.key(7), (200, 8, 8, 1), rate=0.05, block_size=(3, 2)))
  hit = mask[..., 0]
  assert hit.any()
  for example in hit[:, :, :]:
    for h, w in np.argwhere(example):
      starts = [
        (max(h - i, 0), max(w - j, 0), min(h - i + 3, 8), min(w - j + 2, 8))
        for i in range(3)
        for j in range(2)
      ]
      assert any(example[a:c, b:d].all() for a, b, c, d in starts)


def test_channels_share_blocks_if_asked():
  x = jnp.ones((30, 6, 6, 4))
  own = np.asarray(noise.drop_block(jax.random.key(8), x, rate=0.3, block_size=2))
  one = np.asarray(noise.drop_block(jax.random.key(8), x, rate=0.3, block_size=2, shared_channels=True))
  assert not (own == own[..., :1]).all()
  assert (one == one[..., :1]).all()


def test_a_block_of_one_is_dropout():
  x = jax.random.normal(jax.random.key(0), (4, 5, 6, 2))
  np.testing.assert_allclose(
    noise.drop_block(jax.random.key(9), x, rate=0.4, block_size=1),
    noise.dropout(jax.random.key(9), x, rate=0.4),
    rtol=1e-6,
  )


def test_blocks_that_do_not_fit_are_refused():
  key = jax.random.key(0)
  with pytest.raises(ValueError, match="block_size must fit in a map of 4x5, got 5"):
    noise.drop_block(key, jnp.ones((4, 5, 1)), rate=0.1, block_size=5)
  with pytest.raises(TypeError, match="block_size"):
    noise.drop_block(key, jnp.ones((4, 5, 1)), rate=0.1, block_size=2.0)
  with pytest.raises(ValueError, match="channels"):
    noise.drop_block(key, jnp.ones((4, 5)), rate=0.1)


@pytest.mark.parametrize("rate", [0.05, 0.3, 0.8])
def test_alpha_dropout_keeps_mean_0_and_variance_1(rate):
  """Exactly, over the two values of the mask and any x of mean 0 and variance 1; here +-1."""
  x = jnp.asarray(np.repeat([1.0, -1.0], 50_000), jnp.float32)
  got = np.asarray(noise.alpha_dropout(jax.random.key(10), x, rate=rate), np.float64)
  kept = [got[(x > 0) & (got == got[x > 0].max())][0], got[x < 0].max()]
  limit = [v for v in np.unique(got) if v not in kept]
  assert len(limit) == 1
  mean = rate * limit[0] + (1 - rate) * np.mean(kept)
  second = rate * limit[0] ** 2 + (1 - rate) * np.mean(np.square(kept))
  np.testing.assert_allclose([mean, second], [0, 1], atol=1e-5)


def test_alpha_dropout_drops_to_selus_lower_limit():
  """SELU at minus infinity, carried through the affine map that restores mean and variance."""
  limit = np.float64(jax.nn.selu(jnp.float32(-1e4)))
  x = jax.random.normal(jax.random.key(0), (2000,))
  got = np.asarray(noise.alpha_dropout(jax.random.key(11), x, rate=0.3), np.float64)
  mask = np.asarray(noise.dropout_mask(jax.random.key(11), (2000,), rate=0.3))
  slope, shift = np.polyfit(np.asarray(x)[mask], got[mask], 1)
  np.testing.assert_allclose(got[~mask], slope * limit + shift, rtol=1e-4)


def test_alpha_dropout_limits():
  x = jax.random.normal(jax.random.key(0), (50,))
  np.testing.assert_array_equal(noise.alpha_dropout(jax.random.key(12), x, rate=0.0), x)
  np.testing.assert_array_equal(noise.alpha_dropout(jax.random.key(12), x, rate=1.0), 0)
  # The limit: shrinks as the root of what is kept.
  np.testing.assert_allclose(
    noise.alpha_dropout(jax.random.key(12), jnp.zeros(1), rate=1 - 1e-6),
    -1.7580993 * math.sqrt(1e-6 / (1 + 1.7580993**2)),
    rtol=1e-2,
  )
  gradient = jax.jit(
    jax.grad(lambda x, rate: noise.alpha_dropout(jax.random.key(12), x, rate=rate).sum(), (0, 1))
  )
  for rate in (0.0, 0.5, 1.0):
    assert all(np.isfinite(g).all() for g in gradient(x, rate))


def test_stochastic_depth_of_a_batch_is_all_or_nothing():
  x = jnp.ones((10, 3))
  seen = {
    float(noise.stochastic_depth(jax.random.key(seed), x, rate=0.5, per="batch").mean()) for seed in range(12)
  }
  assert seen == {0.0, 2.0}
  with pytest.raises(ValueError, match="per must be"):
    noise.stochastic_depth(jax.random.key(0), x, rate=0.5, per="row")


def test_mean_of_a_residual_network_with_linear_branches_is_the_network_of_means():
  """Two blocks h + b f(h) with f linear: the mean over the four subsets of branches, exactly."""
  rng = np.random.default_rng(0)
  first, second, x = rng.normal(size=(3, 3)), rng.normal(size=(3, 3)), rng.normal(size=3)
  rates = (0.25, 0.5)
  mean = np.zeros(3)
  for a in (0, 1):
    for b in (0, 1):
      h = x + a / (1 - rates[0]) * (x @ first)
      h = h + b / (1 - rates[1]) * (h @ second)
      mean += (rates[0] if a == 0 else 1 - rates[0]) * (rates[1] if b == 0 else 1 - rates[1]) * h
  h = x + x @ first
  np.testing.assert_allclose(mean, h + h @ second, rtol=1e-12)
  kernels = jnp.asarray([first, second], jnp.float32)

  def network(key):
    h = jnp.broadcast_to(jnp.asarray(x, jnp.float32), (20_000, 3))
    for kernel, rate, k in zip(kernels, rates, jax.random.split(key)):
      h = h + noise.stochastic_depth(k, h @ kernel, rate=rate)
    return h

  got = np.asarray(network(jax.random.key(13)), np.float64)
  assert (np.abs(got.mean(0) - mean) < 4 * got.std(0) / math.sqrt(20_000)).all()


def test_one_mask_for_a_whole_scan():
  """The recipe of the docstring: a mask drawn before the scan, used in every step."""
  mask = noise.dropout(jax.random.key(14), jnp.ones(8), rate=0.5)
  _, states = jax.lax.scan(lambda h, x: (h * mask + x, h * mask), jnp.ones(8), jnp.ones((5, 8)))
  assert ((np.asarray(states) == 0) == (np.asarray(mask) == 0)).all()
  x = jnp.ones((3, 7, 8))
  by_axis = noise.recurrent_dropout(jax.random.key(15), x, rate=0.5, time_axis=1)
  np.testing.assert_array_equal(by_axis, noise.recurrent_dropout(jax.random.key(15), x, rate=0.5))
  with pytest.raises(ValueError, match="time_axis"):
    noise.recurrent_dropout(jax.random.key(15), x, rate=0.5, time_axis=3)

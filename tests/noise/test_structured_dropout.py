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
  "shared block": lambda key, x, rate: noise.drop_block(key, x, rate=rate, block_size=3, per_channel=False),
  "example": lambda key, x, rate: noise.stochastic_depth(key, x, rate=rate),
  "batch": lambda key, x, rate: noise.stochastic_depth(key, x, rate=rate, per_example=False),
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


def test_spatial_axes_by_number():
  x = jnp.ones((2, 3, 4, 5, 6))
  got = np.asarray(noise.spatial_dropout(jax.random.key(5), x, rate=0.5, num_spatial=3))
  np.testing.assert_array_equal(got, np.broadcast_to(got[:, :1, :1, :1], got.shape))
  with pytest.raises(ValueError, match="3 spatial axes"):
    noise.spatial_dropout(jax.random.key(5), jnp.ones((3, 4, 5)), rate=0.5, num_spatial=3)


@pytest.mark.parametrize("size", [1, 2, 3, 4, (2, 3)])
def test_expected_fraction_of_blocks_is_the_rate_at_every_position(size):
  """Odd and even sizes, in the middle and in the corners; the paper's first-order gamma falls short."""
  number, rate = 6000, 0.5
  ones = jnp.ones((number, 5, 4, 1))
  mask = noise.drop_block(jax.random.key(6), ones, rate=rate, block_size=size, inverted=False)
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
  if area > 1:
    assert kept - (1 - rate) > 0.02


def test_channels_share_blocks_if_asked():
  x = jnp.ones((30, 6, 6, 4))
  own = np.asarray(noise.drop_block(jax.random.key(8), x, rate=0.3, block_size=2))
  one = np.asarray(noise.drop_block(jax.random.key(8), x, rate=0.3, block_size=2, per_channel=False))
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
    float(noise.stochastic_depth(jax.random.key(seed), x, rate=0.5, per_example=False).mean())
    for seed in range(12)
  }
  assert seen == {0.0, 2.0}


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


@pytest.mark.parametrize(
  ("schedule", "want"),
  [
    ("linear", [0.1, 0.2, 0.3, 0.4]),  # the source's l / L
    ("linear_from_zero", [0, 0.4 / 3, 0.8 / 3, 0.4]),  # timm's linspace
    ("constant", [0.4] * 4),
  ],
)
def test_rates_along_a_network(schedule, want):
  np.testing.assert_allclose(noise.drop_path_rates(0.4, 4, schedule=schedule), want)
  with pytest.raises(ValueError, match="schedule must be one of"):
    noise.drop_path_rates(0.4, 4, schedule="cosine")

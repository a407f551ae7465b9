"""Token dropout keeps a uniform subset of a fixed size, in order, the same one of several arrays."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxreg import noise


@pytest.mark.thorough
def test_subsets_are_uniform_and_in_order():
  number = 6000
  positions = np.tile(np.arange(5.0)[:, None], (number, 1, 1))
  got = np.asarray(noise.token_dropout(jax.random.key(0), positions, num_kept=2, num_prefix=1))[..., 0]
  assert (got[:, 0] == 0).all()
  assert (np.diff(got) > 0).all()
  subsets = list(itertools.combinations(range(1, 5), 2))
  counts = np.array([(got[:, 1:] == subset).all(1).sum() for subset in subsets])
  assert counts.sum() == number
  assert np.abs(counts / number - 1 / 6).max() < 4 * math.sqrt(5 / 36 / number)


@pytest.mark.thorough
def test_the_same_key_keeps_the_same_tokens_of_another_array():
  x, other = jax.random.normal(jax.random.key(1), (3, 6, 2)), jnp.ones((3, 6, 1))
  both = noise.token_dropout(jax.random.key(2), jnp.concatenate([x, x[..., :1] * other], -1), num_kept=3)
  alone = noise.token_dropout(jax.random.key(2), x[..., :1], num_kept=3)
  np.testing.assert_array_equal(both[..., 2:], alone)


@pytest.mark.parametrize("dtype", [bool, np.int32])
def test_padding_masks_and_targets_keep_their_dtype(dtype):
  x = np.arange(24).reshape(2, 12, 1) % 5
  want = noise.token_dropout(jax.random.key(2), x.astype(np.float32), num_kept=3)
  got = noise.token_dropout(jax.random.key(2), x.astype(dtype), num_kept=3)
  assert got.dtype == dtype
  np.testing.assert_array_equal(got, want.astype(dtype))


@pytest.mark.thorough
def test_all_kept_is_the_identity():
  x = jax.random.normal(jax.random.key(1), (3, 6, 2))
  np.testing.assert_array_equal(noise.token_dropout(jax.random.key(2), x, num_kept=6), x)
  np.testing.assert_array_equal(noise.token_dropout(jax.random.key(2), x, num_kept=4, num_prefix=2), x)


@pytest.mark.thorough
def test_embedding_noise_leaves_padding_alone_and_scales_by_the_tokens():
  x, where = np.zeros((2, 50, 40), np.float32), np.arange(50) < np.array([[50], [20]])
  got = np.asarray(noise.embedding_noise(jax.random.key(0), x, alpha=5.0, where=where), np.float64)
  assert (got[1, 20:] == 0).all()
  for each, tokens in zip(got, (50, 20), strict=True):
    assert 0.99 < np.abs(each).max() * np.sqrt(tokens * 40) / 5 <= 1 + 1e-6
    assert abs((each**2).sum() - 25 / 3) < 4 * 25 * np.sqrt(4 / 45 / (tokens * 40))
  for wrong, error in ((where.astype(int), TypeError), (where[:1], ValueError)):
    with pytest.raises(error, match="where must"):
      noise.embedding_noise(jax.random.key(0), x, where=wrong)


def test_numbers_that_do_not_fit_are_refused():
  x = jnp.ones((2, 5, 3))
  with pytest.raises(ValueError, match="num_kept must be at most 5 tokens minus num_prefix=1, got 5"):
    noise.token_dropout(jax.random.key(0), x, num_kept=5, num_prefix=1)
  for name, options in (("num_kept", {"num_kept": 0}), ("num_prefix", {"num_kept": 2, "num_prefix": -1})):
    with pytest.raises(ValueError, match=f"{name} must be at least"):
      noise.token_dropout(jax.random.key(0), x, **options)
  for options in ({"num_kept": 2.5}, {"num_kept": 2, "num_prefix": 0.5}):
    with pytest.raises(TypeError, match="must be an integer"):
      noise.token_dropout(jax.random.key(0), x, **options)

"""Token dropout keeps a uniform subset of a fixed size, in order; the contract of its indices."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxreg import noise


def test_subsets_are_uniform_and_in_order():
  number = 6000
  got = np.asarray(noise.token_dropout_indices(jax.random.key(0), (number, 5), num_kept=2, num_prefix=1))
  assert (got[:, 0] == 0).all()
  assert (np.diff(got) > 0).all()
  subsets = list(itertools.combinations(range(1, 5), 2))
  counts = np.array([(got[:, 1:] == subset).all(1).sum() for subset in subsets])
  assert counts.sum() == number
  assert np.abs(counts / number - 1 / 6).max() < 4 * math.sqrt(5 / 36 / number)


def test_tokens_are_those_of_the_indices():
  x = jax.random.normal(jax.random.key(1), (3, 4, 9, 2))
  got = np.asarray(noise.token_dropout(jax.random.key(2), x, num_kept=4, num_prefix=2))
  indices = np.asarray(noise.token_dropout_indices(jax.random.key(2), x.shape[:-1], num_kept=4, num_prefix=2))
  assert got.shape == (3, 4, 6, 2)
  for where in np.ndindex(3, 4):
    np.testing.assert_array_equal(got[where], np.asarray(x)[where][indices[where]])
  assert len(np.unique(indices.reshape(12, -1), axis=0)) > 6  # each sequence its own


def test_all_kept_is_the_identity():
  x = jax.random.normal(jax.random.key(1), (3, 6, 2))
  np.testing.assert_array_equal(noise.token_dropout(jax.random.key(2), x, num_kept=6), x)
  np.testing.assert_array_equal(noise.token_dropout(jax.random.key(2), x, num_kept=4, num_prefix=2), x)


def test_gradient_goes_to_what_is_kept():
  x = jnp.ones((2, 5, 3))
  gradient = jax.grad(lambda x: noise.token_dropout(jax.random.key(3), x, num_kept=2).sum())(x)
  assert set(np.unique(gradient)) == {0.0, 1.0}
  assert gradient.sum() == 2 * 2 * 3


def test_the_mean_of_the_kept_is_unbiased_for_the_mean():
  """Over all subsets, by symmetry: pooling by the mean needs no scale at test time."""
  x = np.random.default_rng(0).normal(size=5)
  means = [x[list(subset)].mean() for subset in itertools.combinations(range(5), 3)]
  np.testing.assert_allclose(np.mean(means), x.mean(), rtol=1e-12)
  got = noise.token_dropout(
    jax.random.key(4), jnp.broadcast_to(jnp.asarray(x, jnp.float32)[:, None], (4000, 5, 1)), num_kept=3
  )
  assert abs(np.asarray(got, np.float64).mean() - x.mean()) < 4 * np.std(means) / math.sqrt(4000)


@pytest.mark.thorough
def test_contract_of_the_indices():
  draw = lambda key: noise.token_dropout_indices(key, (8, 7), num_kept=3, num_prefix=1)
  eager = draw(jax.random.key(5))
  assert eager.dtype == jnp.int32
  np.testing.assert_array_equal(jax.jit(draw)(jax.random.key(5)), eager)
  assert (draw(jax.random.key(6)) != eager).any()
  np.testing.assert_array_equal(draw(None), np.tile(np.arange(7), (8, 1)))
  keys = jax.random.split(jax.random.key(7), 3)
  several = jax.vmap(draw)(jax.random.clone(keys))
  for i in range(3):
    np.testing.assert_array_equal(several[i], draw(keys[i]))
  with jax.enable_x64(True):
    assert draw(jax.random.key(5)).dtype == jnp.int32
  for wrong in (0, jax.random.split(jax.random.key(0), 2)):
    with pytest.raises((TypeError, ValueError), match="key"):
      draw(wrong)


def test_numbers_that_do_not_fit_are_refused():
  x = jnp.ones((2, 5, 3))
  with pytest.raises(ValueError, match="num_kept must fit beside num_prefix=1 in 5 tokens, got 5"):
    noise.token_dropout(jax.random.key(0), x, num_kept=5, num_prefix=1)
  for options in ({"num_kept": 0}, {"num_kept": 2, "num_prefix": -1}):
    with pytest.raises(ValueError, match="num_kept"):
      noise.token_dropout(jax.random.key(0), x, **options)
  for options in ({"num_kept": 2.5}, {"num_kept": 2, "num_prefix": 0.5}):
    with pytest.raises(TypeError, match="must be an integer"):
      noise.token_dropout(jax.random.key(0), x, **options)

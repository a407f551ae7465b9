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


def test_all_kept_is_the_identity():
  x = jax.random.normal(jax.random.key(1), (3, 6, 2))
  np.testing.assert_array_equal(noise.token_dropout(jax.random.key(2), x, num_kept=6), x)
  np.testing.assert_array_equal(noise.token_dropout(jax.random.key(2), x, num_kept=4, num_prefix=2), x)


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

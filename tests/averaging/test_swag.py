"""SWAG's moments against NumPy, and the covariance of its draws against the source's matrix."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxreg import averaging

ITERATES = np.random.default_rng(0).normal(size=(7, 3)) * [1.0, 2.0, 0.1] + [5.0, 0.0, 1.0]


def run(iterates, rank):
  average = averaging.swag(rank=rank)

  def both(start, iterates):
    step = lambda state, params: (average.update(state, params), None)
    return jax.lax.scan(step, average.init(start), iterates)[0]

  return jax.jit(both)(jnp.full(3, 9.0), jnp.asarray(iterates))


def source(iterates, rank):
  """The mean and the covariance by the source's running sums."""
  means = np.cumsum(iterates, 0) / np.arange(1, len(iterates) + 1)[:, None]
  diagonal = (iterates**2).mean(0) - means[-1] ** 2
  last = (iterates - means)[-rank:]
  return means[-1], np.diag(diagonal) / 2 + last.T @ last / (2 * (len(last) - 1))


@pytest.mark.thorough
@pytest.mark.parametrize("number", [7, 3])  # more and fewer iterates than the rank
def test_moments_and_draws(x64, number):
  iterates = ITERATES[:number]
  state = run(iterates, 4)
  mean, covariance = source(iterates, 4)
  np.testing.assert_allclose(state.params, mean, rtol=1e-12)
  np.testing.assert_allclose(state.squares / number, np.var(iterates, 0), rtol=1e-12)
  draws = 40000
  keys = jax.random.split(jax.random.key(1), draws)
  got = np.asarray(jax.jit(jax.vmap(lambda key: averaging.swag().sample(key, state)))(keys))
  size = np.sqrt(np.diag(covariance))
  assert (abs(got.mean(0) - mean) < 4 * size / np.sqrt(draws)).all()
  error = abs(np.cov(got.T) - covariance) / np.outer(size, size)
  assert error.max() < 4 * np.sqrt(2 / draws)


def test_a_restored_state_may_have_arrays_of_numpy():
  average = averaging.swag(rank=2)
  state = average.update(average.init(jnp.zeros(3)), jnp.asarray(ITERATES[0], jnp.float32))
  want, got = (average.update(each, jnp.ones(3)) for each in (state, jax.tree.map(np.asarray, state)))
  jax.tree.map(np.testing.assert_array_equal, got, want)


@pytest.mark.thorough
def test_counters_are_kept_and_one_iterate_is_the_mean():
  params = {"w": jnp.ones(2, jnp.bfloat16), "count": jnp.array(3)}
  average = averaging.swag()
  state = average.update(average.init(jax.tree.map(jnp.zeros_like, params)), params)
  drawn = average.sample(jax.random.key(0), state)
  assert drawn["count"] == 3
  assert drawn["w"].dtype == jnp.float32
  np.testing.assert_array_equal(drawn["w"], 1)
  with pytest.raises(ValueError, match="rank must"):
    averaging.swag(rank=1)
  with pytest.raises(ValueError, match="scale must"):
    averaging.swag(scale=-1.0)

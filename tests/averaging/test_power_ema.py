"""Averages with a power of the time as weight, against their sums in NumPy."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxreg import averaging

ITERATES = np.random.default_rng(0).normal(size=(400, 3)).cumsum(0)  # a walk, as a training is
GAMMAS = {0.05: 16.97, 0.1: 6.94}  # of the source, section 3.1


def weights(gamma, time):
  """The share of each iterate, from the recursion of the source."""
  shares = np.zeros(time)
  for t in range(1, time + 1):
    beta = (1 - 1 / t) ** (gamma + 1)
    shares *= beta
    shares[t - 1] += 1 - beta
  return shares


def exponent(length):
  """The largest root, by bisection: the length falls with gamma."""
  low, high = 0.0, 1e4
  for _ in range(200):
    middle = (low + high) / 2
    now = np.sqrt(middle + 1) / (middle + 2) / np.sqrt(middle + 3)
    low, high = (middle, high) if now > length else (low, middle)
  return low


def states_of(average, every, iterates=ITERATES):
  """The states after each `every` iterates, in float64."""
  update = jax.jit(average.update)
  state, kept = average.init(jnp.zeros(3)), []
  for number, params in enumerate(iterates, 1):
    state = update(state, jnp.asarray(params))
    kept += [state] if number % every == 0 else []
  return kept


def test_the_averages_are_the_sums_with_the_weights_of_the_source():
  with jax.enable_x64(True):
    for length in GAMMAS:
      average = averaging.power_ema(lengths=(length, 0.2))
      assert abs(exponent(length) - GAMMAS[length]) < 0.005
      for state in states_of(average, 100):
        want = weights(exponent(length), int(state.count)) @ ITERATES[: int(state.count)]
        np.testing.assert_allclose(average.params(state), want, rtol=1e-10)
      [first] = states_of(average, 1, ITERATES[:1])
      np.testing.assert_array_equal(average.params(first), ITERATES[0])


def test_the_length_is_the_deviation_of_the_weights():
  for length in (0.03, 0.1, 0.25, 12**-0.5):
    shares, time = weights(exponent(length), 4000), np.arange(1, 4001) / 4000
    deviation = np.sqrt(shares @ time**2 - (shares @ time) ** 2)
    np.testing.assert_allclose(deviation, length, rtol=2e-3)


@pytest.mark.parametrize(("every", "errors"), [(40, (5e-3, 2e-2, 3e-2)), (10, (1e-4, 2e-4, 1e-3))])
def test_a_third_length_is_reconstructed(every, errors):
  """Against the average that is computed directly; more kept states come nearer."""
  with jax.enable_x64(True):
    average = averaging.power_ema()
    states = states_of(average, every)
    for length, most in zip((0.07, 0.12, 0.16), errors):
      direct = weights(exponent(length), 400) @ ITERATES
      got = average.reconstruct(states, length=length)
      assert np.abs(got - direct).max() < most * ITERATES.std()
    for length in (0.05, 0.1):  # the averages themselves
      direct = weights(exponent(length), 400) @ ITERATES
      np.testing.assert_allclose(average.reconstruct(states, length=length), direct, rtol=1e-10)
      earlier = weights(exponent(length), 200) @ ITERATES[:200]
      half = average.reconstruct(states[: len(states) // 2], length=length)
      np.testing.assert_allclose(half, earlier, rtol=1e-10)


def test_the_shares_are_those_of_least_squares():
  """By the normal equations over all iterates, solved in NumPy."""
  with jax.enable_x64(True):
    average = averaging.power_ema(lengths=(0.1, 0.2))
    states = states_of(average, 20, ITERATES[:60])
    got = average.reconstruct(states, length=0.15)
  basis = np.zeros((60, 6))
  for column, (time, length) in enumerate((t, each) for t in (20, 40, 60) for each in (0.1, 0.2)):
    basis[:time, column] = weights(exponent(length), time)
  shares = np.linalg.solve(basis.T @ basis, basis.T @ weights(exponent(0.15), 60))
  want = (basis @ shares / shares.sum()) @ ITERATES[:60]
  np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.thorough
def test_many_iterates_are_joined_to_parts_of_the_time():
  """The shares alone: of a walk of 10 iterates that each stand for 10 000."""
  with jax.enable_x64(True):
    average = averaging.power_ema()
    short = states_of(average, 10)
    long = [state._replace(count=state.count * 1000) for state in short]
    one, other = (average.reconstruct(states, length=0.08) for states in (short, long))
  np.testing.assert_allclose(other, one, rtol=1e-2)


def test_other_leaves_are_the_newest_and_narrow_ones_are_averaged_in_float32():
  average = averaging.power_ema()
  state, states = average.init({"w": jnp.zeros(2, jnp.bfloat16), "n": jnp.int32(7)}), []
  for number in range(1, 9):
    state = average.update(state, {"w": jnp.full(2, number, jnp.bfloat16), "n": jnp.int32(number)})
    states.append(state)
  for params in (average.params(state), average.reconstruct(states, length=0.06)):
    assert params["w"].dtype == np.float32
    assert params["n"] == 8
  want = weights(exponent(0.05), 8) @ np.arange(1, 9)
  np.testing.assert_allclose(average.params(state)["w"], want, rtol=1e-5)


def test_states_of_several_seeds_are_those_of_each_seed():
  average, starts = averaging.power_ema(), jnp.arange(6.0).reshape(3, 2)

  def states_from(start):
    iterates = [{"w": start * number, "n": jnp.int32(number)} for number in range(1, 9)]
    state, states = average.init(iterates[0]), []
    for params in iterates:
      state = average.update(state, params)
      states.append(state)
    return states

  together, single = jax.vmap(states_from)(starts), [states_from(start) for start in starts]
  for function in (lambda states: average.params(states[-1]), lambda s: average.reconstruct(s, length=0.07)):
    got = function(together)
    for seed, states in enumerate(single):
      chex.assert_trees_all_close(jax.tree.map(lambda leaf, seed=seed: leaf[seed], got), function(states))
  uneven = together[-1]._replace(count=jnp.array([8, 8, 7]))
  with pytest.raises(ValueError, match="states must have one count for all seeds, got \\[7, 8\\]"):
    average.reconstruct([uneven], length=0.07)


def test_refusals():
  with pytest.raises(ValueError, match="lengths must be two different numbers"):
    averaging.power_ema(lengths=(0.1, 0.1))
  with pytest.raises(ValueError, match="lengths must be two numbers, low and high"):
    averaging.power_ema(lengths=(0.1,))
  for length in (0.0, 0.3, float("nan")):
    with pytest.raises(ValueError, match="lengths must lie in"):
      averaging.power_ema(lengths=(0.1, length))
  average = averaging.power_ema()
  start = average.init(jnp.zeros(1))
  with pytest.raises(ValueError, match="states must hold at least one state"):
    average.reconstruct([], length=0.1)
  with pytest.raises(ValueError, match="states must have at least one iterate each"):
    average.reconstruct([start], length=0.1)
  state = average.update(start, jnp.ones(1))
  with pytest.raises(ValueError, match="length must lie in"):
    average.reconstruct([state], length=0.5)
  with pytest.raises(ValueError, match="params must have the shape given to init"):
    average.update(state, jnp.ones(2))

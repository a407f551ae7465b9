"""The soup against a greedy search in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxreg import averaging

NETWORKS = np.random.default_rng(0).normal(size=(9, 3)) + 0.3
TARGET = np.array([0.1, 0.2, -0.1])


def distance(params):
  return ((params["w"] - TARGET) ** 2).sum()


def cooked(average, networks):
  state = average.init({"w": jnp.zeros(3), "n": jnp.int32(0)})
  counts = []
  for number, network in enumerate(networks):
    state = average.update(state, {"w": jnp.asarray(network), "n": jnp.int32(number)})
    counts.append(int(state.count))
  return state, counts


def greedy(networks, score):
  """The networks of recipe 1, by index."""
  taken = []
  for number in range(len(networks)):
    old = score(networks[taken].mean(0)) if taken else np.inf
    if score(networks[[*taken, number]].mean(0)) <= old:
      taken.append(number)
  return taken


def test_the_greedy_soup_is_that_of_a_search_in_numpy():
  score = lambda w: ((w - TARGET) ** 2).sum()
  networks = NETWORKS[np.argsort([score(w) for w in NETWORKS])]
  want = greedy(networks, score)
  assert 2 < len(want) < 9
  with jax.enable_x64(True):
    for mode, sign in (("min", 1), ("max", -1)):
      average = averaging.soup(lambda params, sign=sign: sign * distance(params), mode=mode)
      state, counts = cooked(average, networks)
      assert [n for n, (old, new) in enumerate(zip([0, *counts], counts)) if new > old] == want
      np.testing.assert_allclose(average.params(state)["w"], networks[want].mean(0), rtol=1e-12)
      np.testing.assert_allclose(sign * state.score, score(networks[want].mean(0)), rtol=1e-12)
      assert state.params["n"] == want[-1]
  assert sign * state.score <= score(networks[0])  # never worse than the best network


def test_the_uniform_soup_is_the_mean():
  with jax.enable_x64(True):
    state, counts = cooked(averaging.soup(), NETWORKS)
  np.testing.assert_allclose(state.params["w"], NETWORKS.mean(0), rtol=1e-12)
  assert counts == [*range(1, 10)]


def test_ties_are_taken_and_nan_never_is():
  tie = averaging.soup(lambda params: 1.0)
  assert cooked(tie, NETWORKS)[1][-1] == 9
  networks = np.float32([[np.nan] * 3, [1, 1, 1], [np.nan] * 3, [0, 0, 0]])
  state, counts = cooked(averaging.soup(distance), networks)
  assert counts == [0, 1, 1, 2]
  np.testing.assert_array_equal(state.params["w"], 0.5)
  # A function outside of JAX scores as well.
  state, counts = cooked(averaging.soup(lambda params: float(np.abs(params["w"]).sum())), networks)
  assert counts == [0, 1, 1, 2]


def test_a_soup_is_a_state_of_jit_and_scan():
  average = averaging.soup(distance)
  networks = {"w": jnp.asarray(NETWORKS, jnp.bfloat16), "n": jnp.arange(9)}
  start = jax.tree.map(lambda leaf: leaf[0], networks)
  step = lambda state, one: (average.update(state, one), None)
  state, _ = jax.jit(lambda start, networks: jax.lax.scan(step, average.init(start), networks))(
    start, networks
  )
  wide = np.asarray(networks["w"], np.float64)
  taken = greedy(wide, lambda w: ((w - TARGET) ** 2).sum())
  assert state.params["w"].dtype == np.float32
  np.testing.assert_allclose(state.params["w"], wide[taken].mean(0), rtol=1e-5)


def test_refusals():
  with pytest.raises(ValueError, match="mode"):
    averaging.soup(distance, mode="least")
  average = averaging.soup(lambda params: params["w"])
  with pytest.raises(ValueError, match=r"score_fn must have shape \(\)"):
    cooked(average, NETWORKS)
  with pytest.raises(ValueError, match="params/w must have the shape given to init"):
    averaging.soup(distance).update(
      averaging.soup(distance).init({"w": jnp.zeros(3)}), {"w": jnp.zeros((2, 3))}
    )

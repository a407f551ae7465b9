"""Steps of a given length: against sampled directions, the multiplier, Optax, and every block and norm."""

import chex
import jax
import numpy as np
import optax
import pytest
from contract import jit

from jaxreg.optim import trust_region

EPS = 0.3


def step(tx, g):
  return jit(lambda g: tx.update(g, tx.init(g), g)[0])(g)


def tree(rng):
  return {
    "a": {"kernel": rng.normal(size=(3, 2)), "bias": rng.normal(size=2)},
    "b": {"kernel": rng.normal(size=(2, 2, 2, 4))},
  }


NORMS = {
  "l2": lambda v: np.sqrt((v**2).sum(-1)),
  "l1": lambda v: np.abs(v).sum(-1),
  "linf": lambda v: np.abs(v).max(-1),
  "rms": lambda v: np.sqrt((v**2).mean(-1)),
}


@pytest.mark.claim(
  "adaptive_sgd",
  "Trust Region Problem",
  "the step -eps J / norm(J) minimises the linearised loss in the ball",
  size="toy",
)
@pytest.mark.parametrize("norm", NORMS)
def test_beats_every_sampled_direction(norm, x64):
  rng = np.random.default_rng(0)
  g = -rng.normal(size=3)  # the largest entry is negative
  got = np.asarray(step(trust_region(EPS, norm=norm), g))
  np.testing.assert_allclose(NORMS[norm](got), EPS, rtol=1e-12)
  sampled = rng.normal(size=(200_000, 3)) ** 3  # near the axes too
  sampled *= EPS / NORMS[norm](sampled)[:, None]
  best = (sampled @ g).min()
  assert got @ g <= best + 1e-12
  np.testing.assert_allclose(got @ g, best, rtol=0.03)


@pytest.mark.claim(
  "adaptive_sgd", "Trust Region Problem", "stationarity: J + 2 lambda Delta = 0 with lambda = norm(J) / 2 eps"
)
def test_the_multiplier(x64):
  g = np.random.default_rng(1).normal(size=5)
  delta = np.asarray(step(trust_region(EPS), g))
  lam = np.linalg.norm(g) / (2 * EPS)
  np.testing.assert_allclose(g + 2 * lam * delta, 0, atol=1e-15)
  by_coordinate = np.asarray(step(trust_region(EPS, blocks="element"), g))
  np.testing.assert_allclose(g + 2 * np.abs(g) / (2 * EPS) * by_coordinate, 0, atol=1e-15)


@pytest.mark.claim(
  "adaptive_sgd", "Trust Region Problem", "the step's length is invariant to the size of the gradient"
)
@pytest.mark.parametrize("size", [1e-37, 1e-9, 1.0, 1e9, 1e37])
def test_length_is_the_radius(size):
  g = {"w": np.float32([[0.3, -0.4], [0.0, 1.2]]) * np.float32(size)}
  got = np.asarray(step(trust_region(EPS), g)["w"], np.float64)
  np.testing.assert_allclose(np.linalg.norm(got), EPS, rtol=1e-6)
  np.testing.assert_allclose(got, -EPS * np.float64([[0.3, -0.4], [0, 1.2]]) / 1.3, rtol=1e-6)


def test_no_epsilon_shortens_the_step():
  """Optax's default adds 1e-6 to the norm: at a norm of 2e-6 its step is 2/3 of the radius."""
  g = np.float32([2e-6, 0.0])
  np.testing.assert_allclose(step(trust_region(EPS), g), [-EPS, 0], rtol=1e-6)
  theirs = optax.chain(optax.normalize_by_update_norm(scale_factor=EPS), optax.scale(-1.0))
  np.testing.assert_allclose(step(theirs, g)[0] / -EPS, 2 / 3, rtol=1e-4)


@pytest.mark.thorough
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("blocks", ["global", "leaf", "unit", "element"])
def test_every_block_has_the_norm_of_the_region(blocks, norm, x64):
  g = tree(np.random.default_rng(2))
  got = jax.tree.map(np.asarray, step(trust_region(EPS, blocks=blocks, norm=norm), g))
  a, bias, b = got["a"]["kernel"], got["a"]["bias"], got["b"]["kernel"]
  groups = {
    "global": [np.concatenate([a.ravel(), bias, b.ravel()])],
    "leaf": [a.ravel(), bias, b.ravel()],
    "unit": [*a.T, bias, *b.reshape(-1, 4).T],
    "element": [a.reshape(-1, 1), bias.reshape(-1, 1), b.reshape(-1, 1)],
  }[blocks]
  for group in groups:
    np.testing.assert_allclose(NORMS[norm](group), EPS, rtol=1e-12)


@pytest.mark.claim(
  "adaptive_sgd",
  "Trust Region Problem, box",
  "a constraint on each coordinate gives -eps g_i / abs(g_i): sign SGD",
)
def test_one_coordinate_a_block_is_sign_descent():
  g = np.float32([2.0, -1e-30, 0.0])
  got = step(trust_region(EPS, blocks="element"), g)
  np.testing.assert_array_equal(got, step(optax.sign_sgd(EPS), g))
  np.testing.assert_array_equal(step(trust_region(EPS, norm="linf"), g), got)


def test_one_block_is_optax_without_its_epsilon(x64):
  g = tree(np.random.default_rng(3))
  theirs = optax.chain(optax.normalize_by_update_norm(scale_factor=EPS, eps=0.0), optax.scale(-1.0))
  chex.assert_trees_all_close(step(trust_region(EPS), g), step(theirs, g), rtol=1e-13)


@pytest.mark.claim(
  "adaptive_sgd",
  "Conclusions",
  "normalising per layer or tensor: -eps g_l / norm(g_l); the radius of LARS is proportional to norm(w_l)",
)
def test_leaves_have_steps_of_one_length(x64):
  g = tree(np.random.default_rng(4))
  got = step(trust_region(EPS, blocks="leaf"), g)
  want = jax.tree.map(lambda x: -EPS * x / np.linalg.norm(x.ravel()), g)
  chex.assert_trees_all_close(got, want, rtol=1e-13)
  params = jax.tree.map(lambda x: 5 * np.ones_like(x), g)
  lars = optax.chain(optax.scale_by_trust_ratio(), optax.scale(-EPS))
  theirs = jit(lambda g: lars.update(g, lars.init(params), params)[0])(g)
  lengths = [np.linalg.norm(np.ravel(x)) for x in jax.tree.leaves(theirs)]
  np.testing.assert_allclose(
    lengths, [EPS * np.linalg.norm(np.ravel(x)) for x in jax.tree.leaves(params)], rtol=1e-12
  )


@pytest.mark.thorough
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("blocks", ["global", "leaf", "unit", "element"])
def test_a_zero_gradient_is_no_step(blocks, norm):
  g = {"kernel": np.zeros((3, 2), np.float32), "empty": np.zeros((0, 2), np.float32)}
  for x in jax.tree.leaves(step(trust_region(EPS, blocks=blocks, norm=norm), g)):
    np.testing.assert_array_equal(x, 0)


@pytest.mark.thorough
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("blocks", ["global", "leaf", "unit", "element"])
def test_nan_stays_nan(blocks, norm):
  """As in `g / norm(g)` by itself: what hides it takes the step of a gradient that nobody has."""
  g = {"bias": np.ones(2, np.float32), "kernel": np.float32([[np.nan, 1.0], [1.0, 1.0]])}
  got = step(trust_region(EPS, blocks=blocks, norm=norm), g)
  block = "element" if norm == "linf" else blocks  # the sign, whatever the block
  lost = {
    "global": [[True, True], [True, True]],
    "leaf": [[True, True], [True, True]],
    "unit": [[True, False], [True, False]],
    "element": [[True, False], [False, False]],
  }[block]
  np.testing.assert_array_equal(np.isnan(got["kernel"]), lost)
  assert (np.isnan(got["bias"]) == (block == "global")).all()


def test_ties_share_the_step_of_the_l1_ball():
  got = step(trust_region(1.0, norm="l1"), np.float32([2.0, -2.0, 1.0, 0.0]))
  np.testing.assert_array_equal(got, [-0.5, 0.5, 0, 0])


@pytest.mark.thorough
@pytest.mark.claim(
  "adaptive_sgd", "practical solution", "expectations by running averages: -eps E[g] / norm(E[g])"
)
def test_running_averages_of_numerator_and_denominator(x64):
  rng = np.random.default_rng(6)
  mean = trust_region(EPS, numerator_decay=0.8)
  both = trust_region(EPS, blocks="unit", numerator_decay=0.8, denominator_decay=0.8)
  start = {"kernel": np.zeros((3, 2))}
  of_mean, of_both = mean.init(start), both.init(start)
  update = jit(lambda g, a, b: (mean.update(g, a), both.update(g, b)))
  first, second, weight = 0.0, 0.0, 0.0
  for _ in range(6):
    k = rng.normal(size=(3, 2))
    first, second, weight = 0.8 * first + 0.2 * k, 0.8 * second + 0.2 * (k**2).sum(0), 0.8 * weight + 0.2
    (a, of_mean), (b, of_both) = update({"kernel": k}, of_mean, of_both)
    np.testing.assert_allclose(a["kernel"], -EPS * first / np.linalg.norm(first), rtol=1e-12)
    np.testing.assert_allclose(
      b["kernel"], -EPS * (first / weight) / np.sqrt(second / weight)[None], rtol=1e-12
    )
    assert (np.linalg.norm(b["kernel"], axis=0) <= EPS * (1 + 1e-12)).all()


def test_rms_blocks_move_their_entries_alike(x64):
  g = {"small": np.ones(2), "large": np.ones(200)}
  got = step(trust_region(EPS, blocks="leaf", norm="rms", denominator_decay=0.9), g)
  np.testing.assert_allclose(got["small"][0], -EPS, rtol=1e-12)
  np.testing.assert_allclose(got["large"][0], -EPS, rtol=1e-12)


def test_refusals():
  with pytest.raises(ValueError, match="blocks must be one of global, leaf"):
    trust_region(0.1, blocks="layer")
  with pytest.raises(ValueError, match="norm must be one of"):
    trust_region(0.1, norm="l3")
  with pytest.raises(ValueError, match="denominator_decay must be None"):
    trust_region(0.1, norm="l1", denominator_decay=0.9)
  with pytest.raises(ValueError, match="numerator_decay must lie in"):
    trust_region(0.1, numerator_decay=-0.1)

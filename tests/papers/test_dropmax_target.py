"""Appendix A: what becomes of q(z_t = 1) where it is learnt, against an objective enumerated in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
import scipy.optimize
from contract import jit
from scipy.special import log_expit

from papers import dropmax

A = 1.2784645427610738
optimum = jit(dropmax.dropmax_optimal_target_logit)


@functools.cache
def learn(**static):
  return jit(functools.partial(dropmax.dropmax_learn_posterior, **static))


def random_inputs(seed, shape=(3,), classes=4):
  rng = np.random.default_rng(seed)
  o, ph, q = rng.normal(size=(3, *shape, classes)) * 1.5
  return o, ph, q, rng.integers(0, classes, shape)


def negative_bound(o, ph, q, t):
  """E_q[-log p(y | x, z)] + KL(q || p(z | x)) of one example, summed over masks."""
  masks = oracles.all_masks(len(o))
  weights = oracles.mask_probabilities(masks, oracles.sigmoid(q))
  nll = -np.log(oracles.masked_softmax(o, masks)[:, t])
  return weights @ nll + oracles.bernoulli_kl(q, ph).sum()


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16"])
def test_labels_may_be_narrow(dtype):
  o, ph, q, _ = random_inputs(3, (10,), classes=10)
  labels = np.arange(10)
  np.testing.assert_array_equal(optimum(o, ph, q, labels.astype(dtype)), optimum(o, ph, q, labels))


def log_evidence(o, ph, t):
  masks = oracles.all_masks(len(o))
  prior = oracles.mask_probabilities(masks, oracles.sigmoid(ph))
  return np.log(prior @ oracles.masked_softmax(o, masks)[:, t])


def with_target(q, t, a):
  return np.where(np.arange(len(q)) == t, a, q)


def low_start(a=-7.0):
  """A confident example at the equilibrium of section 1.7, from a target that is all but dropped."""
  o, ph, q = np.zeros((3, 6))
  o[0], ph[:], ph[0], q[0] = 3.0, -A, A, a
  return o, ph, q, 0


@pytest.mark.thorough
@pytest.mark.usefixtures("x64")
def test_optimal_target_logit_minimises_the_objective():
  o, ph, q, y = random_inputs(0, (2, 2))
  got = np.asarray(optimum(o, ph, q, y))
  others = np.asarray(optimum(o, ph, q + 5 * oracles.one_hot(y, 4), y))
  np.testing.assert_allclose(got, others, rtol=1e-12)  # the target's own logit is ignored
  for i in np.ndindex(2, 2):
    # The slope in a changes its sign at a*, by finite differences.
    at = lambda a, i=i: negative_bound(o[i], ph[i], with_target(q[i], y[i], a), y[i])
    slope = lambda a, at=at: (at(a + 1e-4) - at(a - 1e-4)) / 2e-4
    # sigma'(a) (a - a*), here at a = 0 and 1.
    for a in (0.0, 1.0):
      s = oracles.sigmoid(a)
      np.testing.assert_allclose(slope(a) / (s * (1 - s)), a - got[i], rtol=1e-6)


@pytest.mark.usefixtures("x64")
def test_optimal_target_is_kept_where_others_are():
  o, ph = np.zeros(6), np.zeros(6)
  assert float(optimum(o, ph, np.zeros(6), 0)) > 40
  assert oracles.sigmoid(-float(optimum(o, ph, np.zeros(6), 0))) < 1e-17


@pytest.mark.usefixtures("x64")
def test_optimal_target_beside_shut_others_is_not_kept():
  """It is p(z_t = 1 | x, y, others dropped), little above rho_t on a confident example."""
  o, ph, q, _ = low_start()
  q = np.full(6, -40.0)
  rho, dropped = oracles.sigmoid(A), oracles.softmax(o)[0]  # the likelihoods are 1 and softmax_t
  want = rho / (rho + (1 - rho) * dropped)
  got = oracles.sigmoid(float(optimum(o, ph, q, 0)))
  np.testing.assert_allclose(got, want, rtol=1e-9)
  assert rho < got < rho + 0.04
  best = scipy.optimize.minimize_scalar(
    lambda a: negative_bound(o, ph, with_target(q, 0, a), 0), bounds=(-5, 20), method="bounded"
  )
  np.testing.assert_allclose(oracles.sigmoid(best.x), want, rtol=1e-4)


@pytest.mark.thorough
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("what", ["target", "others", "all"])
def test_one_step_is_gradient_descent_on_the_objective(what):
  o, ph, q, y = random_inputs(1)
  path = learn(learn=what, num_steps=1)(o, ph, q, y, learning_rate=0.3)
  target = oracles.one_hot(y, 4) > 0
  moves = {"target": target, "others": ~target, "all": target | ~target}[what]
  start = np.where(target, 30.0, q) if what == "others" else q
  for i in range(3):
    numeric = scipy.optimize.approx_fprime(
      start[i], lambda x, i=i: negative_bound(o[i], ph[i], x, y[i]), 1e-7
    )
    np.testing.assert_allclose(path["gradient"][0, i], np.where(moves[i], numeric, 0), rtol=1e-4, atol=2e-5)
    want = negative_bound(o[i], ph[i], start[i], y[i]) + log_evidence(o[i], ph[i], y[i])
    np.testing.assert_allclose(path["gap"][0, i], want, rtol=1e-9)
  first, second = path["posterior_logits"]
  np.testing.assert_allclose(first[moves], q[moves], rtol=1e-15)
  np.testing.assert_allclose(second[moves], (first - 0.3 * path["gradient"][0])[moves], rtol=1e-12)
  np.testing.assert_array_equal(second[~moves], first[~moves])
  if what == "others":
    np.testing.assert_array_equal(oracles.sigmoid(first[target]), 1)


@pytest.mark.thorough
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("rate", [0.1, 1.0, 4.0])
@pytest.mark.claim(
  "dropmax",
  "appendix, A",
  "to learn q(z_t) is severely unstable: in the exact objective it is convex and bounded, alone it is stable",
  status="erratum",
  size="toy",
)
def test_learning_the_target_alone_is_stable(rate):
  """From any start it goes towards the optimum, never past it, and the gap never grows."""
  starts = np.array([-20.0, -9.0, -3.0, 0.0, 3.0, 30.0, 60.0])
  o, ph, q = (np.tile(x, (7, 1)) for x in low_start()[:3])
  q[:, 0] = starts
  path = learn(learn="target", num_steps=60)(o, ph, q, np.zeros(7, int), learning_rate=rate)
  best = np.asarray(optimum(o, ph, q, np.zeros(7, int)))
  left = np.asarray(path["posterior_logits"])[:, :, 0] - best
  assert (left * np.sign(left[0]) >= -1e-9).all()
  assert (np.abs(left[1:]) <= np.abs(left[:-1]) + 1e-9).all()
  assert (np.diff(np.asarray(path["gap"]), axis=0) <= 1e-9).all()


@pytest.mark.thorough
@pytest.mark.usefixtures("x64")
@pytest.mark.claim(
  "dropmax",
  "appendix, A",
  "fixing q(z_t) = 1 helps: all learned together can end in a second optimum",
  size="toy",
)
def test_learning_everything_has_a_second_optimum():
  """From a low q_t the others shut before it recovers; with q_t = 1 the same start finds the best."""
  starts = [low_start(a)[2] for a in (-9.0, -7.0, -6.0, 0.0)]
  o, ph, q = np.tile(low_start()[0], (4, 1)), np.tile(low_start()[1], (4, 1)), np.stack(starts)
  y = np.zeros(4, int)
  both = learn(learn="all", num_steps=1500)(o, ph, q, y)
  fixed = learn(learn="others", num_steps=1500)(o, ph, q, y)
  np.testing.assert_allclose(fixed["gap"][-1], 0.0664, atol=1e-4)
  np.testing.assert_allclose(both["gap"][-1], [1.042, 1.042, 1.042, 0.0665], atol=2e-3)
  stuck = oracles.sigmoid(np.asarray(both["posterior_logits"])[-1, :3])
  np.testing.assert_allclose(stuck[:, 0], 0.82, atol=0.02)
  assert stuck[:, 1:].max() < 1e-3
  assert np.abs(np.asarray(both["gradient"])[-1, :3]).max() < 1e-3


def at_extreme_logits(o, ph, q, t):
  """The gap of one example, its gradient in q, and the best logit of the target, from log-probabilities."""
  masks, g = oracles.all_masks(len(o)), oracles.sigmoid(q)
  log_mask = lambda a: np.where(masks > 0, log_expit(a), log_expit(-oracles.f64(a))).sum(-1)
  nll = -oracles.masked_log_softmax(o)[:, t]
  weights, q = np.exp(log_mask(q)), oracles.f64(q)
  kl = g * (log_expit(q) - log_expit(ph)) + (1 - g) * (log_expit(-q) - log_expit(-ph))
  gap = weights @ nll + kl.sum() + np.logaddexp.reduce(log_mask(ph) - nll)
  gradient = (weights * nll) @ (masks - g) + g * (1 - g) * (q - ph)
  kept = masks[:, t] > 0
  others = oracles.mask_probabilities(np.delete(masks[kept], t, 1), np.delete(g, t))
  best = ph[t] + others @ (nll[~kept] - nll[kept])
  return gap, gradient, best


@pytest.mark.thorough
def test_values_at_extreme_logits():
  for seed in range(3):
    rng = np.random.default_rng(seed)
    o, ph, q = rng.choice([-1e4, 0.0, 1e4], (3, 4, 4)).astype(np.float32)
    y = rng.integers(0, 4, 4)
    best = [at_extreme_logits(*row)[2] for row in zip(o, ph, q, y)]
    np.testing.assert_allclose(optimum(o, ph, q, y), best, rtol=1e-5, atol=1e-2)
    target = oracles.one_hot(y, 4) > 0
    for what in ("all", "others"):
      path = jax.device_get(learn(learn=what, num_steps=2)(o, ph, q, y))
      moves = target | ~target if what == "all" else ~target
      for logits, gradient, gap in zip(path["posterior_logits"], path["gradient"], path["gap"]):
        want = [at_extreme_logits(*row) for row in zip(o, ph, logits, y)]
        np.testing.assert_allclose(gap, [row[0] for row in want], rtol=1e-5, atol=2e-2)
        np.testing.assert_allclose(
          gradient, np.where(moves, [row[1] for row in want], 0), rtol=1e-5, atol=2e-2
        )
      moved = path["posterior_logits"][:-1] - path["gradient"][:-1]
      np.testing.assert_allclose(path["posterior_logits"][1:][:, moves], moved[:, moves], rtol=1e-5)


def test_options_out_of_range_are_refused():
  o, y = jnp.zeros((2, 3), jnp.bfloat16), jnp.zeros(2, int)
  path = jax.eval_shape(functools.partial(dropmax.dropmax_learn_posterior, num_steps=2), o, o, o, y)
  assert {name: (x.shape, x.dtype) for name, x in path.items()} == {
    "posterior_logits": ((3, 2, 3), jnp.float32),
    "gradient": ((3, 2, 3), jnp.float32),
    "gap": ((3, 2), jnp.float32),
  }
  for option, value in (("learn", "none"), ("learning_rate", -1.0), ("num_steps", 0)):
    with pytest.raises(ValueError, match=option):
      dropmax.dropmax_learn_posterior(o, o, o, y, **{option: value})

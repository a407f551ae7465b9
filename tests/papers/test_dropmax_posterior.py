"""Appendix A: the exact posterior over masks and the cost of a factorised one, by Bayes' rule in float64."""

import functools
import math

import jax
import numpy as np
import oracles
import pytest
from contract import jit
from scipy.special import log_expit

from papers import dropmax

A = 1.2784645427610738
PENALTY = -math.log(1e-20)
mean_field = jit(dropmax.dropmax_mean_field)


@functools.cache
def posterior(**options):
  return jit(functools.partial(dropmax.dropmax_mask_posterior, **options))


@functools.cache
def marginals(**options):
  return jit(functools.partial(dropmax.dropmax_marginal_logits, **options))


def random_inputs(seed, shape=(3,), classes=5):
  rng = np.random.default_rng(seed)
  o, ph, q = rng.normal(size=(3, *shape, classes)) * 1.5
  return o, ph, q, rng.integers(0, classes, shape)


def likelihoods(o, t):
  return oracles.masked_softmax(o, oracles.all_masks(len(o)))[:, t]


def bayes(o, ph, t):
  """`p(z | x, y)` of every mask of `oracles.all_masks`, and `p(y | x)`."""
  joint = likelihoods(o, t) * oracles.mask_probabilities(oracles.all_masks(len(o)), oracles.sigmoid(ph))
  return joint / joint.sum(), joint.sum()


def ours(classes):
  """The row of each mask of `oracles.all_masks` among ours."""
  return (oracles.all_masks(classes) @ 2 ** np.arange(classes)).astype(int)


def kl(p, q):
  return np.sum(np.where(p > 0, p * (np.log(np.where(p > 0, p, 1)) - np.log(q)), 0))


@pytest.mark.thorough
@pytest.mark.usefixtures("x64")
@pytest.mark.claim(
  "dropmax",
  "appendix, Eq. 2, 4",
  "the posterior over masks by the rule of Bayes, against the sum over all masks",
  size="enumeration",
)
def test_equation_2_and_4_are_bayes_rule():
  o, ph, _, y = random_inputs(0, (2, 2))
  log_posterior = np.asarray(posterior()(o, ph, y))
  without = np.exp(posterior(exclude_all_dropped=True)(o, ph, y))
  for i in np.ndindex(2, 2):
    want = bayes(o[i], ph[i], y[i])[0]
    np.testing.assert_allclose(np.exp(log_posterior[i][ours(5)]), want, rtol=1e-10)
    want[0] = 0  # all dropped comes first in both orders
    np.testing.assert_allclose(without[i][ours(5)], want / want.sum(), rtol=1e-10)


@pytest.mark.usefixtures("x64")
@pytest.mark.claim(
  "dropmax",
  "appendix, Eq. 1",
  "a mask that drops the target and keeps another class has no posterior probability, up to eps",
  size="enumeration",
)
def test_equation_1_a_dropped_target_is_all_but_impossible():
  o, ph, _, y = random_inputs(1, ())
  log_posterior = np.asarray(posterior()(o, ph, y))[ours(5)]
  masks = oracles.all_masks(5)
  impossible = (masks[:, y] == 0) & (masks.sum(-1) > 0)
  assert (np.exp(log_posterior[impossible]) < 1e-17).all()
  assert (np.exp(log_posterior[~impossible]) > 1e-6).all()


@pytest.mark.usefixtures("x64")
@pytest.mark.claim("dropmax", "appendix, Eq. 3", "with all classes dropped the likelihood is the softmax")
def test_equation_3_all_dropped_is_the_softmax():
  """So its posterior probability is softmax_t(o) prod (1 - rho) / p(y | x)."""
  o, ph, _, y = random_inputs(2, ())
  want = oracles.softmax(o)[y] * np.prod(oracles.sigmoid(-ph)) / bayes(o, ph, y)[1]
  np.testing.assert_allclose(np.exp(posterior()(o, ph, y))[0], want, rtol=1e-10)


@pytest.mark.thorough
@pytest.mark.usefixtures("x64")
@pytest.mark.claim(
  "dropmax", "appendix, Observation 2", "p(z_t = 1 given x, y, z != 0) goes to 1", size="enumeration"
)
def test_observation_2_the_target_is_kept_unless_all_are_dropped():
  o, ph, _, y = random_inputs(3)
  sure = np.asarray(marginals(exclude_all_dropped=True)(o, ph, y))
  plain = oracles.sigmoid(marginals()(o, ph, y))
  for i in range(3):
    p, _ = bayes(o[i], ph[i], y[i])
    masks = oracles.all_masks(5)
    np.testing.assert_allclose(plain[i], p @ masks, rtol=1e-10)
    np.testing.assert_allclose(plain[i, y[i]], 1 - p[0], rtol=1e-12)
    odds = (p[1:] @ masks[1:]) / (p[1:] @ (1 - masks[1:]))
    np.testing.assert_allclose(sure[i], np.log(odds), rtol=1e-9)
    assert 1 / (1 + np.exp(sure[i, y[i]])) < 1e-16  # p(z_t = 0 | x, y, z != 0)


@pytest.mark.thorough
@pytest.mark.parametrize(("classes", "share"), [(3, 0.146), (10, 0.030)])
@pytest.mark.claim(
  "dropmax",
  "appendix, Observation 2",
  "the mask that drops all classes can be neglected: it has 3 % (10 classes) to 15 % (3) probability",
  status="erratum",
  size="enumeration",
)
def test_all_dropped_is_not_insignificant(classes, share):
  """At the equilibrium of section 1.7, on a confident example."""
  o, ph = np.zeros(classes, np.float32), np.full(classes, -A, np.float32)
  o[0], ph[0] = 30.0, A
  np.testing.assert_allclose(oracles.sigmoid(-marginals()(o, ph, 0)[0]), share, atol=5e-4)


@pytest.mark.thorough
@pytest.mark.usefixtures("x64")
def test_mean_field_terms_are_sums_over_masks():
  o, ph, q, y = random_inputs(4, (2, 2))
  got = mean_field(o, ph, q, y)
  masks = oracles.all_masks(5)
  for i in np.ndindex(2, 2):
    g, rho = oracles.sigmoid(q[i]), oracles.sigmoid(ph[i])
    weights, prior = (oracles.mask_probabilities(masks, x) for x in (g, rho))
    exact, evidence = bayes(o[i], ph[i], y[i])
    nll = -np.log(likelihoods(o[i], y[i]))
    on = masks[:, y[i]] == 1
    others = np.where(on, weights / g[y[i]], weights / (1 - g[y[i]]))
    want = {
      "nll": weights @ nll,
      "kl": oracles.bernoulli_kl(q[i], ph[i]).sum(),
      "log_evidence": np.log(evidence),
      "gap": kl(weights, exact),
      "deviation_kept": kl(others[on], exact[on] / exact[on].sum()),
      "deviation_dropped": kl(others[~on], exact[~on] / exact[~on].sum()),
      "nll_std": math.sqrt(weights @ (nll - weights @ nll) ** 2),
    }
    assert got.keys() == want.keys()
    assert np.isclose(kl(weights, prior), want["kl"])
    for name in want:
      np.testing.assert_allclose(got[name][i], want[name], rtol=1e-10, atol=1e-12, err_msg=name)


def test_a_sure_posterior_has_no_deviation_and_a_finite_gradient():
  o, ph, _, y = random_inputs(7, ())
  value, slope = jax.jit(jax.value_and_grad(lambda q: dropmax.dropmax_mean_field(o, ph, q, y)["nll_std"]))(
    np.float32([1e4, -1e4, 1e4, -1e4, 1e4])
  )
  assert value == 0
  np.testing.assert_array_equal(slope, 0)


@pytest.mark.usefixtures("x64")
def test_the_negative_bound_is_the_gap_less_the_evidence():
  got = mean_field(*random_inputs(5))
  np.testing.assert_allclose(got["nll"] + got["kl"], got["gap"] - got["log_evidence"], rtol=1e-12)


@pytest.mark.usefixtures("x64")
def test_the_gap_is_a_chain_of_deviations():
  o, ph, q, y = random_inputs(6)
  got = mean_field(o, ph, q, y)
  pick = lambda x: (x * oracles.one_hot(y, 5)).sum(-1)
  g = oracles.sigmoid(pick(q))
  own = oracles.bernoulli_kl(pick(q), pick(marginals()(o, ph, y)))
  chain = own + g * got["deviation_kept"] + (1 - g) * got["deviation_dropped"]
  np.testing.assert_allclose(got["gap"], chain, rtol=1e-10)


@pytest.mark.thorough
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("other", [-30.0, -8.0, -3.0, 0.0, 3.0])
@pytest.mark.claim(
  "dropmax", "appendix, A", "how far a mean-field q deviates that drops the target", size="enumeration"
)
def test_a_dropped_target_deviates_by_46_nats_times_another_kept(other):
  """Appendix A: by the amount q of the others deviates from Ber(0)."""
  classes = 6
  q = np.full(classes, other)
  got = float(mean_field(np.zeros(classes), np.zeros(classes), q, 0)["deviation_dropped"])
  kept = 1 - oracles.sigmoid(-other) ** (classes - 1)
  # The rest is of the order of the masks' own entropy and of log K.
  assert abs(got - PENALTY * kept) <= 5 * kept * (math.log(2) + math.log(classes)) + 1e-9
  if other == -30:
    assert got < 1e-9


def at_extreme_logits(o, ph, q, t):
  """Posterior, marginals, mean field and the gap's slope in `q` of one example, from log-probabilities."""
  masks, g, q, ph = oracles.all_masks(5), oracles.sigmoid(q), oracles.f64(q), oracles.f64(ph)
  each = lambda a: np.where(masks > 0, log_expit(a), log_expit(-a))
  nll, kept = -oracles.masked_log_softmax(o)[:, t], masks[:, t] > 0
  joint, log_q, log_others = each(ph).sum(-1) - nll, each(q).sum(-1), np.delete(each(q), t, 1).sum(-1)
  log_sum = np.logaddexp.reduce
  weights, evidence = np.exp(log_q), log_sum(joint)
  odds = [log_sum(joint[masks[:, k] > 0]) - log_sum(joint[masks[:, k] == 0]) for k in range(5)]
  away = lambda half: np.exp(log_others[half]) @ (log_others - joint)[half] + log_sum(joint[half])
  terms = {
    "nll": weights @ nll,
    "kl": weights @ (log_q - joint - nll),
    "log_evidence": evidence,
    "gap": weights @ (log_q - joint) + evidence,
    "deviation_kept": away(kept),
    "deviation_dropped": away(~kept),
    "nll_std": math.sqrt(weights @ (nll - weights @ nll) ** 2),
  }
  return joint - evidence, np.array(odds), terms, (weights * nll) @ (masks - g) + g * (1 - g) * (q - ph)


@pytest.mark.thorough
def test_certain_masks_and_values_at_extreme_logits():
  slopes = jit(jax.grad(lambda *a: sum(x.sum() for x in dropmax.dropmax_mean_field(*a).values()), (0, 1, 2)))
  of_gap = jit(jax.grad(lambda q, o, ph, y: dropmax.dropmax_mean_field(o, ph, q, y)["gap"].sum()))
  for seed in range(3):
    rng = np.random.default_rng(seed)
    o, ph, q = rng.choice([-1e4, 0.0, 1e4], (3, 4, 5)).astype(np.float32)
    y = rng.integers(0, 5, 4)
    assert all(np.isfinite(x).all() for x in slopes(o, ph, q, y))
    log_posterior = np.asarray(posterior()(o, ph, y))[:, ours(5)]
    terms = mean_field(o, ph, q, y)
    found = log_posterior, marginals()(o, ph, y), terms, of_gap(q, o, ph, y)
    for i, row in enumerate(zip(o, ph, q, y)):
      want = at_extreme_logits(*row)
      assert terms.keys() == want[2].keys()
      got = jax.tree.map(lambda x, i=i: np.asarray(x)[i], found)
      # Near 1e4, two neighbours in float32 are 1e-3 apart.
      jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=2e-2), got, want)
  o, ph, _, y = random_inputs(7)
  far, infinite = (
    mean_field(*(np.asarray(x, np.float32) for x in (o, ph, np.where(oracles.one_hot(y, 5), b, ph))), y)
    for b in (1e3, np.inf)
  )
  for name in far:
    np.testing.assert_allclose(far[name], infinite[name], rtol=1e-6, err_msg=name)

"""DropMax's expected likelihood against float64 sums over masks, and its samplers against both."""

import functools
import inspect
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
import scipy.stats
from contract import jit
from scipy.special import logit

from jaxreg import losses
from papers import dropmax

K = 10
# Section 5.5: o_t, o_1 and g; exact E NLL and gradient in qh_1 with the score function's standard deviation;
# at three temperatures E NLL, and the mean and standard deviation of the gradient. Target 0, 200k draws.
TABLE = {
  "easy": (3.0, 0.0, 0.2, (0.0843, 0.0072, 0.049)),
  "even": (0.0, 0.0, 0.5, (1.6625, 0.0495, 0.84)),
  "wrong": (0.0, 4.0, 0.2, (1.490, 0.511, 1.36)),
  "wrong and nearly shut": (0.0, 4.0, 0.02, (0.186, 0.077, 0.55)),
}
RELAXED = {
  ("easy", 0.1): (0.0852, 0.0073, 0.022),
  ("easy", 0.5): (0.0978, 0.0071, 0.0076),
  ("easy", 1.0): (0.1188, 0.0061, 0.0035),
  ("even", 0.1): (1.668, 0.0482, 0.122),
  ("even", 0.5): (1.683, 0.0407, 0.036),
  ("even", 1.0): (1.692, 0.0310, 0.015),
  ("wrong", 0.1): (1.599, 0.563, 1.51),
  ("wrong", 0.5): (2.146, 0.598, 0.469),
  ("wrong", 1.0): (2.643, 0.450, 0.173),
  ("wrong and nearly shut", 0.1): (0.212, 0.095, 0.70),
  ("wrong and nearly shut", 0.5): (0.477, 0.247, 0.41),
  ("wrong and nearly shut", 1.0): (1.188, 0.398, 0.23),
}
DRAWS, THEIRS = 100_000, 200_000


@functools.cache
def expected(target="kept"):
  return jit(functools.partial(dropmax.dropmax_expected_nll, target=target))


@functools.cache
def expected_and_slopes(target="kept"):
  nll = lambda o, q, y: dropmax.dropmax_expected_nll(o, q, y, target=target).sum()
  return jit(jax.value_and_grad(nll, argnums=(0, 1)))


def enumerated(o, g, t, target="kept"):
  """Of one example: E NLL, its variance, its gradients in o and logit g, the score function's variances."""
  masks, keep = oracles.all_masks(len(o)), np.array(g, np.float64)
  if target == "kept":
    masks, keep[t] = masks[masks[:, t] == 1], 1.0
  weights = oracles.mask_probabilities(masks, keep)
  probs = oracles.masked_softmax(o, masks)
  nll = -np.log(probs[:, t])
  mean, score = weights @ nll, nll[:, None] * (masks - keep)
  in_keep = weights @ score
  spread = weights @ score**2 - in_keep**2
  return mean, weights @ (nll - mean) ** 2, weights @ probs - oracles.one_hot(t, len(o)), in_keep, spread


def random_inputs(seed, shape=(4,), classes=5):
  rng = np.random.default_rng(seed)
  o, q = rng.normal(size=(2, *shape, classes)) * 2
  return o, q, rng.integers(0, classes, shape)


def digit(x):
  """Half a unit in the last place that the table prints."""
  return 0.51 * 10.0 ** -(len(str(x)) - 1 - str(x).index("."))


def row_of(name):
  o_t, o_1, g, _ = TABLE[name]
  o = np.zeros(K)
  o[:2] = o_t, o_1
  return o, np.full(K, g)


@pytest.mark.parametrize("classes", [1, 2, 5])
def test_masks_are_all_of_them_once(classes):
  masks = np.asarray(dropmax.dropmax_masks(classes))
  assert masks.shape == (2**classes, classes)
  assert masks.dtype == bool
  assert {tuple(m) for m in masks} == set(itertools.product((False, True), repeat=classes))
  np.testing.assert_array_equal(masks @ 2 ** np.arange(classes), np.arange(2**classes))


def test_sixteen_classes_are_the_limit():
  assert jax.eval_shape(lambda: dropmax.dropmax_masks(16)).shape == (65536, 16)
  with pytest.raises(ValueError, match=r"at most 16, got 17.*2\^K"):
    dropmax.dropmax_masks(17)
  with pytest.raises(ValueError, match="at most 16"):
    dropmax.dropmax_expected_nll(jnp.zeros(17), jnp.zeros(17), jnp.array(0))


@pytest.mark.thorough
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("target", ["kept", "sampled"])
def test_expected_nll_is_the_sum_over_masks(target):
  o, q, y = random_inputs(0, (2, 3))
  value = expected(target)(o, q, y)
  _, (in_o, in_q) = expected_and_slopes(target)(o, q, y)
  for i in np.ndindex(2, 3):
    mean, _, want_o, want_q, _ = enumerated(o[i], oracles.sigmoid(q[i]), y[i], target)
    np.testing.assert_allclose(value[i], mean, rtol=1e-12)
    np.testing.assert_allclose(in_o[i], want_o, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(in_q[i], want_q, rtol=1e-10, atol=1e-12)


@pytest.mark.thorough
def test_a_kept_target_has_no_gradient():
  o, q, y = (x.astype(np.float32) if x.dtype == float else x for x in random_inputs(1))
  slopes = np.asarray(expected_and_slopes()(o, q, y)[1][1])
  target = oracles.one_hot(y, 5) > 0
  np.testing.assert_array_equal(slopes[target], 0)
  assert (slopes[~target] > 0).all()  # the likelihood only pushes the others' masks down


def test_the_target_is_kept_by_default():
  assert inspect.signature(dropmax.dropmax_expected_nll).parameters["target"].default == "kept"


def test_limits_of_the_expected_nll():
  o, _, y = (x.astype(np.float32) if x.dtype == float else x for x in random_inputs(2))
  for certain in (1e4, np.inf):
    keep = np.full_like(o, certain)
    for target in ("kept", "sampled"):
      np.testing.assert_allclose(expected(target)(o, keep, y), oracles.cross_entropy(o, y), rtol=1e-5)
    np.testing.assert_allclose(expected()(o, -keep, y), 0, atol=1e-17)  # eps
    # All dropped: the ordinary softmax again.
    np.testing.assert_allclose(expected("sampled")(o, -keep, y), oracles.cross_entropy(o, y), rtol=1e-5)


def test_sixteen_equal_classes_are_a_binomial():
  """log(1 + the number of others kept), in closed form at the largest size."""
  number = np.arange(16)
  chances = scipy.stats.binom.pmf(number, 15, 0.3)
  got = expected()(np.zeros((3, 16), np.float32), np.full((3, 16), logit(0.3), np.float32), np.arange(3))
  np.testing.assert_allclose(got, chances @ np.log1p(number), rtol=2e-5)


def test_a_dropped_target_costs_minus_log_eps():
  """46 nats times the probability that the target is dropped and another is not."""
  o, keep = np.zeros(4, np.float32), np.array([0.9, 0.5, 0.5, 0.5])
  gap = expected("sampled")(o, logit(keep).astype(np.float32), 0) - 0.9 * expected()(
    o, logit(keep).astype(np.float32), 0
  )
  others_kept = 1 - 0.5**3
  counts = np.array([1, 3, 3, 1]) / 8  # how many of the others are kept
  want = 0.1 * (others_kept * -math.log(1e-20) + counts[1:] @ np.log([1, 2, 3]) + counts[0] * math.log(4))
  np.testing.assert_allclose(gap, want, rtol=1e-5)


def test_values_and_gradients_at_extreme_logits():
  for seed in range(3):
    rng = np.random.default_rng(seed)
    o, q = rng.choice([-1e4, 0.0, 1e4], (2, 4, 5)).astype(np.float32)
    for target in ("kept", "sampled"):
      y = rng.integers(0, 5, 4)
      value, slopes = expected_and_slopes(target)(o, q, y)
      total, in_logits, in_keep = 0.0, [], []
      for o_i, g, t in zip(o, oracles.sigmoid(q), y):
        g[t] = 1 if target == "kept" else g[t]
        log_probs, masks = oracles.masked_log_softmax(o_i), oracles.all_masks(5)
        weighted = oracles.mask_probabilities(masks, g)[:, None]
        loss = -weighted * log_probs[:, t : t + 1]
        total += loss.sum()
        in_logits.append((weighted * np.exp(log_probs)).sum(0) - oracles.one_hot(t, 5))
        in_keep.append((loss * (masks - g)).sum(0))
      np.testing.assert_allclose(value, total, rtol=1e-5, atol=1e-2)
      np.testing.assert_allclose(slopes[0], in_logits, atol=1e-6)
      np.testing.assert_allclose(slopes[1], in_keep, rtol=1e-5, atol=1e-2)


# Section 5.5: what the sampler estimates.


@pytest.mark.thorough
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", TABLE)
def test_section_5_5_exact_column(name):
  o, g = row_of(name)
  exact, exact_grad, score_std = TABLE[name][3]
  value, (_, slope) = expected_and_slopes()(o, logit(g), 0)
  assert abs(value - exact) <= digit(exact)
  assert abs(slope[1] - exact_grad) <= digit(exact_grad)
  mean, _, _, in_q, spread = enumerated(o, g, 0)
  np.testing.assert_allclose([value, slope[1]], [mean, in_q[1]], rtol=1e-10)
  assert abs(math.sqrt(spread[1]) - score_std) <= 2 * digit(score_std)


@jit
def one_gradient_a_draw(key, o, posterior, temperature):
  """`draws -> values, gradients in qh, gradients in o`, each of its own mask."""
  many, logits = (jnp.broadcast_to(x, (DRAWS, K)) for x in (posterior[None], o[None]))

  def nll(logits, q):
    labels = jnp.zeros(DRAWS, int)
    return losses.dropmax_terms(key, logits, q, q, labels, posterior_logits=q, temperature=temperature)["nll"]

  values, pull = jax.vjp(nll, logits, many)
  in_o, in_q = pull(jnp.ones(DRAWS))
  return values, in_q[:, 1], in_o[:, 0]


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "temperature"), RELAXED)
@pytest.mark.claim(
  "dropmax",
  "section 4.2",
  "mean and spread of the relaxed gradient at temperatures 0.1, 0.5 and 1",
  size="enumeration",
)
@pytest.mark.claim(
  "dropmax",
  "section 4.2",
  "the relaxed estimator against the sum over all masks: bias and spread",
  size="enumeration",
)
def test_section_5_5_relaxed_columns(name, temperature):
  o, g = row_of(name)
  relaxed, relaxed_grad, std = RELAXED[name, temperature]
  draws = one_gradient_a_draw(
    jax.random.key(1), jnp.asarray(o, jnp.float32), jnp.asarray(logit(g), jnp.float32), temperature
  )
  values, gradients, in_o = (np.asarray(x, np.float64) for x in draws)
  # The table's means carry the error of their draws, ours that of ours.
  error = lambda x: 4 * math.sqrt(1 / DRAWS + 1 / THEIRS) * x.std()
  assert abs(values.mean() - relaxed) <= error(values) + digit(relaxed)
  assert abs(gradients.mean() - relaxed_grad) <= error(gradients) + digit(relaxed_grad)
  squared = (gradients - gradients.mean()) ** 2
  assert abs(gradients.std() - std) <= error(squared) / (2 * gradients.std()) + digit(std)
  if temperature == 0.1:
    # The bias is small and has a sign: a soft mask never lets the wrong class off completely.
    mean, _, _, in_q, _ = enumerated(o, g, 0)
    assert -error(values) <= values.mean() - mean <= 0.15 * mean
    assert abs(gradients.mean() - in_q[1]) <= 0.25 * abs(in_q[1])
  if name == "wrong and nearly shut":
    table = {0.1: -0.110, 0.5: -0.275, 1.0: -0.620}
    assert abs(in_o.mean() - table[temperature]) <= error(in_o) + 5.1e-4


@pytest.mark.thorough
@pytest.mark.usefixtures("x64")
def test_section_5_5_the_bias_grows_with_the_temperature():
  """The exact derivative in o_t that the three estimates above are beside."""
  o, g = row_of("wrong and nearly shut")
  assert abs(expected_and_slopes()(o, logit(g), 0)[1][0][0] - -0.094) <= 5.1e-4


@pytest.mark.thorough
@pytest.mark.claim("dropmax", "section 4.2", "S masks divide the variance by S", size="enumeration")
def test_averaging_masks_divides_the_variance_by_their_number():
  o, g = row_of("wrong")
  rows, samples = 20_000, (1, 8)
  logits = jnp.broadcast_to(jnp.asarray(o, jnp.float32), (rows, K))
  posterior = jnp.broadcast_to(jnp.asarray(logit(g), jnp.float32), (rows, K))
  labels = jnp.zeros(rows, int)

  @functools.partial(jit, static_argnames="number")
  def gradients(key, number):
    nll = lambda q: losses.dropmax_terms(
      key, logits, q, q, labels, posterior_logits=q, temperature=0.5, num_samples=number
    )["nll"].sum()
    return jax.grad(nll)(posterior)[:, 1]

  spread, error = [], []
  for number in samples:
    x = np.asarray(gradients(jax.random.key(number), number), np.float64)
    squared = (x - x.mean()) ** 2 * number
    spread.append(squared.mean())
    error.append(squared.std() / math.sqrt(rows))
  assert abs(spread[1] - spread[0]) <= 4 * math.hypot(error[0], error[1])
  assert max(error) < 0.02 * spread[0]  # so that a factor of two would be seen

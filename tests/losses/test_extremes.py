"""Losses in float32 at extreme arguments, against float64 NumPy and closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
import scipy.integrate
from cases_losses import bi_tempered, tempered_probs

from jaxreg import losses

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(5, 4)).astype(np.float32)
LABELS = np.array([0, 1, 2, 3, 0])


def gradient(function, *arguments):
  """The values, and the gradients of their sum in all arguments."""
  total = lambda *x: function(*x).sum()
  numbers = range(len(arguments))
  return function(*arguments), jax.grad(total, argnums=tuple(numbers))(*arguments)


@pytest.mark.parametrize("size", [1e-6, 1e-4, 1e-2, 0.1, 1.0])
def test_the_gradient_of_the_entropy_of_a_nearly_uniform_prediction(size):
  logits = (size * LOGITS).astype(np.float32)
  p = oracles.softmax(logits.astype(np.float64))
  entropy = -(p * np.log(p)).sum(-1, keepdims=True)
  value, (slope,) = gradient(losses.entropy, logits)
  np.testing.assert_allclose(value, entropy[:, 0], rtol=1e-6)
  np.testing.assert_allclose(slope, -p * (np.log(p) + entropy), rtol=1e-5, atol=1e-5 * size)


@pytest.mark.parametrize("size", [1e-6, 1e-3, 1.0])
def test_the_consistency_of_predictions_that_nearly_agree(size):
  other = (size * LOGITS[::-1]).astype(np.float32)
  logits = (other + 1e-3 * size * LOGITS).astype(np.float32)
  p, q = (oracles.softmax(x.astype(np.float64)) for x in (logits, other))
  weights = p * (p - q)
  slope = 2 / 4 * (weights - p * weights.sum(-1, keepdims=True))
  value, (got, _) = gradient(losses.consistency, logits, other)
  np.testing.assert_allclose(value, np.square(p - q).mean(-1), rtol=1e-4)
  np.testing.assert_allclose(got, slope, rtol=1e-4, atol=1e-4 * np.abs(slope).max())


@pytest.mark.parametrize(("near", "far"), [(14, 16), (16, 18), (20, 23), (30, 31), (1, 80)])
def test_the_consistency_of_nearly_certain_predictions(near, far):
  logits, other = np.float32([[near, 0.0]]), np.float32([[far, 0.0]])
  gap = oracles.sigmoid(-np.float64(near)) - oracles.sigmoid(-np.float64(far))
  slope = -2 * gap * oracles.sigmoid(-np.float64(near)) * oracles.sigmoid(np.float64(near)) / 2
  value, (got, _) = gradient(losses.consistency, logits, other)
  np.testing.assert_allclose(value, [gap**2], rtol=1e-5)
  np.testing.assert_allclose(got, [[2 * slope, -2 * slope]], rtol=1e-5)


@pytest.mark.parametrize("margin", [0.0, 0.35, 1e3, 1e6, 1e12])
def test_the_gradient_of_cosface_keeps_its_digits_with_any_margin(margin):
  features, kernel, scale = RNG.normal(size=(5, 3)), RNG.normal(size=(3, 4)), 64.0
  features, kernel = features.astype(np.float32), kernel.astype(np.float32)
  length = np.linalg.norm(features.astype(np.float64), axis=-1, keepdims=True)
  x, w = features / length, kernel / np.linalg.norm(kernel.astype(np.float64), axis=0)
  cosines, target = x @ w, oracles.one_hot(LABELS, 4) > 0
  margins = scale * (cosines - (cosines * target).sum(-1, keepdims=True))
  others = np.log((np.exp(margins) * ~target).sum(-1)) + scale * margin
  wrong = oracles.sigmoid(np.clip(others, -700, 700))[:, None]
  shares = np.where(target, 0, np.exp(margins))
  by_cosine = scale * wrong * (shares / shares.sum(-1, keepdims=True) - target)
  slope = (by_cosine @ w.T - (by_cosine * cosines).sum(-1, keepdims=True) * x) / length
  value, (got,) = gradient(lambda x: losses.cosface(x, kernel, LABELS, margin=margin, scale=scale), features)
  np.testing.assert_allclose(value, np.logaddexp(0, others), rtol=1e-4, atol=1e-5)
  np.testing.assert_allclose(got, slope, rtol=2e-4, atol=2e-4 * np.abs(slope).max())


@pytest.mark.parametrize("log_var", [-300.0, -100.0, 0.0, 300.0])
def test_a_gaussian_of_any_width_at_its_mean(log_var):
  function = lambda outputs, log_vars: losses.gaussian_nll(outputs, log_vars, jnp.ones(1))
  value, (in_mean, in_width) = gradient(function, jnp.ones(1), jnp.full(1, log_var))
  np.testing.assert_allclose(value, (np.log(2 * np.pi) + log_var) / 2, rtol=1e-6)
  assert in_mean == 0
  assert in_width == 0.5


@pytest.mark.parametrize("log_var", [-300.0, -100.0, 0.0, 60.0])
def test_a_weighted_gaussian_of_any_width(log_var):
  """At an error of 1 and beta = 0.5: the weight exp(log_var / 2) is a constant for the gradient."""
  function = lambda outputs, log_vars: losses.gaussian_nll(outputs, log_vars, jnp.ones(1), beta=0.5)
  with np.errstate(over="ignore"):
    square = np.float32(np.exp(-log_var / 2))  # weight times the squared error over the variance
  weight = np.exp(log_var / 2)
  value, (in_mean, in_width) = gradient(function, jnp.zeros(1), jnp.full(1, log_var))
  np.testing.assert_allclose(value, 0.5 * (weight * (np.log(2 * np.pi) + log_var) + square), rtol=1e-5)
  np.testing.assert_allclose(in_mean, -square, rtol=1e-5)
  np.testing.assert_allclose(in_width, 0.5 * (weight - square), rtol=1e-5)


@pytest.mark.parametrize("df", [1e-6, 1.0, 4.0, 1e5])
def test_students_t_of_any_outlier_and_scale(df):
  df, error = float(np.float32(df)), np.repeat(np.float32([1e-10, 0.3, 10.0, 1e25]).astype(np.float64), 3)
  log_scale = np.tile([-90.0, 0.0, 30.0], 4)
  log_ratio = 2 * (np.log(error) - log_scale) - np.log(df)
  relative = oracles.sigmoid(np.clip(log_ratio, -700, 700))
  value, (in_mean, in_scale) = gradient(
    lambda outputs, log_scales: (
      losses.student_t_nll(outputs, log_scales, jnp.float32(error), df=df)
      - losses.student_t_nll(jnp.zeros(12), jnp.zeros(12), jnp.zeros(12), df=df)
    ),
    jnp.zeros(12),
    jnp.float32(log_scale),
  )
  expected = (df + 1) / 2 * np.logaddexp(0, log_ratio) + log_scale
  np.testing.assert_allclose(value, expected, rtol=1e-5, atol=2e-5)
  # Near relative = 1 / (df + 1) the slope is a difference; elsewhere it keeps its digits.
  slope = oracles.sigmoid(-np.clip(log_ratio, -700, 700)) - df * relative
  assert (np.abs(in_scale - slope) <= 1e-4 * np.abs(slope) + 1e-6 * np.minimum(1, df * relative)).all()
  np.testing.assert_allclose(in_mean, -(df + 1) * relative / error, rtol=1e-4)


# At t2 = 1 a loss of exp(-1e4) underflows.
SIZES = {
  (0.8, 1.3): (1.0, 30.0, 1e4),
  (0.2, 4.0): (1.0, 30.0, 1e4),
  (0.0, 1.0): (1.0, 30.0),
  (1.0, 1.5): (1.0, 30.0, 1e4),
}


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize(
  ("t1", "t2", "size"), [(*key, size) for key, sizes in SIZES.items() for size in sizes]
)
def test_small_bi_tempered_losses(size, t1, t2, soft):
  logits = (size * oracles.one_hot(LABELS, 4) + LOGITS).astype(np.float32)
  labels = np.eye(4, dtype=np.float32)[LABELS] if soft else LABELS
  got = losses.bi_tempered(logits, labels, t1=t1, t2=t2)
  expected = bi_tempered(logits.astype(np.float64), LABELS, t1, t2)
  np.testing.assert_allclose(got, expected, rtol=2e-4, atol=1e-13)


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize(("t1", "t2"), [(0.0, 1.0), (0.5, 1.0), (0.0, 1.3), (0.8, 1.3)])
@pytest.mark.parametrize("odds", [1e-1, 1e-6, 1e-9, 1e-11])
def test_bi_tempered_losses_of_a_certain_right_answer(odds, t1, t2, soft):
  """The label's own part is the integral of s^-t1 - s^(1 - t1) from its probability to 1."""
  top = -np.log(odds) if t2 == 1 else odds ** (1 - t2) / (t2 - 1)
  logits, t1 = np.float32([[top, 0, -1]]), float(np.float32(t1))
  p = tempered_probs(logits.astype(np.float64), t2)[0]
  rest = p[1:].sum()
  own = scipy.integrate.quad(lambda u: u * (1 - u) ** -t1, 0, rest, epsabs=0)[0]
  slopes = np.r_[-rest * p[0] ** -t1, p[1:] ** (1 - t1)] * p**t2  # in each logit less the normaliser
  others = (slopes - p**t2 / (p**t2).sum() * slopes.sum())[1:]
  labels = jnp.eye(3)[:1] if soft else np.array([0])
  value, (slope,) = gradient(lambda z: losses.bi_tempered(z, labels, t1=t1, t2=t2), logits)
  np.testing.assert_allclose(value, [own + (p[1:] ** (2 - t1)).sum() / (2 - t1)], rtol=1e-4)
  np.testing.assert_allclose(slope[0], [-others.sum(), *others], rtol=1e-4)


@pytest.mark.parametrize("t2", [1e3, 1e8, 1e12, 1e30])
def test_a_large_temperature_makes_the_probabilities_uniform(t2):
  value, (slope,) = gradient(lambda z: losses.bi_tempered(z, LABELS, t1=0.5, t2=t2), 1e4 * LOGITS)
  np.testing.assert_allclose(value, 2 * (1 - 0.5) - (1 - 4 * 0.25**1.5) / 1.5, rtol=1e-5)
  np.testing.assert_array_equal(slope, 0)
  np.testing.assert_allclose(losses.bi_tempered_log_probs(LOGITS, t2=t2), -np.log(4), rtol=1e-6)


def test_distillation_at_a_small_temperature():
  student, teacher = 100 * LOGITS, 100 * LOGITS + LOGITS[::-1] / 100
  p, q = (x.astype(np.float64) / 0.01 for x in (teacher, student))
  log_p, log_q = (x - np.log(np.exp(x - x.max(-1, keepdims=True)).sum(-1, keepdims=True)) for x in (p, q))
  log_p, log_q = (x - x_.max(-1, keepdims=True) for x, x_ in ((log_p, p), (log_q, q)))
  expected = 1e-4 * (np.exp(log_p) * (log_p - log_q)).sum(-1)
  got = losses.distillation(student, teacher, temperature=0.01)
  np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-12)


@pytest.mark.parametrize("logit", [5.0, 12.0, 16.0])
def test_the_gradients_of_certain_answers(logit):
  z = np.float64(logit)
  p, rest, margin = oracles.sigmoid(z), oracles.sigmoid(-z), 0.05
  shifted, left = p - margin, rest + margin
  expected = p * rest * (-4 * shifted**3 * np.log(left) + shifted**4 / left)
  absent = lambda z: losses.asymmetric(z, jnp.zeros(1, int))
  np.testing.assert_allclose(gradient(absent, jnp.full(1, logit))[1][0], expected, rtol=1e-5)
  present = lambda z: losses.binary_confidence_penalty(z, jnp.ones(1, int), weight=0.5)
  expected = -rest + 0.5 * z * p * rest
  np.testing.assert_allclose(gradient(present, jnp.full(1, logit))[1][0], expected, rtol=1e-5)


@pytest.mark.parametrize(
  "labels", [np.array([2**31, -(2**33), 2**40]), [2**33, -1, 0]], ids=["array", "list"]
)
def test_class_numbers_beyond_32_bits_are_labels(labels):
  got = losses.semi_supervised(jnp.ones(3), jnp.full(3, 10.0), labels)
  np.testing.assert_array_equal(got, [1.5, 30.0, 1.5])
  where = jnp.array([True, True, False])
  got = losses.semi_supervised(jnp.ones(3), jnp.full(3, 10.0), labels, where=where)
  np.testing.assert_array_equal(got, [2.0, 20.0, 0.0])


def test_a_label_beyond_32_bits_is_not_its_last_bits():
  labels, logits = np.array([2**32, 1]), jnp.zeros((2, 3))
  with pytest.raises(ValueError, match="labels must lie in \\[0, 3\\), got 4294967296"):
    losses.softmax_cross_entropy(logits, labels, where=jnp.ones(2, bool))
  traced = jax.jit(lambda where: losses.softmax_cross_entropy(logits, labels, where=where))
  np.testing.assert_allclose(traced(jnp.ones(2, bool)), [np.nan, np.log(3)], rtol=1e-6)

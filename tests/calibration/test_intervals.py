"""Intervals of real targets: sums against NumPy, and the coverage that conformal intervals promise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxreg import calibration

RNG = np.random.default_rng(0)
LOW, WIDTH, TARGETS = np.float32(RNG.normal(size=(3, 4, 5)))
HIGH = LOW + np.abs(WIDTH)
WEIGHTS = np.float32(RNG.uniform(size=(4, 5)))


@pytest.mark.thorough
def test_coverage_and_width_are_weighted_sums():
  for weights in (None, WEIGHTS):
    covered, width, count = calibration.interval_coverage(LOW, HIGH, TARGETS, weights=weights)
    w = np.ones_like(TARGETS) if weights is None else weights
    np.testing.assert_allclose(covered, w[(LOW <= TARGETS) & (TARGETS <= HIGH)].sum(), rtol=1e-6)
    np.testing.assert_allclose(width, (w * (HIGH - LOW)).sum(), rtol=1e-6)
    np.testing.assert_allclose(count, w.sum(), rtol=1e-6)


@pytest.mark.thorough
def test_normal_intervals_are_calibrated():
  """For 20 000 normal targets, whose quantiles are known."""
  targets = np.float32(RNG.normal(size=20_000))
  sums = calibration.interval_coverage(np.full(20_000, -1.96), np.full(20_000, 1.96), targets)
  assert abs(sums.covered / sums.count - 0.95) < 4 * 0.22 / 20_000**0.5


@pytest.mark.parametrize("conditional", [False, True], ids=["residual", "cqr"])
@pytest.mark.parametrize("alpha", [0.1, 0.32])
def test_conformal_intervals_hold_what_they_promise(conditional, alpha):
  """Over 200 draws, with a wrong model; the mean coverage is `rank / (n + 1)` exactly."""
  n, m, draws = 39, 50, 200
  rng = np.random.default_rng(1)
  x = rng.uniform(size=(draws, n + m))
  y = np.float32(x + (0.1 + x) * rng.standard_t(3, size=x.shape))
  low, high = (np.float32(x / 2 + 0.3 * conditional * sign * (1 + x)) for sign in (-1, 1))

  @jax.jit
  @jax.vmap
  def coverage(low, high, y):
    scores = calibration.interval_scores(low[:n], high[:n], y[:n])
    q = calibration.conformal_threshold(scores, alpha=alpha)
    return calibration.interval_coverage(low[n:] - q, high[n:] + q, y[n:])

  sums = coverage(low, high, y)
  got = np.asarray(sums.covered / sums.count)
  want = np.ceil((n + 1) * (1 - alpha) - 1e-9) / (n + 1)
  assert abs(got.mean() - want) < 4 * got.std() / draws**0.5
  assert got.std() / draws**0.5 < 0.008


@pytest.mark.parametrize(("offset", "unit"), [(1.7e9, 1.0), (2.0**40, 1.0), (0.0, 1e-200), (0.0, 1e200)])
def test_arrays_of_float64_keep_their_digits(offset, unit):
  """The spread of a target far from 0, or in any unit, against NumPy in float64."""
  rng = np.random.default_rng(2)
  y = unit * rng.normal(size=200) + offset
  low, high = (y + unit * (0.1 * rng.normal(size=200) + shift) for shift in (-0.1, 0.1))
  scores = np.maximum(low - y, y - high)
  if unit == 1:
    np.testing.assert_allclose(calibration.interval_scores(low, high, y), scores, rtol=1e-6)
    covered, width, _ = calibration.interval_coverage(low, high, y)
    assert covered == ((low <= y) & (y <= high)).sum()
    assert width == pytest.approx((high - low).sum(), rel=1e-5)
  q = np.sort(scores)[int(np.ceil(201 * 0.9)) - 1]
  ends = calibration.conformal_intervals(low, high, low, high, y, alpha=0.1)
  rounding = 1e-5 * unit + np.spacing(offset)
  np.testing.assert_allclose(ends[0] - offset, low - q - offset, rtol=0, atol=rounding)
  np.testing.assert_allclose(ends[1] - offset, high + q - offset, rtol=0, atol=rounding)


def test_the_score_of_one_prediction_is_the_absolute_residual():
  np.testing.assert_array_equal(calibration.interval_scores(LOW, LOW, TARGETS), np.abs(LOW - TARGETS))


@pytest.mark.parametrize(
  ("call", "error", "message"),
  [
    (lambda: calibration.interval_coverage(LOW, HIGH[0], TARGETS), ValueError, "high must have shape"),
    (lambda: calibration.interval_scores(LOW, HIGH, TARGETS[0]), ValueError, "targets must have shape"),
    (lambda: calibration.interval_coverage(LOW, HIGH, TARGETS > 0), TypeError, "targets must be floating"),
    (
      lambda: calibration.interval_coverage(LOW, HIGH, TARGETS, weights=WEIGHTS[0]),
      ValueError,
      r"weights must have shape \(4, 5\), got \(5,\)",
    ),
  ],
)
def test_the_argument_is_named(call, error, message):
  with pytest.raises(error, match=message):
    call()


def test_a_nan_shows():
  broken = TARGETS.copy()
  broken[0, 0] = jnp.nan
  sums = calibration.interval_coverage(LOW, HIGH, broken)
  assert np.isnan(sums.covered)

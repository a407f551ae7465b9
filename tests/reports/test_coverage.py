"""How often the 95 % intervals of a card hold the truth: simulations of fixed seeds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from jaxreg import flatness
from jaxreg._intervals import interval, wilson
from jaxreg.reports._compare import _difference
from jaxreg.reports._curvature import trace_of
from jaxreg.reports._numbers import mean, passing, ranked, resamples, share
from jaxreg.reports._statistics import GAPS, bootstrapped, by_chance, over_resamples

RUNS = 400
LEAST = 0.95 - 3 * np.sqrt(0.95 * 0.05 / RUNS)  # three standard errors of a simulation below the promise


def covered(make, truth, runs=RUNS, seed=0):
  """Counts how often `make(generator)` holds the truth, as a share."""
  rng = np.random.default_rng(seed)
  numbers = [make(rng) for _ in range(runs)]
  return np.mean([number.low - 1e-9 <= truth <= number.high + 1e-9 for number in numbers])


@pytest.mark.parametrize("size", [2, 3, 5, 20])
def test_the_mean_of_runs(size):
  def hit(rng):
    middle, half = interval(rng.normal(size=size))
    return abs(middle) <= half

  rng = np.random.default_rng(0)
  assert np.mean([hit(rng) for _ in range(RUNS)]) >= LEAST


@pytest.mark.parametrize("size", [20, 100, 1000])
def test_shares_in_the_mean_over_the_truth(size):
  """Wilson's interval keeps its promise in the mean over the truths; for a single one it oscillates."""
  rng = np.random.default_rng(0)
  truths = rng.random(20 * RUNS)
  low, high = wilson(rng.binomial(size, truths), np.full(len(truths), size))
  assert ((low <= truths) & (truths <= high)).mean() == pytest.approx(0.95, abs=0.01)


@pytest.mark.parametrize("size", [50, 300])
def test_shares_of_images_at_five_strengths(size):
  chance = lambda rng: rng.beta(0.2, 2, size)[:, None]
  make = lambda rng: share("", (rng.random((size, 5)) < chance(rng)).mean(axis=1))
  assert covered(make, 0.2 / 2.2) >= LEAST


@pytest.mark.parametrize("size", [50, 300])
@pytest.mark.parametrize(
  ("draw", "truth"),
  [
    (lambda rng, size: rng.exponential(size=size), 1.0),
    (lambda rng, size: np.square(rng.normal(size=size)), 1.0),
    (lambda rng, size: 1 + rng.poisson(0.3, size), 1.3),
    (lambda rng, size: rng.normal(size=size), 0.0),
  ],
  ids=["exponential", "squares", "counts", "normal"],
)
def test_means(size, draw, truth):
  weights = resamples(0, size, 400)
  assert covered(lambda rng: mean("", draw(rng, size), weights), truth) >= LEAST


@pytest.mark.thorough
def test_what_the_bootstrap_misses():
  """The limits that the report's page and `mean` name."""
  rare = lambda rng: np.where(rng.random(30) < 0.02, 5, 0.01 + 0.001 * rng.random(30))
  weights = resamples(0, 30, 300)
  assert covered(lambda rng: mean("", rare(rng), weights), 0.02 * 5 + 0.98 * 0.0105) == pytest.approx(
    0.5, abs=0.1
  )
  # Errors proportional to a lognormal target: E[(0.3 t z)^2] = 0.09 E[t^2] = 0.09 e^2.
  weights = resamples(0, 100, 300)

  def rmse(rng):
    targets = np.exp(rng.normal(size=100))
    outputs = targets * (1 + 0.3 * rng.normal(size=100))
    return bootstrapped(outputs[:, None], targets, (), weights)["rmse"]

  assert covered(rmse, 0.3 * np.e, runs=200) == pytest.approx(0.75, abs=0.1)


@pytest.mark.thorough
@pytest.mark.parametrize(("usual", "other"), [(300, 10), (50, 50), (300, 300), (100, 4)])
@pytest.mark.parametrize(("shift", "scale"), [(0, 1), (1, 2), (2.476, 1), (3.3, 1)])
def test_areas_under_the_curve(usual, other, shift, scale):
  truth = stats.norm.cdf(shift / np.sqrt(1 + scale**2))
  make = lambda rng: ranked("", rng.normal(size=usual), shift + scale * rng.normal(size=other))
  few = 0.03 if other < 5 else 0  # four scores do not show their scale
  assert covered(make, truth) >= LEAST - few


@pytest.mark.thorough
@pytest.mark.parametrize(("usual", "other"), [(300, 300), (20, 300), (20, 20), (100, 100)])
@pytest.mark.parametrize("shift", [0.0, 1.0, 2.0, 4.0])
def test_what_passes_a_threshold(shift, usual, other):
  truth = stats.norm.cdf(stats.norm.ppf(0.95) - shift)
  make = lambda rng: passing("", rng.normal(size=usual), shift + rng.normal(size=other))
  assert covered(make, truth) >= LEAST


@pytest.mark.parametrize(("size", "rate"), [(90, 0.002), (300, 0.01), (15, 0.5), (270, 0.001)])
def test_shares_near_0(size, rate):
  assert covered(lambda rng: share("", rng.random(size) < rate), rate) >= LEAST


@pytest.mark.parametrize(("size", "rates"), [(100, (0.0, 0.02)), (300, (0.001, 0.01)), (100, (0.01, 0.01))])
def test_models_of_few_errors(size, rates):
  weights, rng, hits, chance = resamples(0, size, 200), np.random.default_rng(0), 0, 0
  for _ in range(RUNS):
    sides = [rng.random(size) < rate for rate in rates]
    drawn = [[np.append(side.mean(), weights @ side / size)] for side in sides]
    entry = _difference(*drawn, size, yes_or_no=True)
    hits += entry["low"] <= rates[1] - rates[0] <= entry["high"]
    chance += entry["p"] < 0.05
  assert hits / RUNS >= LEAST
  assert rates[0] != rates[1] or chance / RUNS <= 1 - LEAST


def noticed_and_blunt(rng, size):
  """Two calibrated models of yes-or-no labels: one knows both features, the other one of them."""
  seen, hidden = rng.normal(size=size), 3 * rng.normal(size=size)
  points, weights = np.polynomial.hermite_e.hermegauss(40)
  sharp = special.expit(seen + hidden)
  blunt = special.expit(seen[:, None] + 3 * points) @ weights / weights.sum()
  labels = (rng.random(size) < sharp).astype(int)
  return [np.float32(np.log(np.stack([1 - p, p], axis=1))) for p in (sharp, blunt)], labels


def guess_and_truth(rng, size):
  """Two calibrated models of ten classes: the probabilities of the labels, and a guess right in 60 %."""
  logits = 3 * rng.normal(size=(size, 10))
  labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
  guess = np.where(rng.random(size) < 0.6, labels, (labels + rng.integers(1, 10, size)) % 10)
  guessed = np.where(np.arange(10) == guess[:, None], 0.6, 0.4 / 9)
  return [np.float32(special.log_softmax(logits, axis=1)), np.float32(np.log(guessed))], labels


@pytest.mark.thorough
@pytest.mark.parametrize("size", [100, 300, 1000])
@pytest.mark.parametrize("draw", [noticed_and_blunt, guess_and_truth])
def test_calibration_errors_of_calibrated_models_differ_by_chance(draw, size):
  """Chance raises the two errors by unequal amounts."""
  weights, rng, runs = resamples(0, size, 200), np.random.default_rng(0), 60
  hits = dict.fromkeys(GAPS, 0)
  for _ in range(runs):
    models, labels = draw(rng, size)
    drawn = [over_resamples(each, labels, (), weights) for each in models]
    chance = [by_chance(each, weights.shape) for each in models]
    for name in GAPS:
      raised = tuple(float(each[name].mean()) for each in chance)
      entry = _difference([drawn[0][name]], [drawn[1][name]], size, raised=raised)
      hits[name] += entry["low"] <= 0 <= entry["high"] and entry["p"] > 0.05
  least = 0.95 - 3 * np.sqrt(0.95 * 0.05 / runs)
  assert {name: number / runs for name, number in hits.items() if number / runs < least} == {}


@pytest.mark.thorough
@pytest.mark.parametrize(("size", "rate"), [(100, 0.03), (100, 0.01), (300, 0.01)])
def test_statistics_of_few_errors(size, rate):
  """Of a network that is sure of all its answers; one without an error has no interval of AURC and AUGRC."""
  draw = lambda rng, size: (
    np.float32(np.log([[0.999, 0.001]] * size)),
    (rng.random(size) < rate).astype(int),
  )
  whole = draw(np.random.default_rng(1), 400_000)
  truths = over_resamples(*whole, (), np.ones((1, 400_000), np.float32))
  weights, rng, hits = resamples(0, size, 200), np.random.default_rng(0), {name: [] for name in truths}
  for _ in range(100):
    for name, number in bootstrapped(*draw(rng, size), (), weights).items():
      if number.low is not None:
        hits[name].append(number.low - 1e-6 <= truths[name][0] <= number.high + 1e-6)
  least = 0.95 - 3 * np.sqrt(0.95 * 0.05 / 100)
  few = {
    name: 0.8 if name in ("aurc", "augrc", "nll", "brier") else least for name in hits
  }  # as the page says
  shares = {name: np.mean(each) for name, each in hits.items()}
  assert {name: share for name, share in shares.items() if share < few[name]} == {}


def predictions(rng, size, temperature):
  logits = 2 * rng.normal(size=(size, 4))
  labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
  scaled = logits * temperature
  return np.float32(scaled - np.log(np.exp(scaled).sum(axis=1, keepdims=True))), labels


@pytest.mark.thorough
@pytest.mark.parametrize("size", [100, 300])
@pytest.mark.parametrize("temperature", [1.0, 1.2, 1.5, 3.0])
def test_statistics_of_classes(size, temperature):
  """The truth is that of 400000 examples; a calibrated model has no calibration error."""
  whole = predictions(np.random.default_rng(1), 400_000, temperature)
  truths = over_resamples(*whole, (), np.ones((1, 400_000), np.float32))
  weights, rng, runs = resamples(0, size, 200), np.random.default_rng(0), 100
  hits = {name: 0 for name in truths}
  for _ in range(runs):
    for name, number in bootstrapped(*predictions(rng, size, temperature), (), weights).items():
      truth = 0.0 if temperature == 1 and "ece" in name else truths[name][0]
      hits[name] += number.low - 1e-6 <= truth <= number.high + 1e-6
  least = 0.95 - 3 * np.sqrt(0.95 * 0.05 / runs)
  assert {name: number / runs for name, number in hits.items() if number / runs < least} == {}


@pytest.mark.thorough
@pytest.mark.parametrize("scale", [0.1, 0.5, 2.0])
def test_statistics_of_numbers(scale):
  """Of normal targets and errors: R2 is 1 - scale^2."""
  weights, rng, runs = resamples(0, 100, 200), np.random.default_rng(0), 200
  truths = {"rmse": scale, "mae": scale * np.sqrt(2 / np.pi), "r2": 1 - scale**2}
  hits = {name: 0 for name in truths}
  for _ in range(runs):
    targets = rng.normal(size=100)
    outputs = targets + scale * rng.normal(size=100)
    for name, number in bootstrapped(outputs[:, None], targets, (), weights).items():
      hits[name] += number.low <= truths[name] <= number.high
  least = 0.95 - 3 * np.sqrt(0.95 * 0.05 / runs)
  assert {name: number / runs for name, number in hits.items() if number / runs < least} == {}


@pytest.mark.thorough
@pytest.mark.parametrize("eigenvalues", [np.r_[4, np.ones(29)], 1 / np.arange(1, 31)], ids=["one", "falling"])
def test_the_trace_of_few_probes(eigenvalues):
  """Hutchinson's samples are far from normal if few eigenvalues are much larger than the others."""
  basis, _ = np.linalg.qr(np.c_[np.ones(30), np.random.default_rng(0).normal(size=(30, 29))])
  matrix = jnp.float32(basis * eigenvalues @ basis.T)
  curvature = flatness.Curvature(lambda x, batch, *, key: 0.5 * x @ batch @ x, jnp.zeros(30), matrix)
  vectors = curvature.top_eigenpairs(key=jax.random.key(0), num_pairs=3).vectors
  traces = [trace_of(curvature, vectors, key, 8) for key in jax.random.split(jax.random.key(1), RUNS)]
  rounding = 1e-5 * eigenvalues.sum()
  hits = [each.low - rounding <= eigenvalues.sum() <= each.high + rounding for each in traces]
  assert np.mean(hits) >= LEAST


@pytest.mark.parametrize(("first", "other"), [(1, 2), (1, 5), (5, 1), (2, 2), (5, 5)])
@pytest.mark.parametrize("scatter", [0.0, 0.3])
def test_models_that_differ_by_chance(first, other, scatter):
  """Seeds scatter around one mean: at most 5 per cent of the differences are called real."""
  weights, rng = resamples(0, 100, 200), np.random.default_rng(0)

  def side(number, base):
    values = base + scatter * rng.normal(size=(number, 1)) + 0.5 * rng.normal(size=(number, 100))
    return [np.append(each.mean(), weights @ each / 100) for each in values]

  entries = []
  for _ in range(RUNS):
    base = rng.normal(size=100)
    entries.append(_difference(side(first, base), side(other, base), 100))
  assert np.mean([each["p"] < 0.05 for each in entries]) <= 1 - LEAST
  assert np.mean([each["low"] <= 0 <= each["high"] for each in entries]) >= LEAST


def test_infinite_values_are_not_tested():
  number = _difference([np.full(9, np.inf)], [np.full(9, np.inf)], 8)
  assert np.isnan([number["p"], number["low"], number["high"]]).all()
  assert not number["real"]

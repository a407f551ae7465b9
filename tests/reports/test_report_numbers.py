"""Every number of a card against scikit-learn, SciPy and float64 NumPy."""

import json

import jax
import numpy as np
import pytest
from scipy import optimize, special, stats
from sklearn import metrics

import jaxreg
from jaxreg.reports._numbers import around, mean, ranked, resamples, share
from jaxreg.reports._statistics import _classes, _rows, bootstrapped, over_resamples

RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 4, 300)
LOGITS = 2.5 * RNG.normal(size=(300, 4)) + 2.5 * np.eye(4)[LABELS]
LOG_PROBS = np.float32(LOGITS - np.log(np.exp(LOGITS).sum(1, keepdims=True)))
APART_LABELS = RNG.integers(0, 4, 200)
APART = np.float32(2.5 * RNG.normal(size=(200, 4)) + 2.5 * np.eye(4)[APART_LABELS])
PROBS = np.exp(np.float64(LOG_PROBS))
GUESSED, CONFIDENCE = PROBS.argmax(1), PROBS.max(1)


def numbers(card, section):
  assert card["sections"][section]["status"] == "done", card["sections"][section]
  return {name: each["value"] for name, each in card["sections"][section]["numbers"].items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  return tmp_path_factory.mktemp("card")


@pytest.fixture(scope="module")
def card(folder):
  held_out = {"predictions": APART, "labels": APART_LABELS}
  return jaxreg.report(LOG_PROBS, {"labels": LABELS}, held_out=held_out, out=folder)


def test_the_statistics_of_resamples_are_once_in_the_program():
  weights = np.ones((1001, 300), np.float32)
  assert _rows.lower(_classes, LOG_PROBS, LABELS, weights).as_text().count("stablehlo.sort") == 1


@pytest.mark.thorough
def test_errors(card, folder):
  found = numbers(card, "errors")
  assert found["error"] == pytest.approx(1 - metrics.accuracy_score(LABELS, GUESSED))
  recall = metrics.recall_score(LABELS, GUESSED, average=None)
  worst = np.argsort(recall)[:3]
  assert [found[f"recall/{number}"] for number in worst] == pytest.approx(recall[worst])
  entry = card["sections"]["errors"]["numbers"]["error"]
  low, high = stats.binomtest((GUESSED != LABELS).sum(), 300).proportion_ci(method="exact")
  assert (entry["low"], entry["high"]) == pytest.approx((low, high))
  with np.load(folder / "report.npz") as arrays:
    np.testing.assert_array_equal(arrays["errors/confusion"], metrics.confusion_matrix(LABELS, GUESSED))


def ece(confidence, correct, edges):
  place = np.searchsorted(edges[1:-1], confidence, side="left")
  return sum(abs((correct - confidence)[place == m].sum()) for m in range(len(edges) - 1)) / len(correct)


def tempered(log_probs, temperature):
  scaled = np.float64(log_probs) / temperature
  return scaled - np.log(np.exp(scaled).sum(1, keepdims=True))


def matrix_scaled():
  """Fits the structured map of the held-out log-probabilities by SciPy, and applies it."""
  nll = lambda log_t: metrics.log_loss(APART_LABELS, np.exp(tempered(APART, np.exp(log_t))))
  temperature = np.exp(optimize.minimize_scalar(nll, bounds=(-3, 3), method="bounded").x)
  scale = lambda x, log_probs: tempered(
    tempered(log_probs, 1) / temperature @ x[:16].reshape(4, 4) + x[16:], 1
  )
  cost = 4 / 200 * np.where(np.eye(4) > 0, 1, 3).ravel()

  def objective(x):
    loss = metrics.log_loss(APART_LABELS, np.exp(scale(x, APART)))
    return loss + (cost * (x[:16] - np.eye(4).ravel()) ** 2).sum() + 4 / 200 * (x[16:] ** 2).sum()

  return scale(optimize.minimize(objective, np.r_[np.eye(4).ravel(), np.zeros(4)]).x, LOG_PROBS)


@pytest.mark.thorough
def test_calibration(card):
  found = numbers(card, "calibration")
  assert found["nll"] == pytest.approx(metrics.log_loss(LABELS, PROBS), rel=1e-5)
  assert found["brier"] == pytest.approx(np.square(PROBS - np.eye(4)[LABELS]).sum(1).mean(), rel=1e-5)
  correct = GUESSED == LABELS
  assert found["ece"] == pytest.approx(ece(CONFIDENCE, correct, np.linspace(0, 1, 16)), abs=1e-5)
  bins = np.array_split(np.argsort(CONFIDENCE), 15)
  assert found["adaptive_ece"] == pytest.approx(
    sum(abs((correct - CONFIDENCE)[each].sum()) for each in bins) / 300, abs=1e-5
  )
  residuals = (correct - CONFIDENCE) / 300
  t = (np.arange(2000) + 0.5)[:, None] / 2000
  images = np.stack([2 * k + sign * CONFIDENCE for k in range(-5, 6) for sign in (1, -1)])[:, None]
  smoothed = lambda width: np.abs((stats.norm.pdf(t, images, width).sum(0) * residuals).sum(1)).mean()
  width = optimize.brentq(lambda width: smoothed(width) - width, 1e-3, 1, xtol=1e-6)
  assert found["smooth_ece"] == pytest.approx(width, rel=1e-3)
  nll = lambda log_t: metrics.log_loss(APART_LABELS, np.exp(tempered(APART, np.exp(log_t))))
  temperature = np.exp(optimize.minimize_scalar(nll, bounds=(-3, 3), method="bounded").x)
  assert found["temperature"] == pytest.approx(temperature, rel=1e-3)
  better = np.exp(tempered(LOG_PROBS, found["temperature"]))
  assert found["tempered_nll"] == pytest.approx(metrics.log_loss(LABELS, better), rel=1e-5)
  assert found["matrix_nll"] == pytest.approx(metrics.log_loss(LABELS, np.exp(matrix_scaled())), rel=1e-3)
  assert found["tempered_ece"] == pytest.approx(ece(better.max(1), correct, np.linspace(0, 1, 16)), abs=1e-5)


def test_selective_prediction(card):
  found = numbers(card, "selective")
  wrong = (GUESSED != LABELS)[np.argsort(-CONFIDENCE, kind="stable")]
  risks = np.cumsum(wrong) / np.arange(1, 301)
  assert found["aurc"] == pytest.approx(risks.mean(), rel=1e-5)
  # The area under the share of answered and wrong examples, between which it is linear.
  assert found["augrc"] == pytest.approx(np.trapezoid(np.r_[0, np.cumsum(wrong)] / 300, dx=1 / 300), rel=1e-5)
  assert found["error_at_0.9"] == pytest.approx(risks[269])
  assert found["error_at_0.8"] == pytest.approx(risks[239])


def test_conformal_sets(card):
  found = numbers(card, "conformal")
  apart = np.sort(-tempered(APART, 1.0)[np.arange(200), APART_LABELS])
  sets = apart[int(np.ceil(201 * 0.9)) - 1] + 1e-6 >= -LOG_PROBS
  assert found["conformal_coverage"] == pytest.approx(sets[np.arange(300), LABELS].mean())
  assert found["conformal_size"] == pytest.approx(sets.sum(1).mean())
  entry = card["sections"]["conformal"]["numbers"]["conformal_coverage"]
  interval = stats.binomtest(sets[np.arange(300), LABELS].sum(), 300).proportion_ci(method="exact")
  assert (entry["low"], entry["high"]) == pytest.approx(interval)
  keys = jax.random.split(jax.random.fold_in(jax.random.key(0), 1))
  ours, theirs = (
    masses(key, probs) for key, probs in zip(keys, (PROBS, np.exp(tempered(APART, 1.0))), strict=True)
  )
  level = np.sort(theirs[np.arange(200), APART_LABELS])[int(np.ceil(201 * 0.9)) - 1]
  sets = ours <= level + 1e-6
  assert found["aps_coverage"] == pytest.approx(sets[np.arange(300), LABELS].mean())
  assert found["aps_size"] == pytest.approx(sets.sum(1).mean())


def test_the_coverage_of_classes_and_groups(tmp_path):
  """By one threshold for all and by their own; a group of 5 is too small for an alpha of 0.1."""
  apart_groups, groups = np.resize(["a", "b"], 200), np.resize(["a", "b", "c"], 300)
  apart_groups[:5] = "c"
  data = {"labels": LABELS, "groups": groups}
  held_out = {"predictions": APART, "labels": APART_LABELS, "groups": apart_groups}
  card = jaxreg.report(
    LOGITS, data, held_out=held_out, out=tmp_path, sections=("conformal",), class_names="wxyz"
  )
  found, ours, theirs = numbers(card, "conformal"), -LOG_PROBS, -tempered(APART, 1.0)
  picked = theirs[np.arange(200), APART_LABELS]
  level = lambda scores: np.sort([*scores, np.inf])[int(np.ceil((len(scores) + 1) * 0.9)) - 1] + 1e-6
  hits = ours[np.arange(300), LABELS] <= level(picked)
  limits = {name: level(picked[apart_groups == name]) for name in "ab"} | {"c": np.inf}
  own = ours <= np.array([limits[name] for name in groups])[:, None]
  for name in "abc":
    mine = groups == name
    assert found[f"coverage/group {name}"] == pytest.approx(hits[mine].mean())
    assert found[f"own_coverage/group {name}"] == pytest.approx(own[mine, LABELS[mine]].mean())
  assert found["own_coverage/group c"] == 1
  assert found["by_group_size"] == pytest.approx(own.sum(1).mean())
  by_class = ours <= np.array([level(picked[k == APART_LABELS]) for k in range(ours.shape[1])])
  assert found["by_class_coverage"] == pytest.approx(by_class[np.arange(300), LABELS].mean())
  assert found["by_class_size"] == pytest.approx(by_class.sum(1).mean())
  worst = min(range(ours.shape[1]), key=lambda k: hits[k == LABELS].mean())
  assert found[f"coverage/class {'wxyz'[worst]}"] == pytest.approx(hits[worst == LABELS].mean())
  told = card["sections"]["conformal"]["sentence"]
  assert "Held-out examples of group c are fewer than 9, so sets hold all classes." in told
  with pytest.raises(ValueError, match=r"data\['groups'\] must be integers or texts \[300\]"):
    jaxreg.report(LOGITS, {**data, "groups": groups[:4]}, out=tmp_path / "short", sections=("conformal",))


def masses(key, probs):
  """Romano, Sesia and Candes, Eq. 5: the mass of the more probable classes, and a random share of its own."""
  share = np.float64(jax.random.uniform(key, (len(probs), 1)))
  more = (probs[:, None, :] > probs[:, :, None]) * probs[:, None, :]
  return more.sum(-1) + share * probs


def test_the_same_numbers_are_in_the_file(card, folder):
  written = json.loads((folder / "report.json").read_text())
  assert {name: written[name] for name in card} == card
  assert written.keys() - card.keys() == {"version", "seal"}


def test_predictions_alone_have_no_other_sections(card):
  missing = {name: each for name, each in card["sections"].items() if each["status"] != "done"}
  assert {*missing} == {"ood", "corruptions", "adversarial", "flatness", "noise"}
  assert {each["status"] for each in missing.values()} == {"unavailable"}


@pytest.mark.thorough
def test_residuals_and_intervals(tmp_path):
  targets = RNG.normal(size=400)
  predictions = np.stack([targets + RNG.normal(size=400) / 2, np.full(400, 0.2)], axis=1)
  held_out = {"predictions": predictions[200:], "labels": targets[200:]}
  card = jaxreg.report(predictions[:200], {"labels": targets[:200]}, held_out=held_out, out=tmp_path)
  found, (means, variances) = numbers(card, "residuals"), predictions[:200].T
  assert found["rmse"] == pytest.approx(metrics.root_mean_squared_error(targets[:200], means), rel=1e-5)
  assert found["mae"] == pytest.approx(metrics.mean_absolute_error(targets[:200], means), rel=1e-5)
  assert found["r2"] == pytest.approx(metrics.r2_score(targets[:200], means), rel=1e-5)
  below = stats.norm.cdf(targets[:200], means, np.sqrt(variances)) <= 0.25
  assert found["below/0.25"] == pytest.approx(below.mean())
  found = numbers(card, "conformal")
  half = stats.norm.ppf(0.95) * np.sqrt(0.2)
  apart = np.sort(np.abs(predictions[200:, 0] - targets[200:]) - half)
  margin = half + apart[int(np.ceil(201 * 0.9)) - 1]
  assert found["predicted_coverage"] == pytest.approx((np.abs(means - targets[:200]) <= half).mean())
  assert found["predicted_width"] == pytest.approx(2 * half)
  assert found["conformal_coverage"] == pytest.approx((np.abs(means - targets[:200]) <= margin).mean())
  assert found["conformal_width"] == pytest.approx(2 * margin, rel=1e-5)


def aurc(log_probs, labels):
  wrong = (log_probs.argmax(1) != labels)[np.argsort(-log_probs.max(1), kind="stable")]
  return (np.cumsum(wrong) / np.arange(1, len(wrong) + 1)).mean()


def top_label(log_probs, labels, equal):
  confidence, correct = np.exp(np.float64(log_probs.max(1))), log_probs.argmax(1) == labels
  edges = np.quantile(confidence, np.linspace(0, 1, 16)) if equal else np.linspace(0, 1, 16)
  return ece(confidence, correct, edges)


TARGETS = 3 * RNG.normal(size=300)
OUTPUTS = np.stack([TARGETS + RNG.normal(size=300)], axis=1)
BY_EXAMPLE = {
  "brier": lambda x, y: np.square(np.exp(np.float64(x)) - np.eye(4)[y]).sum(1).mean(),
  "ece": lambda x, y: top_label(x, y, equal=False),
  "adaptive_ece": lambda x, y: top_label(x, y, equal=True),
  "aurc": aurc,
  "rmse": lambda x, y: metrics.root_mean_squared_error(y, x[:, 0]),
  "mae": lambda x, y: metrics.mean_absolute_error(y, x[:, 0]),
  "r2": lambda x, y: metrics.r2_score(y, x[:, 0]),
}


def students_t(drawn):
  """Finds the ends by Student's t of the logarithms of a positive statistic, from its value and resamples."""
  half = stats.t.ppf(0.975, 299) * np.log(drawn[1:]).std(ddof=1)
  return drawn[0] * np.exp(-half), drawn[0] * np.exp(half)


@pytest.mark.thorough
@pytest.mark.parametrize("name", BY_EXAMPLE)
def test_resamples_of_statistics_are_those_of_numpy(name):
  """Each resample is made in NumPy; without ties, AURC and R2 have the intervals of their logarithms."""
  given = (OUTPUTS, TARGETS) if name in ("rmse", "mae", "r2") else (LOG_PROBS, LABELS)
  weights = resamples(0, 300, 200)
  drawn = over_resamples(*given, (), weights)[name]
  rows = [np.arange(300), *(np.repeat(np.arange(300), each.astype(int)) for each in weights)]
  want = np.array([BY_EXAMPLE[name](given[0][row], given[1][row]) for row in rows])
  # A repeated example is in one bin of equal counts, and answered or not as one: the risk has fewer steps.
  rtol, atol = {"adaptive_ece": (0, 0.03), "aurc": (0.01, 0)}.get(name, (1e-3, 1e-4))
  np.testing.assert_allclose(drawn, want, rtol=rtol, atol=atol)
  got = bootstrapped(*given, (), weights)[name]
  if name == "aurc":
    assert (got.low, got.high) == pytest.approx(students_t(drawn), rel=1e-6)
  if name == "r2":
    low, high = students_t(1 - want)
    assert (got.low, got.high) == pytest.approx((1 - high, 1 - low), rel=1e-3)


@pytest.mark.thorough
def test_predicted_quantiles(tmp_path):
  levels = (0.1, 0.5, 0.9)
  quantiles = np.stack([TARGETS + RNG.normal(size=300) + shift for shift in (-1.3, 0.1, 1.2)], axis=1)
  quantiles.sort(axis=1)
  held_out = {"predictions": quantiles[150:], "labels": TARGETS[150:]}
  data = {"labels": TARGETS[:150]}
  card = jaxreg.report(quantiles[:150], data, held_out=held_out, levels=levels, out=tmp_path)
  found, (low, middle, high), targets = numbers(card, "residuals"), quantiles[:150].T, TARGETS[:150]
  assert found["rmse"] == pytest.approx(metrics.root_mean_squared_error(targets, middle), rel=1e-5)
  for level, values in zip(levels, (low, middle, high), strict=True):
    assert found[f"below/{level}"] == pytest.approx((targets <= values).mean())
  found = numbers(card, "conformal")
  assert found["predicted_coverage"] == pytest.approx(((low <= targets) & (targets <= high)).mean())
  assert found["predicted_width"] == pytest.approx((high - low).mean(), rel=1e-5)
  # Romano, Patterson and Candes, Conformalized Quantile Regression, Eq. 6 to 8.
  scores = np.maximum(quantiles[150:, 0] - TARGETS[150:], TARGETS[150:] - quantiles[150:, 2])
  margin = np.sort(scores)[int(np.ceil(151 * 0.9)) - 1]
  inside = (low - margin <= targets) & (targets <= high + margin)
  assert found["conformal_coverage"] == pytest.approx(inside.mean())
  assert found["conformal_width"] == pytest.approx((high - low).mean() + 2 * margin, rel=1e-5)


def test_intervals_of_means_are_studentised():
  """Efron and Tibshirani, 1993, section 12.5, in plain NumPy."""
  losses = -np.log(PROBS[np.arange(300), LABELS])
  weights = resamples(0, 300, 400)
  samples = [losses[np.repeat(np.arange(300), each.astype(int))] for each in weights]
  ratios = [(each.mean() - losses.mean()) / stats.sem(each) for each in samples]
  low, high = losses.mean() - stats.sem(losses) * np.quantile(ratios, [0.975, 0.025])
  for got in (mean("", losses, weights), bootstrapped(LOG_PROBS, LABELS, (), weights)["nll"]):
    assert (got.low, got.high) == pytest.approx((low, high), rel=1e-4)
  assert mean("", np.ones(300), weights).low is None
  infinite = mean("", np.append(losses[1:], np.inf), weights)
  assert (infinite.value, infinite.low, infinite.high) == (np.inf, None, None)


def test_interval_of_the_auroc_is_that_of_brunner_and_munzel():
  usual, other = RNG.integers(0, 9, 40).astype(float), RNG.integers(3, 12, 25).astype(float)
  found = ranked("", usual, other)
  pairs = (other[None] > usual[:, None]) + 0.5 * (other[None] == usual[:, None])
  parts = np.array([pairs.mean(1).var(ddof=1) / 40, pairs.mean(0).var(ddof=1) / 25])
  assert found.value == pytest.approx(pairs.mean())
  # The degrees of freedom follow from SciPy's p-value of the hypothesis that the area is 1/2.
  freedom = parts.sum() ** 2 / (parts**2 / [39, 24]).sum()
  t = (found.value - 0.5) / np.sqrt(parts.sum())
  assert stats.brunnermunzel(usual, other).pvalue == pytest.approx(2 * stats.t.sf(abs(t), freedom), rel=1e-6)
  half = stats.t.ppf(0.975, freedom) * np.sqrt(parts.sum()) / (found.value * (1 - found.value))
  low, high = special.expit(special.logit(found.value) + np.array([-half, half]))
  assert found.low <= low + 1e-9
  assert found.high >= high - 1e-9


def test_an_area_of_all_scores_in_order_has_newcombes_interval():
  found = ranked("", np.zeros(20), np.ones(10))

  def score(area):
    spread = 14 * ((1 - area) / (2 - area) + area / (1 + area))
    return (1 - area) / np.sqrt(area * (1 - area) * (1 + spread) / 200) - stats.norm.ppf(0.975)

  assert found.low == pytest.approx(optimize.brentq(score, 0.1, 1 - 1e-9), rel=1e-5)
  assert (found.value, found.high) == (1, 1)


def test_a_share_of_nothing_wrong_has_a_width():
  assert share("", np.zeros(50)).high == pytest.approx(
    stats.binomtest(0, 50).proportion_ci(method="exact").high
  )


@pytest.mark.parametrize(
  ("data", "options", "message"),
  [
    ({"labels": LABELS[:5]}, {}, r"predictions of data must be \[5, classes\]"),
    ({"labels": np.full(300, 4)}, {}, r"data\['labels'\] must lie in \[0, 3\], got 4 to 4"),
    ({"labels": np.zeros((300, 2), int)}, {}, r"data\['labels'\] must be classes or floating numbers"),
    ({"inputs": LOGITS}, {}, "data must be a mapping with 'labels'"),
    ({"labels": LABELS}, {"minutes": 0}, "minutes must lie in"),
    ({"labels": LABELS}, {"sections": ("error",)}, "sections must be"),
    ({"labels": LABELS}, {"key": 0}, "key must be"),
    (
      {"labels": LABELS},
      {"held_out": {"labels": LABELS + 0.5, "predictions": LOGITS}},
      "of the kind of data's",
    ),
    ({"labels": LABELS * 1.0}, {"levels": (0.1, 0.9)}, r"must be \[300, 2\], as levels"),
  ],
)
def test_mistakes_are_told(tmp_path, data, options, message):
  with pytest.raises((ValueError, TypeError), match=message):
    jaxreg.report(LOG_PROBS, data, out=tmp_path, **options)


def test_a_function_needs_inputs(tmp_path):
  with pytest.raises(ValueError, match="data must have 'inputs'"):
    jaxreg.report(jax.nn.log_softmax, {"labels": LABELS}, out=tmp_path)


def test_a_narrow_interval_shows_its_ends():
  """An eigenvalue with a small residual has more digits, else both ends would read alike."""
  assert around("eigenvalue", 21.15, 2e-5).interval == "21.14998 to 21.15002"
  assert around("eigenvalue", 21.15, 0.5).interval == "20.65 to 21.65"
  assert around("eigenvalue", 0.0, 0.0).interval == "0 to 0"


def test_classes_without_held_out_examples_and_of_one_name_are_told(tmp_path):
  """Of five classes only two occur, and both are called cat."""
  log_probs = np.log(np.full((200, 5), 0.2))
  data = {"labels": np.arange(200) % 2}
  names = ("cat", "cat", "dog", "eel", "fox")
  card = jaxreg.report(
    log_probs, data, class_names=names, sections=("errors", "conformal"), out=tmp_path / "report"
  )
  found = card["sections"]["conformal"]
  assert {"coverage/class cat (0)", "coverage/class cat (1)"} < found["numbers"].keys()
  assert {"recall/cat (0)", "recall/cat (1)"} < card["sections"]["errors"]["numbers"].keys()
  assert "Held-out examples of class dog, eel, fox are fewer than" in found["sentence"]

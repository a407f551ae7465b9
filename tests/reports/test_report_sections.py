"""The sections that call the model, against closed forms and scikit-learn; what fails is a line."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats
from sklearn import covariance, metrics
from sklearn.ensemble import RandomForestClassifier

import jaxreg
from jaxreg.reports._curvature import sharpnesses

pytestmark = pytest.mark.thorough

RNG = np.random.default_rng(0)
IMAGES = np.float32(RNG.uniform(size=(200, 4, 4, 1)))
WEIGHTS = np.float32(RNG.normal(size=16))
MARGINS = (IMAGES.reshape(200, 16) - 0.5) @ WEIGHTS
LABELS = np.where(RNG.uniform(size=200) < 0.1, MARGINS < 0, MARGINS > 0).astype(int)
DATA = {"inputs": IMAGES, "labels": LABELS}


def linear(params, x, *, key=None):
  """Two classes whose logits differ by the margin; with a key, by ±40 at random instead."""
  margin = (x.reshape(len(x), 16) - 0.5) @ params
  if key is not None:
    margin = jnp.where(jax.random.bernoulli(key, 0.5, margin.shape), 40.0, -40.0)
  return jnp.stack([-margin / 2, margin / 2], axis=-1)


def numbers(card, section):
  assert card["sections"][section]["status"] == "done", card["sections"][section]
  return {name: each["value"] for name, each in card["sections"][section]["numbers"].items()}


@pytest.fixture(scope="module")
def card(tmp_path_factory):
  sections = ("errors", "ood", "corruptions", "adversarial", "noise")
  options = {
    "eps": (0.05, 0.2),
    "value_range": (-9.0, 9.0),
    "sections": sections,
    "others": {"ones": IMAGES[:50] * 0 + 1},
  }
  return jaxreg.report(linear, DATA, params=WEIGHTS, out=tmp_path_factory.mktemp("card"), **options)


def test_an_attack_on_a_linear_model_moves_the_margin_by_eps_times_the_l1_norm(card):
  found, signed = numbers(card, "adversarial"), np.where(LABELS == 1, MARGINS, -MARGINS)
  for eps in (0.05, 0.2):
    worst = signed - eps * np.abs(WEIGHTS).sum()
    assert found[f"eps {eps}"] == pytest.approx((worst < 0).mean())
  assert found["loss"] == pytest.approx(np.log1p(np.exp(-worst)).mean(), rel=1e-4)
  assert found["clean"] == pytest.approx((signed < 0).mean())
  drawn = np.random.default_rng(1).uniform(-0.2, 0.2, (4000, 16)) @ WEIGHTS
  chance = (signed[:, None] + drawn < 0).mean(axis=1)
  assert abs(found["random"] - chance.mean()) < 4 * np.sqrt((chance * (1 - chance)).sum()) / 200
  assert found["no_gradient"] == 0


@pytest.mark.thorough
def test_the_ensemble_finds_what_a_gradient_that_vanishes_hides_from_pgd(tmp_path):
  """Logits are 1e6 times a linear function, so that the cross-entropy has no gradient."""
  kernel = np.random.default_rng(2).normal(size=(16, 4)).astype(np.float32)
  sharp = lambda params, x: 1e6 * (x.reshape(len(x), 16) @ params)
  data = {"inputs": IMAGES, "labels": (IMAGES.reshape(-1, 16) @ kernel).argmax(-1)}
  options = {"params": kernel, "eps": (3.0,), "value_range": (-9.0, 9.0), "sections": ("adversarial",)}
  card = jaxreg.report(sharp, data, out=tmp_path, **options)
  found = numbers(card, "adversarial")
  assert found["no_gradient"] > 0.95
  assert found["eps 3"] == 1
  assert found["pgd"] < 0.99
  assert "targeted DLR loss" in card["sections"]["adversarial"]["sentence"]


@pytest.mark.thorough
def test_the_steps_of_an_attack_and_a_gradient_that_is_masked(tmp_path):
  """One step is 1/8 of eps from a random point; of examples whose margin is cut off, the gradient is 0."""
  cut = lambda params, x: linear(params, x) * (linear(params, x)[:, 1:] > 0)
  options = {"params": WEIGHTS, "eps": (0.2,), "value_range": (-9.0, 9.0), "sections": ("adversarial",)}
  found = numbers(jaxreg.report(cut, DATA, out=tmp_path / "cut", **options), "adversarial")
  assert found["no_gradient"] == pytest.approx((MARGINS < 0).mean())
  jaxreg.report(linear, DATA, out=tmp_path / "linear", **options)
  with np.load(tmp_path / "linear" / "report.npz") as arrays:
    steps, loss = arrays["adversarial/steps"], arrays["adversarial/loss"]
  signed, drawn = np.where(LABELS == 1, MARGINS, -MARGINS), np.random.default_rng(1)
  start = drawn.uniform(-0.2, 0.2, (500, 200, 16))
  for number, got in zip(steps, loss, strict=True):
    # Each step lowers the margin of the label as fast as it can.
    moved = np.clip(start - number * 0.025 * np.sign(WEIGHTS), -0.2, 0.2)
    want = np.log1p(np.exp(-(signed + moved @ WEIGHTS))).mean(axis=1)
    assert abs(got - want.mean()) < 5 * want.std() + 1e-4


def test_detection_is_that_of_scikit_learn(card):
  found = numbers(card, "ood")
  doubt = lambda x: 1 / (1 + np.exp(np.abs((x.reshape(len(x), 16) - 0.5) @ WEIGHTS)))
  order = np.random.default_rng(card["seed"]).permutation(200)
  noise = np.random.default_rng(0).uniform(-9, 9, IMAGES.shape)
  others = {"noise": noise, "rotated": np.rot90(IMAGES[order], axes=(1, 2)), "ones": IMAGES[:50] * 0 + 1}
  for name, other in others.items():
    scores = np.concatenate([doubt(IMAGES), doubt(other)])
    strange = np.repeat([0, 1], [200, len(other)])
    assert found[f"{name}/auroc"] == pytest.approx(metrics.roc_auc_score(strange, scores), abs=2e-3)
    passed, hits, _ = metrics.roc_curve(1 - strange, -scores, drop_intermediate=False)
    assert found[f"{name}/fpr95"] == pytest.approx(passed[np.argmax(hits >= 0.95)], abs=0.03)


def test_detectors_of_the_last_layer_are_numpy_s(tmp_path):
  kernel, bias = np.random.default_rng(1).normal(size=(16, 3)), np.array([0.5, 0.0, -0.5])
  options = {"others": {"ones": IMAGES[:50] * 0 + 1}, "sections": ("ood",), "params": WEIGHTS}
  options["held_out"] = {"inputs": IMAGES + 1, "labels": LABELS}
  options |= {"features_fn": lambda params, x: x, "last_layer": (kernel, bias)}
  found = numbers(jaxreg.report(linear, DATA, out=tmp_path / "card", **options), "ood")
  train, ours, theirs = (x.reshape(len(x), -1).astype(float) for x in (IMAGES + 1, IMAGES, np.ones((50, 16))))
  origin = -np.linalg.pinv(kernel.T) @ bias
  values, vectors = np.linalg.eigh((train - origin).T @ (train - origin))
  minor = vectors[:, np.argsort(values)[:8]]
  residual = lambda x: np.linalg.norm((x - origin) @ minor, axis=1)
  scale = (train @ kernel + bias).max(1).mean() / residual(train).mean()
  energy = lambda x: -special.logsumexp(x @ kernel + bias, axis=1)
  limit = np.quantile(train, 0.9)
  for kind, score in (
    ("vim", lambda x: scale * residual(x) + energy(x)),
    ("react", lambda x: energy(np.minimum(x, limit))),
    ("energy", energy),
    ("max_logit", lambda x: -(x @ kernel + bias).max(1)),
  ):
    want = metrics.roc_auc_score(np.repeat([0, 1], [200, 50]), np.concatenate([score(ours), score(theirs)]))
    assert found[f"ones/{kind}_auroc"] == pytest.approx(want, abs=5e-3)
  with pytest.raises(ValueError, match="last_layer must come with features_fn"):
    jaxreg.report(linear, DATA, out=tmp_path / "other", **options | {"features_fn": None})


@pytest.mark.parametrize("apart", [True, False])
def test_detectors_of_features_learn_from_what_is_held_out(tmp_path, apart):
  """The features are the images; the covariances are scikit-learn's."""
  learned, rows = (IMAGES + 1, LABELS), np.arange(200)
  options = {"others": {"ones": IMAGES[:50] * 0 + 1}, "sections": ("ood",), "params": WEIGHTS}
  options["features_fn"] = lambda params, x: x
  if apart:
    options["held_out"] = {"inputs": learned[0], "labels": learned[1]}
  card = jaxreg.report(linear, DATA, out=tmp_path / "card", **options)
  if not apart:
    rows, half = np.split(np.random.default_rng(card["seed"]).permutation(200), 2)
    learned = IMAGES[half], LABELS[half]
  train, labels = np.asarray(learned[0], np.float64).reshape(len(learned[0]), -1), learned[1]
  means = np.stack([train[labels == k].mean(0) for k in (0, 1)])
  fitted = covariance.EmpiricalCovariance(assume_centered=True).fit(train - means[labels])
  scores = [
    np.min([fitted.mahalanobis(x.reshape(len(x), -1) - mean) for mean in means], axis=0)
    for x in (np.asarray(IMAGES[rows], np.float64), np.ones((50, 16)))
  ]
  want = metrics.roc_auc_score(np.repeat([0, 1], [len(rows), 50]), np.concatenate(scores))
  found = numbers(card, "ood")
  assert found["ones/mahalanobis_auroc"] == pytest.approx(want, abs=5e-3)
  assert {"ones/relative_mahalanobis_auroc", "ones/knn_auroc", "noise/mahalanobis_auroc"} <= {*found}


def test_draws_that_are_sure_and_opposite_disagree_by_the_entropy_of_their_mean(card):
  found, heads = numbers(card, "noise"), np.arange(31)
  entropy = stats.entropy(np.stack([heads, 30 - heads]) / 30)
  want = (stats.binom.pmf(heads, 30, 0.5) * entropy).sum()
  assert found["disagreement"] == pytest.approx(want, abs=0.01)
  chance = stats.binom.pmf(heads, 30, 0.5)
  # A tie is answered by the first class.
  wrong = np.where(LABELS == 0, chance[16:].sum(), chance[:16].sum())
  assert abs(found["error"] - wrong.mean()) < 4 * np.sqrt((wrong * (1 - wrong)).sum()) / 200
  losses = -np.log(np.maximum(heads, 1) / 30)
  spread = np.sqrt((chance * losses**2).sum() - (chance * losses).sum() ** 2)
  assert found["nll"] == pytest.approx((chance * losses).sum(), abs=4 * spread / np.sqrt(200))
  # The draws do not know the label.
  assert abs(found["mistakes"] - 0.5) < 4 / np.sqrt(12 * 200 * wrong.mean() * (1 - wrong.mean()))


GREY, SIDE = 0.56, 16


def corrupted_errors(strength):
  """Of grey images that are dark below a mean of 1/2: how often a mean falls below it, without sampling."""
  bound, places = 0.5 / GREY, np.arange(SIDE)
  below = lambda part, of: np.clip(part / of, 0, 1)
  found = {"contrast": 0.0, "brightness": below(0.2 * strength - (1 - bound), 0.4 * strength)}
  # Two unit squares, turned by a: they share 2 / (1 + sin a + cos a).
  turned = 2 / (1 + sum(f(np.deg2rad(np.linspace(0, 12 * strength, 10001))) for f in (np.sin, np.cos)))
  found["rotation"] = (turned < bound).mean()
  found["scale"] = below(np.log1p(0.15 * strength) + np.log(bound) / 2, 2 * np.log1p(0.15 * strength))
  moved = np.abs(np.arange(-np.ceil(0.04 * strength * SIDE), np.ceil(0.04 * strength * SIDE) + 1))
  found["shift"] = (np.outer(SIDE - moved, SIDE - moved) / SIDE**2 < bound).mean()
  size = int(np.ceil(0.1 * strength * SIDE))
  covered = [len({*range(top, top + size)} & {*places}) for top in places - size // 2]
  found["box"] = (1 - np.outer(covered, covered) / SIDE**2 < bound).mean()
  pixels = np.clip(stats.norm.ppf((np.arange(100000) + 0.5) / 100000, GREY, 0.08 * strength), 0, 1)
  found["noise"] = stats.norm.cdf(0.5, pixels.mean(), pixels.std() / SIDE)
  return found


def test_the_errors_of_corrupted_grey_images(tmp_path):
  dark = lambda x: jnp.stack([0.5 - x.mean((1, 2, 3)), x.mean((1, 2, 3)) - 0.5], axis=-1) * 50
  data = {"inputs": np.full((1024, SIDE, SIDE, 1), GREY, np.float32), "labels": np.ones(1024, int)}
  options = {"sections": ("corruptions",), "value_range": (0.0, 1.0), "minutes": 50}
  found = numbers(jaxreg.report(dark, data, out=tmp_path, **options), "corruptions")
  want = [corrupted_errors(strength) for strength in range(1, 6)]
  with np.load(tmp_path / "report.npz") as arrays:
    for name in want[0]:
      curve = np.array([0, *(each[name] for each in want)])
      np.testing.assert_allclose(arrays[f"corruptions/{name}"], curve, atol=0.06, err_msg=name)
      assert found[name] == pytest.approx(curve[1:].mean(), abs=0.03)
  assert found["all"] == pytest.approx(np.mean([found[name] for name in want[0]]))


def test_flatness_of_a_quadratic_loss(tmp_path):
  curvatures = jnp.arange(1.0, 17.0)
  loss_of = lambda params, x: 0.5 * (curvatures * params[:, 0] ** 2).sum() + 0 * x.mean()
  loss_fn = lambda params, batch, *, key: loss_of(params, batch["inputs"])
  predict = lambda params, x: linear(params[:, 0], x)
  options = {"loss_fn": loss_fn, "train": DATA, "sections": ("flatness",)}
  card = jaxreg.report(predict, DATA, params=WEIGHTS[:, None], out=tmp_path, **options)
  found, rise = numbers(card, "flatness"), card["sections"]["flatness"]["numbers"]["rise"]
  value = lambda w: 0.5 * (np.arange(1, 17) * np.float64(w) ** 2).sum()
  gradient = np.arange(1, 17) * WEIGHTS
  assert found["loss"] == pytest.approx(value(WEIGHTS), rel=1e-5)
  assert [found[f"eigenvalue/{place}"] for place in (1, 2, 3)] == pytest.approx([16, 15, 14], rel=1e-4)
  assert found["trace"] == pytest.approx(136, rel=1e-4)  # exact, since the matrix is diagonal
  # A direction of the parameters' length, in all directions alike: its mean curvature is that of the matrix.
  length, half = np.square(WEIGHTS).sum(), rise["high"] - rise["value"]
  assert 0.5 * length <= rise["value"] <= 8 * length
  assert abs(rise["value"] - 0.5 * 8.5 * length) < 3 * half
  with np.load(tmp_path / "report.npz") as arrays:
    profile, alphas = arrays["flatness/profile"], arrays["flatness/alphas"]
    grid, density = arrays["flatness/grid"], arrays["flatness/density"]
  second, _, constant = np.polyfit(alphas, profile.T.astype(float), 2)
  np.testing.assert_allclose(constant, value(WEIGHTS), rtol=1e-4)
  assert second.mean() == pytest.approx(rise["value"], rel=1e-3)
  width = grid[1] - grid[0]
  assert density.sum() * width == pytest.approx(1, abs=0.01)
  assert density[(grid < 0.5) | (grid > 16.5)].sum() * width < 0.01
  # The variance of v'Av / v'v of a normal v of size n is 2 var / (n + 2).
  chance = np.sqrt(2 * np.arange(1, 17).var() / 18 / 4)
  assert abs((grid * density).sum() * width - 8.5) < 4 * chance
  step = 0.05 * gradient / np.linalg.norm(gradient)
  assert found["sam"] == pytest.approx(value(WEIGHTS + step) - value(WEIGHTS), rel=1e-3)
  # Adaptive SAM's step, rho T^2 g / |T g| with T = |w|.
  step = 0.5 * WEIGHTS**2 * gradient / np.linalg.norm(WEIGHTS * gradient)
  assert found["adaptive"] == pytest.approx(value(WEIGHTS + step) - value(WEIGHTS), rel=1e-3)


def test_adaptive_sharpness_does_not_see_the_scale_of_a_layer():
  x = jnp.asarray(IMAGES.reshape(200, 16))
  loss_fn = lambda params, batch, *, key: jnp.square(jax.nn.relu(batch @ params["a"]) @ params["b"]).mean()
  params = {"a": jnp.asarray(RNG.normal(size=(16, 5)), jnp.float32), "b": jnp.ones(5)}
  other = {"a": 4 * params["a"], "b": params["b"] / 4}
  (plain, adaptive), (scaled, same) = (sharpnesses(loss_fn, each, x) for each in (params, other))
  np.testing.assert_allclose(adaptive, same, rtol=1e-4)
  assert abs(plain - scaled) > 0.1 * plain


def test_a_function_that_jax_cannot_trace_gives_what_needs_no_gradient(tmp_path):
  forest = RandomForestClassifier(5, random_state=0).fit(IMAGES.reshape(200, 16), LABELS)
  predict = lambda x: np.log(forest.predict_proba(np.asarray(x).reshape(len(x), 16)) + 1e-3)
  sections = ("errors", "corruptions", "adversarial", "flatness", "noise")
  card = jaxreg.report(predict, DATA, out=tmp_path, sections=sections)
  assert numbers(card, "errors")["error"] == pytest.approx(1 - forest.score(IMAGES.reshape(200, 16), LABELS))
  assert card["sections"]["corruptions"]["status"] == "done"
  reasons = {name: card["sections"][name]["reason"] for name in ("adversarial", "flatness", "noise")}
  assert "JAX can trace" in reasons["adversarial"]
  assert "params" in reasons["flatness"]
  page = (tmp_path / "report.html").read_text()
  assert all(f"{reason}</p>" in page for reason in reasons.values())


def test_images_of_integers_need_another_type_to_be_attacked(tmp_path):
  """The message says which, and with it the attack runs."""
  inputs, labels = np.arange(120, dtype=np.uint8).reshape(40, 3), np.arange(40) % 3
  options = {"sections": ("adversarial",), "minutes": 0.01, "value_range": (0.0, 255.0)}

  def card(inputs):
    data = {"inputs": inputs, "labels": labels}
    return jaxreg.report(lambda x: x / 255.0, data, out=tmp_path, **options)["sections"]["adversarial"]

  assert card(inputs)["reason"] == "needs floating inputs, got uint8: give np.float32(inputs)"
  assert card(np.float32(inputs))["status"] == "done"


def test_the_budget_chooses_the_number_of_examples(tmp_path):
  """A model of 20 ms for 256 examples: seven corruptions of five strengths cost 2.7 ms an example."""

  def slow(x):
    time.sleep(0.02)
    return np.asarray(linear(WEIGHTS, np.asarray(x)))

  data = {"inputs": np.tile(IMAGES, (3, 1, 1, 1)), "labels": np.tile(LABELS, 3)}
  for minutes, number in ((0.01, 128), (100, 600)):
    options = {"sections": ("corruptions",), "minutes": minutes, "out": tmp_path / str(minutes)}
    cost = jaxreg.report(slow, data, **options)["sections"]["corruptions"]["cost"]
    assert cost == f"{35 * number} predictions on {number} examples"


def test_a_section_that_fails_is_a_line_and_is_tried_again(tmp_path):
  def loss_fn(params, batch, *, key):
    raise RuntimeError("no <b>loss</b> today")

  options = {"params": WEIGHTS, "out": tmp_path, "sections": ("errors", "flatness")}
  card = jaxreg.report(linear, DATA, loss_fn=loss_fn, train=DATA, **options)
  assert numbers(card, "errors")
  assert card["sections"]["flatness"] == {"status": "failed", "reason": "RuntimeError: no <b>loss</b> today"}
  assert "no &lt;b&gt;loss&lt;/b&gt; today" in (tmp_path / "report.html").read_text()
  assert numbers(jaxreg.report(linear, DATA, train=DATA, **options), "flatness")


def test_channels_that_come_first_give_the_same(tmp_path):
  options = {"sections": ("ood", "corruptions")}
  cards = [
    jaxreg.report(lambda x: linear(WEIGHTS, x), DATA, out=tmp_path / "last", **options),
    jaxreg.report(
      lambda x: linear(WEIGHTS, x),
      {"inputs": np.moveaxis(IMAGES, -1, 1), "labels": LABELS},
      out=tmp_path / "first",
      channel_axis=1,
      **options,
    ),
  ]
  for section in options["sections"]:
    assert numbers(cards[0], section) == pytest.approx(numbers(cards[1], section))

"""The sections that call the model, against closed forms and scikit-learn; what fails is a line."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from sklearn import metrics
from sklearn.ensemble import RandomForestClassifier

import jaxreg
from jaxreg.reports._curvature import sharpnesses

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
  assert found["clean"] <= found["random"] < found["eps 0.2"]
  assert found["no_gradient"] == 0


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


def test_draws_that_are_sure_and_opposite_disagree_by_the_entropy_of_their_mean(card):
  found, heads = numbers(card, "noise"), np.arange(31)
  entropy = stats.entropy(np.stack([heads, 30 - heads]) / 30)
  want = (stats.binom.pmf(heads, 30, 0.5) * entropy).sum()
  assert found["disagreement"] == pytest.approx(want, abs=0.01)
  assert 0.35 < found["error"] < 0.65


def test_the_error_of_darker_images_is_the_chance_of_the_factor(tmp_path):
  """A grey of 0.6 is taken for dark if its factor, uniform in 1 ± 0.2 s, is below 5/6."""
  threshold = lambda x: jnp.stack([0.5 - x.mean((1, 2, 3)), x.mean((1, 2, 3)) - 0.5], axis=-1) * 50
  data = {"inputs": np.full((1024, 4, 4, 1), 0.6, np.float32), "labels": np.ones(1024, int)}
  options = {"sections": ("corruptions",), "value_range": (0.0, 1.0), "minutes": 50}
  found = jaxreg.report(threshold, data, out=tmp_path, **options)
  want = np.array([0, *(max(0, 0.2 * s - 1 / 6) / (0.4 * s) for s in range(1, 6))])
  with np.load(tmp_path / "report.npz") as arrays:
    np.testing.assert_allclose(arrays["corruptions/brightness"], want, atol=0.06)
    assert not arrays["corruptions/contrast"].any()
  assert numbers(found, "corruptions")["brightness"] == pytest.approx(want[1:].mean(), abs=0.03)


def test_flatness_of_a_quadratic_loss(tmp_path):
  curvatures = jnp.arange(1.0, 17.0)
  loss_fn = lambda params, batch, *, key: 0.5 * (curvatures * params**2).sum() + 0 * batch["inputs"].mean()
  options = {"loss_fn": loss_fn, "train": DATA, "sections": ("flatness",)}
  found = numbers(jaxreg.report(linear, DATA, params=WEIGHTS, out=tmp_path, **options), "flatness")
  value = lambda w: 0.5 * (np.arange(1, 17) * np.float64(w) ** 2).sum()
  gradient = np.arange(1, 17) * WEIGHTS
  assert found["loss"] == pytest.approx(value(WEIGHTS), rel=1e-5)
  assert [found[f"eigenvalue/{place}"] for place in (1, 2, 3)] == pytest.approx([16, 15, 14], rel=1e-4)
  assert found["trace"] == pytest.approx(136, rel=1e-4)  # exact, since the matrix is diagonal
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

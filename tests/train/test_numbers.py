"""Labels that are numbers: against float64 NumPy, SciPy and scikit-learn."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import runs
from scipy import stats
from sklearn import linear_model, metrics

from configs.regression_diabetes import get_config
from jaxreg import calibration, train
from jaxreg.train.assemble.from_config import build
from jaxreg.train.data import sources
from jaxreg.train.data.dataset import Dataset, Split, Standard, known
from jaxreg.train.finished.loss import whole_batch
from jaxreg.train.run import manifest
from jaxreg.train.step.metrics import summarize, to_host
from jaxreg.train.step.targets import Numbers
from jaxreg.train.summary import summary

FIELDS = {
  "data.name": "diabetes",
  "method.name": "squared_error",
  "data.subset.limit": 0,
  "model.MLP.dropout_rate": 0.0,
  "epochs": 3,
}
DATA = sources.diabetes()
SPEC = DATA.describe()
MEAN, STD = SPEC.label_mean[0], SPEC.label_std[0]
METHODS = ("squared_error", "huber", "gaussian_nll", "student_t_nll", "pinball")


def inputs_of(split):
  return split.inputs.astype(np.float64)


def in_units(split):
  """The measurements as scikit-learn has them."""
  return inputs_of(split) * np.array(DATA.input_std) + np.array(DATA.input_mean)


def test_the_data_are_those_of_scikit_learn():
  assert (SPEC.num_classes, SPEC.sizes, SPEC.class_counts) == (0, {"train": 264, "val": 89, "test": 89}, ())
  np.testing.assert_allclose(DATA.train.labels.mean(), MEAN, rtol=1e-5)
  np.testing.assert_allclose(inputs_of(DATA.train).std(0), 1, rtol=1e-5)
  assert not {*map(tuple, DATA.train.inputs)} & {*map(tuple, DATA.test.inputs)}


def stepped(batch, spec=SPEC, **fields):
  """The metrics of the first step, and the head's outputs before it."""
  batch = {**batch, "labels": Standard(spec.label_mean, spec.label_std).learned(batch["labels"])}
  program = build(runs.make_config({**FIELDS, **fields}), spec)
  state = program.init(0)
  _, sums = jax.jit(program.train_step)(state, batch)
  outputs, _ = program.apply_fn(state.params, {}, jnp.asarray(batch["inputs"]), key=None, train=False)
  float64 = {name: np.asarray(value, np.float64) for name, value in outputs.items()}
  values = summarize(jax.tree.map(lambda x: np.asarray(x)[None], sums), "train")
  return {name.removeprefix("train/"): float(value[0]) for name, value in values.items()}, float64


def surprise(name, outputs, y):
  """The losses in float64; `y` is standardised."""
  f = outputs["outputs"]
  if name == "squared_error":
    return (y - f) ** 2
  if name == "huber":
    return np.where(abs(y - f) <= 1, (y - f) ** 2 / 2, abs(y - f) - 0.5)
  if name == "pinball":
    levels, error = np.array([0.05, 0.5, 0.95]), y[..., None] - f
    return np.maximum(levels * error, (levels - 1) * error).mean(-1)
  std = np.exp(outputs["log_vars"] / 2)
  if name == "student_t_nll":
    return -stats.t.logpdf(
      y, 4, f, std / np.sqrt(2)
    )  # the variance of a t of 4 degrees is twice its scale's square
  return -stats.norm.logpdf(y, f, std)


@pytest.mark.thorough
@pytest.mark.parametrize("name", METHODS)
def test_the_loss_is_the_mean_over_weighted_examples(name):
  labels, weights = DATA.train.labels[:32], np.float32(np.arange(32) % 3)
  got, outputs = stepped(
    {"inputs": DATA.train.inputs[:32], "labels": labels, "weights": weights}, **{"method.name": name}
  )
  want = surprise(name, outputs, (labels.astype(np.float64) - MEAN) / STD)
  assert got[name] == pytest.approx(np.average(want, weights=weights), rel=1e-4)
  assert got["loss"] == pytest.approx(got[name])
  point = outputs["outputs"][:, 1] if name == "pinball" else outputs["outputs"]
  point = np.sort(outputs["outputs"])[:, 1] if name == "pinball" else point
  mae = np.average(abs(point * STD + MEAN - labels), weights=weights)
  assert got["mae"] == pytest.approx(mae, rel=1e-4)


def several(rng, missing=True):
  """Three targets of very different sizes, a few of them unknown."""
  x = rng.normal(size=(120, 5)).astype(np.float32)
  y = (x @ rng.normal(size=(5, 3)) + rng.normal(size=(120, 3))) * np.array([1, 100, 1e-3]) + np.array(
    [0, 1e3, 5]
  )
  y = y.astype(np.float32)
  if missing:
    y[::7, 1] = np.nan
  parts = [Split(x[i : i + 40], y[i : i + 40]) for i in (0, 40, 80)]
  return Dataset(*parts, num_classes=0).checked()


@pytest.mark.thorough
@pytest.mark.parametrize("name", METHODS)
def test_unknown_targets_have_no_effect(name):
  data = several(np.random.default_rng(0))
  spec, split = data.describe(), data.train
  got, outputs = stepped({"inputs": split.inputs, "labels": split.labels}, spec, **{"method.name": name})
  known = np.isfinite(split.labels)
  y = (split.labels.astype(np.float64) - np.array(spec.label_mean)) / np.array(spec.label_std)
  want = surprise(name, outputs, np.where(known, y, 0))
  assert outputs["outputs"].shape[:2] == (40, 3)
  assert got[name] == pytest.approx(want[known].mean(), rel=1e-4)
  # An example without any target counts for nothing, even if its inputs are broken.
  batch = {"inputs": split.inputs.copy(), "labels": split.labels.copy()}
  batch["inputs"][3], batch["labels"][3] = np.nan, np.nan
  broken, _ = stepped(batch, spec, **{"method.name": name})
  left, _ = stepped(
    {part: np.delete(array, 3, 0) for part, array in batch.items()}, spec, **{"method.name": name}
  )
  assert broken["loss"] == pytest.approx(left["loss"], rel=1e-5)


@pytest.mark.thorough
def test_the_metrics_are_those_of_scikit_learn():
  rng = np.random.default_rng(1)
  labels, means = rng.normal(50, 7, (200, 2)), rng.normal(50, 7, (200, 2))
  variances, standard = rng.uniform(20, 60, (200, 2)), Standard((40.0, 60.0), (5.0, 9.0))
  squares = np.square(standard.stds)
  moments = jnp.stack([standard.learned(means), jnp.float32(variances / squares)], axis=-1)
  target = Numbers(standard, "moments", alpha=0.2)
  batch = {"inputs": jnp.zeros((200, 3)), "labels": standard.learned(labels)}
  sums = target.metrics(moments, train.step.batch.make_examples(batch, 1.0, numbers=True))
  found = summarize(jax.tree.map(lambda x: np.asarray(x)[None], sums), "test")
  want = {
    "rmse": np.sqrt(metrics.mean_squared_error(labels, means)),
    "mae": metrics.mean_absolute_error(labels, means),
    "r2": metrics.r2_score(labels, means),
    "nlpd": -stats.norm.logpdf(labels, means, np.sqrt(variances)).mean(),
    "coverage": (abs(labels - means) <= stats.norm.ppf(0.9) * np.sqrt(variances)).mean(),
    "width": (2 * stats.norm.ppf(0.9) * np.sqrt(variances)).mean(),
  }
  assert {name: pytest.approx(value, rel=1e-4) for name, value in want.items()} == {
    name.removeprefix("test/"): float(value[0]) for name, value in found.items()
  }


def test_coverage_of_targets_in_very_unequal_units():
  rng = np.random.default_rng(4)
  labels = np.float32(rng.normal(size=(200, 2)))
  target = Numbers(Standard((0.0, 0.0), (1.0, 1e-50)), "moments", alpha=0.2)
  batch = {"inputs": jnp.zeros((200, 3)), "labels": labels}
  moments = jnp.stack([jnp.zeros((200, 2)), jnp.ones((200, 2))], axis=-1)
  sums = target.metrics(moments, train.step.batch.make_examples(batch, 1.0, numbers=True))
  covered, count = sums["coverage"]
  assert covered / count == pytest.approx((abs(labels) <= stats.norm.ppf(0.9)).mean())


@pytest.mark.parametrize("label", [0.0, 1e4 / 3])
def test_equal_targets_have_no_r2(label):
  """Of two targets, that of the other one is left."""
  rng = np.random.default_rng(5)
  labels, found = np.float32(np.stack([np.full(50, label), rng.normal(size=50)], axis=1)), {}
  for number, columns in ((1, [0]), (2, [0, 1])):
    target = Numbers(Standard((0.0,) * number, (1.0,) * number), "means")
    batch = {"inputs": jnp.zeros((50, 3)), "labels": labels[:, columns]}
    examples = train.step.batch.make_examples(batch, 1.0, numbers=True)
    outputs = jnp.stack([jnp.zeros((50, number)), jnp.zeros((50, number))], axis=-1)
    found[number] = summarize(to_host((target.metrics(outputs, examples),)), "test")
  assert "test/r2" not in found[1]
  assert found[2]["test/r2"][0] == pytest.approx(metrics.r2_score(labels[:, 1], np.zeros(50)), rel=1e-5)


def test_r2_far_from_the_training_targets():
  """Targets 200 training deviations away, in batches of uneven size: float32 squares lose their variance."""
  rng = np.random.default_rng(3)
  labels, total = rng.normal(200, 0.05, 500).astype(np.float32), None
  means = labels + rng.normal(0, 0.03, 500).astype(np.float32)
  weights = np.float32(rng.uniform(size=500) > 0.2)
  target = Numbers(Standard((0.0,), (1.0,)), "means")
  for part in np.split(np.arange(500), (7, 300)):
    batch = {"inputs": jnp.zeros((len(part), 3)), "labels": labels[part], "weights": weights[part]}
    examples = train.step.batch.make_examples(batch, 1.0, numbers=True)
    sums = target.metrics(jnp.stack([means[part], 0 * means[part]], axis=-1), examples)
    total = calibration.merge(total, to_host((sums,)))
  want = metrics.r2_score(labels.astype(float), means, sample_weight=weights)
  assert summarize(total, "test")["test/r2"][0] == pytest.approx(want, rel=1e-4)


def test_members_are_one_mixture():
  """The moments of draws from the members."""
  rng = np.random.default_rng(2)
  means, variances = rng.normal(size=3), rng.uniform(0.5, 2, 3)
  target = Numbers(Standard((0.0,), (1.0,)), "moments")
  mean, variance = target.mean(jnp.stack([jnp.float32(means), jnp.float32(variances)], axis=-1)[:, None])[0]
  draws = rng.normal(means, np.sqrt(variances), (400_000, 3))
  assert mean == pytest.approx(draws.mean(), abs=0.01)
  assert variance == pytest.approx(draws.var(), abs=0.02)


ESTIMATORS = {
  "ridge": linear_model.Ridge(alpha=0.05 * 264),
  "lasso": linear_model.Lasso(alpha=0.05, tol=1e-10),
  "elastic_net": linear_model.ElasticNet(alpha=0.05, l1_ratio=0.5, tol=1e-10),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", ESTIMATORS)
def test_linear_models_are_those_of_scikit_learn(name, tmp_path, light_runs):
  config = get_config(name)
  config.epochs = 1500
  train.train(config, tmp_path)
  state = runs.final_state(tmp_path)
  layer = jax.tree.map(np.squeeze, state["params"]["head"]["outputs"])
  fitted = ESTIMATORS[name].fit(inputs_of(DATA.train), (DATA.train.labels - MEAN) / STD)
  np.testing.assert_allclose(layer["kernel"], fitted.coef_, atol=1e-4)
  np.testing.assert_array_equal(layer["kernel"] == 0, fitted.coef_ == 0)
  predict = train.load(tmp_path)
  want = fitted.predict(inputs_of(DATA.test)) * STD + MEAN
  np.testing.assert_allclose(predict(in_units(DATA.test)), want, rtol=1e-4)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, light_module):
  workdir = tmp_path_factory.mktemp("regression")
  train.train(runs.make_config(FIELDS), workdir)
  return workdir


@pytest.mark.thorough
def test_a_run_is_trained_loaded_and_measured(trained, light_runs):
  config = runs.make_config({**FIELDS, "job": "evaluate", "evaluate.measures": ("conformal", "laplace")})
  found = train.evaluate(config, trained)
  predict = train.load(trained)
  assert repr(predict) == "Predictor(inputs [batch, 10] float32 -> numbers, step 24)"
  point, held = np.asarray(predict(in_units(DATA.test))), np.asarray(predict(in_units(DATA.val)))
  assert found["test/rmse"] == pytest.approx(
    np.sqrt(metrics.mean_squared_error(DATA.test.labels, point)), rel=1e-5
  )
  assert found["test/r2"] == pytest.approx(metrics.r2_score(DATA.test.labels, point), rel=1e-4)
  # Split conformal: the ceil(0.9 * 90)-th of the 89 residuals.
  margin = np.sort(abs(DATA.val.labels - held))[int(np.ceil(0.9 * 90)) - 1]
  assert found["test/conformal_width"] == pytest.approx(2 * margin, rel=1e-4)
  covered = (abs(DATA.test.labels - point) <= margin).mean()
  assert found["test/conformal_coverage"] == pytest.approx(covered, abs=1e-6)
  with pytest.raises(ValueError, match="classify needs a model of classes"):
    predict.classify(in_units(DATA.test))
  told = summary(found, config, trained)
  assert all(word in told for word in ("RMSE", "R2", "conformal intervals hold", "by Laplace: NLPD"))


@pytest.mark.thorough
def test_last_layer_laplace_is_bayesian_linear_regression(tmp_path, light_runs):
  """Without hidden layers, the posterior has a closed form."""
  fields = {**FIELDS, "model.MLP.widths": (), "epochs": 200, "optimizer.learning_rate": 0.02}
  train.train(runs.make_config(fields), tmp_path)
  config = runs.make_config({**fields, "job": "evaluate", "evaluate.measures": ("laplace",)})
  found = train.evaluate(config, tmp_path)
  predict = train.load(tmp_path)
  one = lambda split: np.c_[inputs_of(split), np.ones(len(split))]
  errors = (np.asarray(predict(in_units(DATA.train))) - DATA.train.labels) / STD
  noise, x = (errors**2).mean(), one(DATA.train)
  inverse = np.linalg.inv(x.T @ x / noise + found["test/laplace_precision"] * np.eye(11))
  std = STD * np.sqrt(np.einsum("nd,de,ne->n", one(DATA.test), inverse, one(DATA.test)) + noise)
  point = np.asarray(predict(in_units(DATA.test)), np.float64)
  want = -stats.norm.logpdf(DATA.test.labels, point, std).mean()
  assert found["test/laplace_nlpd"] == pytest.approx(want, rel=1e-4)
  assert found["test/laplace_width"] == pytest.approx(2 * stats.norm.ppf(0.95) * std.mean(), rel=1e-3)

  # Here the last layer is the network. Its precision is the one of the largest evidence, in closed form.
  state = runs.final_state(tmp_path)["params"]["head"]["outputs"]
  squares = float(sum((np.asarray(leaf[0]) ** 2).sum() for leaf in state.values()))
  values = np.linalg.eigvalsh(x.T @ x / noise)
  evidence = lambda tau: 11 * np.log(tau) - tau * squares - np.log(values + tau).sum()
  taus = np.logspace(-6, 6, 100001)
  tau = taus[np.argmax([evidence(each) for each in taus])]
  for structure, samples in (("dense", 0), ("kfac", 0), ("kfac", 2000)):
    options = {"laplace.over": "all", "laplace.structure": structure, "laplace.samples": samples}
    config = runs.make_config({**fields, "job": "evaluate", "evaluate.measures": ("laplace",), **options})
    found = train.evaluate(config, tmp_path)
    assert found["test/laplace_precision"] == pytest.approx(tau, rel=3e-3)
    inverse = np.linalg.inv(x.T @ x / noise + tau * np.eye(11))
    std = STD * np.sqrt(np.einsum("nd,de,ne->n", one(DATA.test), inverse, one(DATA.test)) + noise)
    want = -stats.norm.logpdf(DATA.test.labels, point, std).mean()
    assert found["test/laplace_nlpd"] == pytest.approx(want, rel=1e-2 if samples else 1e-4)


@pytest.mark.thorough
def test_a_run_is_resumed_to_the_same_bits(trained, light_runs, tmp_path):
  train.train(runs.make_config({**FIELDS, "epochs": 2}), tmp_path)
  assert max(manifest.good_steps(tmp_path)) < max(manifest.good_steps(trained))
  train.train(runs.make_config(FIELDS), tmp_path)
  runs.assert_bitwise(runs.final_state(tmp_path), runs.final_state(trained))


OTHERS = {
  "dropout and MC dropout": {"model.MLP.dropout_rate": 0.2, "evaluate.mc_samples": 3},
  "an ensemble": {"replicas": 2, "ensemble": 2, "method.name": "gaussian_nll"},
  "EMA": {"average.name": "ema"},
  "early stopping": {"average.name": "early_stopping"},
  "SWAG": {"average.name": "swag", "method.name": "pinball"},
  "SAM": {"optimizer.name": "sam"},
  "l1": {"regularizers.names": ("l1",)},
  "VAT": {"regularizers.names": ("virtual_adversarial",)},
  "FGSM": {"regularizers.names": ("fgsm", "gradient_penalty", "jacobian_penalty")},
  "mixup": {"augment.names": ("mixup",), "method.name": "student_t_nll"},
  "manifold mixup": {"augment.names": ("manifold_mixup",)},
  "unlabelled": {"noise.names": ("gaussian_noise",)},
}


@pytest.mark.thorough
@pytest.mark.parametrize("fields", OTHERS.values(), ids=OTHERS)
def test_regularizers_train_numbers(fields, tmp_path, light_runs):
  results = train.train(runs.make_config({**FIELDS, **fields}), tmp_path)
  assert results["test/rmse"] < 1.5 * STD


MISTAKES = {
  "a loss of classes": ({"method.name": "softmax"}, "labels of the data are numbers, which need one of"),
  "a term of classes": ({"regularizers.names": ("r_drop",)}, "r_drop needs classes"),
  "label noise": ({"noise.names": ("label_noise",)}, "label_noise needs classes"),
  "geometric means": ({"evaluate.combine": "geometric", "evaluate.mc_samples": 3}, "geometric needs classes"),
  "class weights": ({"method.class_weights": "inverse"}, "method.class_weights: needs"),
  "balanced classes": ({"data.balanced": True}, "data.balanced: needs"),
  "a subset": ({"data.subset.per_class": 3}, "data.subset: needs one class per example, got numbers"),
  "flipped labels": ({"data.flipped_labels.rate": 0.1}, "needs one class per example, got numbers"),
  "levels": ({"method.name": "pinball", "method.pinball.loss.levels": (0.9, 0.1)}, "loss.levels: must be"),
  "degrees": (
    {"method.name": "student_t_nll", "method.student_t_nll.loss.df": 2.0},
    "loss.df: must be above 2",
  ),
}


@pytest.mark.parametrize(("fields", "told"), MISTAKES.values(), ids=MISTAKES)
def test_what_needs_classes_is_refused(fields, told, tmp_path):
  with pytest.raises(train.RunError, match=told) as refused:
    train.train(runs.make_config({**FIELDS, **fields}), tmp_path / "run")
  assert "\n" not in str(refused.value)
  assert not (tmp_path / "run").exists()


def test_a_metric_or_a_method_of_other_labels_is_refused():
  with pytest.raises(train.RunError, match=r"checkpoint\.best: must be auto or val/rmse, val/mae where"):
    build(runs.make_config({**FIELDS, "checkpoint.best": "val/error"}), SPEC)
  with pytest.raises(train.RunError, match="are 10 classes, which need one of softmax"):
    build(runs.make_config({"method.name": "squared_error"}), sources.digits().describe())


def test_labels_that_are_not_finite_are_told():
  labels = DATA.train.labels.copy()
  labels[7] = np.nan
  broken = dataclasses.replace(DATA, train=dataclasses.replace(DATA.train, labels=labels))
  with pytest.raises(train.RunError, match="split train: labels must be finite, got nan at position 7"):
    broken.checked()


@pytest.mark.thorough
def test_a_program_for_a_loop_of_ones_own():
  config = runs.make_config({**FIELDS, "data.name": "digits"})
  given = {"input_shape": (10,), "num_classes": 0, "num_examples": 264}
  program = train.make_program(config, **given)
  state = program.init(0)
  batch = {
    "inputs": np.float32(inputs_of(DATA.train)),
    "labels": np.float32((DATA.train.labels - MEAN) / STD),
  }
  _, sums = jax.jit(program.train_step)(state, batch)
  outputs, _ = program.apply_fn(state.params, {}, batch["inputs"], key=None, train=False)
  want = surprise("squared_error", jax.device_get(outputs), (DATA.train.labels - MEAN) / STD).mean()
  assert float(sums["loss"][0] / sums["loss"][1]) == pytest.approx(want, rel=1e-5)


@pytest.mark.thorough
def test_the_loss_of_a_loaded_run_is_that_of_its_predictions(tmp_path, light_runs):
  train.train(runs.make_config({**FIELDS, "model.MLP.widths": (4,)}), tmp_path / "run")
  predict = train.load(tmp_path / "run")
  error = (np.asarray(predict(in_units(DATA.train)), np.float64) - DATA.train.labels) / STD
  loss = predict.loss_fn(predict.state.params, predict.whole_batch(), key=None)
  assert float(loss) == pytest.approx((error**2).mean(), rel=1e-4)


@pytest.mark.parametrize("labels", [np.array([0, 2, -1]), np.array([[1.5, np.nan], [-1.0, 0.0]])])
def test_which_labels_are_known(labels):
  batch = whole_batch(Split(np.ones((len(labels), 2)), labels))
  where = known(labels)
  np.testing.assert_array_equal(where, ~(np.isnan(labels) if labels.ndim > 1 else labels == -1))
  np.testing.assert_allclose(batch["weights"], where * len(labels) / where.sum())


UNITS = {
  "1": (1.0, 0.0),
  "1e20": (1e20, 0.0),
  "1e-20": (1e-20, 0.0),
  "1e300": (1e300, 0.0),
  "an offset": (1.0, 2.0**40),
}


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["squared_error", "gaussian_nll", "pinball"])
def test_targets_may_have_any_unit_and_offset(method, tmp_path, light_runs):
  """The same rows in another unit: the same training, and metrics and predictions in that unit."""
  rng = np.random.default_rng(0)
  x = rng.normal(size=(120, 2))
  y = np.round(2**20 * (x @ [1.0, -2.0] + 0.1 * rng.normal(size=120))) / 2**20
  measured, cards = {}, {}
  for name, (unit, offset) in UNITS.items():
    file, workdir = tmp_path / f"{name}.csv", tmp_path / name
    file.write_text(
      "a,b,y\n"
      + "".join(f"{a!r},{b!r},{c!r}\n" for (a, b), c in zip(x.tolist(), (unit * y + offset).tolist()))
    )
    fields = {**FIELDS, "data.name": "csv", "data.csv.path": str(file), "data.csv.label_kind": "numbers"}
    fields |= {"method.name": method, "epochs": 2, "batch_size": 16}
    results = train.train(runs.make_config(fields), workdir)
    evaluated = runs.make_config({**fields, "job": "evaluate", "evaluate.measures": ("conformal",)})
    results |= train.evaluate(evaluated, workdir)
    predict = train.load(workdir)
    labels = predict.dataset.test.labels
    assert results["test/rmse"] / unit == pytest.approx(
      np.sqrt(
        np.mean(
          ((np.asarray(predict(x)) - (unit * y + offset)) / unit)[np.isin(unit * y + offset, labels)] ** 2
        )
      ),
      rel=1e-4,
    )
    if (method, name) != ("gaussian_nll", "1e300"):  # whose variances have no float64
      sections = ("residuals", "conformal")
      train.report(runs.make_config({**fields, "job": "report", "report.sections": sections}), workdir)
      card = json.loads((workdir / "report" / "report.json").read_text())["sections"]
      found = {key: card[key]["numbers"] for key in sections}
      for metric in ("rmse", "mae", "r2"):
        assert found["residuals"][metric]["value"] == pytest.approx(results[f"test/{metric}"], rel=2e-4)
      cards[name] = {
        "width": found["conformal"]["conformal_width"]["value"] / unit,
        "coverage": found["conformal"]["conformal_coverage"]["value"],
      }
    in_units = {f"test/{metric}" for metric in ("rmse", "mae", "width", "pinball", "conformal_width")}
    measured[name] = {
      metric: value / unit if metric in in_units else value - np.log(unit) * (metric == "test/nlpd")
      for metric, value in results.items()
      if metric.startswith("test/")
    }
  for name, other in measured.items():
    assert other == pytest.approx(measured["1"], rel=2e-4)
    assert cards.get(name, cards["1"]) == pytest.approx(cards["1"], rel=2e-4)

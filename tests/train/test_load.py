"""Getting a trained model back."""

import dataclasses
import json
import shutil
import types

import jax
import numpy as np
import oracles
import pytest
import runs
from scipy import optimize, special
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import roc_auc_score

from jaxreg import calibration, models, train
from jaxreg.train.config.checks import check
from jaxreg.train.config.fields import FIELDS
from jaxreg.train.config.values import names_of
from jaxreg.train.data import sources
from jaxreg.train.finished import laplace, measures
from jaxreg.train.finished import restore as finished_restore
from jaxreg.train.finished.restore import restore_run
from jaxreg.train.jobs import evaluate
from jaxreg.train.registry import REGISTRY
from jaxreg.train.run import checkpoint, manifest
from jaxreg.train.summary import summary

# The package's attribute of that name is the function.


def results(workdir):
  return runs.table(workdir / "results.json")


@pytest.fixture(scope="module")
def predict(finished_run):
  return train.load(finished_run)


@pytest.fixture
def images():
  return sources.digits().test.inputs[:6]


@pytest.mark.thorough
def test_predictions_are_those_of_the_evaluation(finished_run, predict):
  digits = sources.digits().limited(128)
  for name in ("val", "test"):
    split = digits.splits()[name]
    log_probs = np.asarray(predict(split.inputs))
    assert log_probs.shape == (128, 10)
    np.testing.assert_allclose(np.exp(log_probs).sum(-1), 1, rtol=1e-5)
    assert np.mean(log_probs.argmax(-1) != split.labels) == results(finished_run)[f"{name}/error"]
    nll = -np.take_along_axis(log_probs, split.labels[:, None], -1).mean(dtype=np.float64)
    np.testing.assert_allclose(nll, results(finished_run)[f"{name}/nll"], rtol=1e-6)


@pytest.mark.thorough
def test_predictions_are_deterministic_and_by_example(finished_run, predict, images):
  np.testing.assert_array_equal(predict(images), train.load(str(finished_run))(images))
  np.testing.assert_allclose(predict(images)[2:4], predict(images[2:4]), rtol=1e-5)


def test_floats_that_are_scaled_already(predict, images):
  """Digits are stored as 0 to 16."""
  np.testing.assert_array_equal(predict(images / 16.0), predict(images))
  with pytest.raises(
    ValueError, match=r"floating inputs must lie in \[0, 1\], divided by 16; .* from 0 to 16"
  ):
    predict(images.astype(np.float32))
  with pytest.raises(ValueError, match=r"uint8, as the data source stores them, or floating .* got int64"):
    predict(images.astype(np.int64))


def test_the_model_says_what_it_is(predict):
  assert repr(predict) == (
    "Predictor(inputs [batch, 8, 8, 1] uint8 in [0, 16], or floating in [0, 1] -> log-probabilities of "
    "10 classes, step 24)"
  )


@pytest.mark.parametrize("shape", [(64,), (3, 64), (3, 8, 8), (8, 8, 1), (3, 8, 8, 3), ()])
def test_inputs_of_another_shape_are_refused(predict, shape):
  with pytest.raises(ValueError, match=r"inputs must have shape \[batch, 8, 8, 1\], got ") as refused:
    predict(np.zeros(shape, np.uint8))
  assert str(shape) in str(refused.value)


@pytest.mark.thorough
def test_the_best_checkpoint(finished_run, light_runs):
  steps = manifest.good_steps(finished_run)
  errors = {step: values["val/error"] for step, values in steps.items()}
  best = min(errors, key=lambda step: (errors[step], -step))
  # Otherwise this would test nothing: choose another seed then.
  assert best != max(errors)
  assert errors[best] < errors[max(errors)]
  everything = [record for record in runs.records(finished_run) if "val/error" in record]
  assert errors[best] == min(record["val/error"] for record in everything)
  val = sources.digits().limited(128).val
  error = np.mean(train.load(finished_run, checkpoint="best")(val.inputs).argmax(-1) != val.labels)
  assert error == errors[best]
  config = runs.make_config({"job": "evaluate", "evaluate.checkpoint": "best", "evaluate.split": "val"})
  evaluated = train.evaluate(config, finished_run)
  assert evaluated == {"step": best, **steps[best]}


def test_the_best_of_none_that_was_measured_is_refused(finished_copy, monkeypatch):
  unmeasured = manifest.sealed({"files": {}, "metrics": None, "sums": None})
  monkeypatch.setattr(manifest, "_inspected", lambda workdir: {3: manifest._Inspected(None, unmeasured)})
  with pytest.raises(
    train.RunError, match=r"^checkpoint: .* has no checkpoint yet that was measured .*'latest'$"
  ):
    train.load(finished_copy, checkpoint="best")


@pytest.mark.thorough
def test_evaluation_of_the_latest_is_that_of_training(finished_run, light_runs):
  evaluated = train.evaluate(runs.make_config({"job": "evaluate"}), finished_run)
  expected = {k: v for k, v in results(finished_run).items() if k == "step" or k.startswith("test/")}
  assert evaluated == expected


@pytest.mark.thorough
def test_images_from_elsewhere(finished_run, light_runs):
  """Scores by the run's own predictions; oracle: scikit-learn's area, and the sorted scores."""
  config = runs.make_config({"job": "evaluate", "evaluate.ood": ("inverted", "rotated")})
  evaluated = train.evaluate(config, finished_run)
  predict, test = train.load(finished_run), sources.digits().limited(128).test.inputs
  for kind, other in (("inverted", 16 - test), ("rotated", np.rot90(test, axes=(1, 2)))):
    usual, strange = (1 - np.exp(np.asarray(predict(x), np.float64)).max(-1) for x in (test, other))
    labels = np.repeat([0, 1], [len(usual), len(strange)])
    area = roc_auc_score(labels, np.concatenate([usual, strange]))
    assert evaluated[f"ood/{kind}/confidence_auroc"] == pytest.approx(area, abs=1e-3)
    passing = (strange <= np.sort(usual)[int(np.ceil(0.95 * len(usual))) - 1]).mean()
    assert evaluated[f"ood/{kind}/confidence_fpr95"] == pytest.approx(passing, abs=0.02)
  assert "AUROC" in summary(evaluated, config, finished_run)
  with pytest.raises(train.RunError, match=r"evaluate\.ood: got 'inverse'.*did you mean 'inverted'"):
    check(runs.make_config({"evaluate.ood": ("inverse",)}))


class OfLogProbs(ClassifierMixin, BaseEstimator):
  """A classifier of scikit-learn whose features are log-probabilities."""

  classes_ = np.arange(10)

  def fit(self, log_probs, labels):
    return self

  def predict_proba(self, log_probs):
    return np.exp(log_probs)

  def predict(self, log_probs):
    return log_probs.argmax(axis=-1)

  def __sklearn_is_fitted__(self):
    return True


@pytest.mark.thorough
def test_further_measures(finished_run, light_runs):
  """Oracles: NumPy on the run's own predictions; SciPy for the temperature; sorted scores for the sets."""
  names = ("mce", "adaptive_ece", "classwise_ece", "temperature", "conformal", "aps", "isotonic", "vector")
  names = (*names, "matrix", "smooth_ece", "debiased_ece", "selective", "conformal_by_class", "raps")
  config = runs.make_config({"job": "evaluate", "evaluate.measures": names, "evaluate.alpha": 0.2})
  found = train.evaluate(config, finished_run)
  predict, data = train.load(finished_run), sources.digits().limited(128)
  splits = {"test": data.test, "val": data.val}
  log_p = {name: np.asarray(predict(split.inputs), np.float64) for name, split in splits.items()}
  p, labels = np.exp(log_p["test"]), data.test.labels
  of = lambda log_p, labels: -log_p[np.arange(len(labels)), labels]
  bins = oracles.ece_bins(log_p["test"], labels, np.ones(len(labels)), 15)
  gaps = np.abs(bins.correct - bins.confidence) / np.maximum(bins.count, 1)
  assert found["test/mce"] == pytest.approx(gaps.max(), rel=1e-4)
  order, classwise = np.argsort(p.max(-1), kind="stable"), 0
  sure, right = p.max(-1)[order], (p.argmax(-1) == labels)[order]
  place = np.floor(15 * (np.arange(len(p)) + 0.5) / len(p))
  adaptive = sum(abs((sure - right)[place == each].sum()) for each in range(15)) / len(p)
  assert found["test/adaptive_ece"] == pytest.approx(adaptive, rel=1e-4)
  for one in range(10):
    index = np.clip(np.ceil(p[:, one] * 15) - 1, 0, 14)
    gap = [abs((p[:, one] - (labels == one))[index == each].sum()) for each in range(15)]
    classwise += sum(gap) / len(p) / 10
  assert found["test/classwise_ece"] == pytest.approx(classwise, rel=1e-4)
  isotonic = CalibratedClassifierCV(FrozenEstimator(OfLogProbs()), method="isotonic")
  isotonic = isotonic.fit(log_p["val"], splits["val"].labels).predict_proba(log_p["test"])
  with np.errstate(divide="ignore"):
    assert found["test/isotonic_nll"] == pytest.approx(of(np.log(isotonic), labels).mean(), rel=1e-4)
  wrong = (p.argmax(-1) != labels)[np.argsort(-p.max(-1), kind="stable")]
  area = np.trapezoid(np.r_[0, np.cumsum(wrong)] / len(p), dx=1 / len(p))
  assert found["test/augrc"] == pytest.approx(area, rel=1e-3)
  assert 0 <= found["test/debiased_ece"] <= 1
  assert 0 < found["test/smooth_ece"] < 1
  assert max(found["test/vector_nll"], found["test/matrix_nll"]) < found["test/nll"] + 0.1
  tempered = lambda name, t: special.log_softmax(log_p[name] / t, axis=-1)
  loss = lambda t: of(tempered("val", t), data.val.labels).mean()
  best = optimize.minimize_scalar(loss, bounds=(0.05, 20), method="bounded", options={"xatol": 1e-9}).x
  assert found["test/temperature"] == pytest.approx(best, rel=1e-3)
  assert found["test/tempered_nll"] == pytest.approx(of(tempered("test", best), labels).mean(), rel=1e-4)
  bins = oracles.ece_bins(tempered("test", best), labels, np.ones(len(labels)), 15)
  assert found["test/tempered_ece"] == pytest.approx(oracles.ece(bins), abs=0.01)
  worst = np.sort(1 - np.exp(-of(log_p["val"], data.val.labels)))
  sets = 1 - p <= worst[int(np.ceil(0.8 * (len(worst) + 1))) - 1] + 1e-6
  assert found["test/conformal_size"] == pytest.approx(sets.sum(-1).mean(), abs=0.02)
  assert found["test/conformal_coverage"] == pytest.approx(sets[np.arange(len(p)), labels].mean(), abs=0.02)
  for number in range(10):
    one = np.sort(1 - np.exp(log_p["val"][data.val.labels == number, number]))
    rank = int(np.ceil(0.8 * (len(one) + 1)))
    sets[:, number] = 1 - p[:, number] <= one[rank - 1] + 1e-6 if rank <= len(one) else True
  assert found["test/conformal_by_class_size"] == pytest.approx(sets.sum(-1).mean(), abs=0.02)
  held = sets[np.arange(len(p)), labels].mean()
  assert found["test/conformal_by_class_coverage"] == pytest.approx(held, abs=0.02)
  for name in ("aps", "raps"):
    off = abs(found[f"test/{name}_coverage"] - 0.8)
    assert off < 4 * np.sqrt(0.8 * 0.2 * (1 / len(p) + 1 / len(worst)))
  told = summary(found, config, finished_run)
  assert all(word in told for word in ("MCE", "adaptive ECE", "at temperature", "conformal sets", "aps sets"))


@pytest.mark.thorough
@pytest.mark.parametrize(
  ("fields", "message"),
  [
    ({"evaluate.measures": ("laplace",)}, "one linear layer or its softmax, .* got dropmax"),
    ({"evaluate.measures": ("mcee",)}, r"evaluate\.measures: got 'mcee'.*did you mean 'mce'"),
    (
      {"evaluate.measures": ("aps",), "evaluate.split": "val"},
      "aps learns from the validation split, which must have other examples than evaluate.split=val",
    ),
  ],
)
def test_measures_that_are_refused(finished_run, light_runs, fields, message):
  with pytest.raises(train.RunError, match=message):
    train.evaluate(runs.make_config({"job": "evaluate", **fields}), finished_run)


def test_a_test_split_that_is_the_validation_split_is_refused():
  """Some set-ups hold nothing out, and read the same images as both."""
  data = sources.digits()
  same = dataclasses.replace(data, val=dataclasses.replace(data.test))
  run = types.SimpleNamespace(program=types.SimpleNamespace(ensemble=1), dataset=same)
  with pytest.raises(train.RunError, match=r"conformal learns from the validation split.*split=test"):
    measures.further_measures(run, "test", ("mce", "conformal"), alpha=0.1, laplace={})


@pytest.mark.thorough
def test_laplace_of_the_last_layer(tmp_path):
  """Oracle: NumPy with the whole covariance of the weights, from the run's parameters."""
  fields = {"method.name": "softmax", "model.MLP.dropout_rate": 0.0, "epochs": 3}
  trained = runs.make_config(fields)
  train.train(trained, tmp_path)
  names = {"evaluate.measures": ("laplace",), "job": "evaluate"}
  found = train.evaluate(runs.make_config({**fields, **names}), tmp_path)
  _, state, _ = restore_run(tmp_path, "latest", 0)
  to_64 = lambda layer: (np.asarray(layer["kernel"], np.float64), np.asarray(layer["bias"], np.float64))
  hidden, last = to_64(state.params["backbone"]["Dense_0"]), to_64(state.params["head"]["classifier"])

  def layer(split):
    h = np.maximum(split.inputs.reshape(len(split), -1) / 16 @ hidden[0] + hidden[1], 0)
    return np.append(h, np.ones((len(h), 1)), axis=1), h @ last[0] + last[1]

  data = sources.digits().limited(128)
  features, logits = layer(data.train)
  p = special.softmax(logits, axis=-1)
  of_classes = (np.einsum("nk,kl->nkl", p, np.eye(10)) - np.einsum("nk,nl->nkl", p, p)).mean(0)
  hessian = np.kron(features.T @ features, of_classes)

  def predict(split, precision):
    phi, z = layer(split)
    covariance = np.linalg.inv(hessian + precision * np.eye(len(hessian))).reshape(9, 10, 9, 10)
    variance = np.einsum("ni,nj,ikjk->nk", phi, phi, covariance)
    return special.log_softmax(z / np.sqrt(1 + np.pi / 8 * variance), axis=-1)

  values = np.linalg.eigvalsh(hessian).clip(0)
  squares = (last[0] ** 2).sum() + (last[1] ** 2).sum()
  taus = np.logspace(-6, 6, 10001)
  evidence = 90 * np.log(taus) - taus * squares - np.log(values[:, None] + taus).sum(axis=0)
  precision = found["test/laplace_precision"]
  assert precision == pytest.approx(taus[evidence.argmax()], rel=1e-2)
  log_probs = predict(data.test, precision)
  nll = -log_probs[np.arange(128), data.test.labels].mean()
  assert found["test/laplace_nll"] == pytest.approx(nll, rel=1e-4)
  assert found["test/laplace_error"] == np.mean(log_probs.argmax(-1) != data.test.labels)
  bins = oracles.ece_bins(log_probs, data.test.labels, np.ones(128), 15)
  assert found["test/laplace_ece"] == pytest.approx(oracles.ece(bins), abs=0.01)
  assert "by Laplace" in summary(found, trained, tmp_path)


@pytest.mark.thorough
def test_laplace_of_all_layers(tmp_path, monkeypatch):
  """Oracle: NumPy with the whole Gauss-Newton matrix of a network of one layer; draws agree roughly."""
  fields = {"method.name": "softmax", "model.MLP.widths": (), "model.MLP.dropout_rate": 0.0, "epochs": 3}
  train.train(runs.make_config(fields), tmp_path)
  names = {"evaluate.measures": ("laplace",), "job": "evaluate", "laplace.over": "all"}
  measured = lambda **more: train.evaluate(runs.make_config({**fields, **names, **more}), tmp_path)
  found = measured(**{"laplace.structure": "dense"})
  _, state, _ = restore_run(tmp_path, "latest", 0)
  layer = state.params["head"]["classifier"]
  weights = np.vstack([np.asarray(layer["kernel"]), np.asarray(layer["bias"])[None]]).astype(np.float64)
  data = sources.digits().limited(128)
  one = lambda split: np.append(split.inputs.reshape(len(split), -1) / 16, np.ones((len(split), 1)), axis=1)
  x, new = one(data.train), one(data.test)
  p = special.softmax(x @ weights, axis=-1)
  outer = np.einsum("nk,kl->nkl", p, np.eye(10)) - np.einsum("nk,nl->nkl", p, p)
  hessian = np.einsum("ni,nj,nkl->ikjl", x, x, outer).reshape(650, 650)
  values = np.linalg.eigvalsh(hessian).clip(0)
  taus = np.logspace(-6, 6, 10001)
  evidence = 650 * np.log(taus) - taus * (weights**2).sum() - np.log(values[:, None] + taus).sum(axis=0)
  tau = taus[evidence.argmax()]
  assert found["test/laplace_precision"] == pytest.approx(tau, rel=1e-2)
  covariance = np.linalg.inv(hessian + tau * np.eye(650)).reshape(65, 10, 65, 10)
  variance = np.einsum("ni,nj,ikjk->nk", new, new, covariance)
  log_probs = special.log_softmax(new @ weights / np.sqrt(1 + np.pi / 8 * variance), axis=-1)
  nll = -log_probs[np.arange(128), data.test.labels].mean()
  assert found["test/laplace_nll"] == pytest.approx(nll, rel=1e-3)
  for structure in ("kfac", "ekfac", "diagonal"):
    other = measured(**{"laplace.structure": structure, "laplace.samples": 100})
    assert other["test/laplace_nll"] == pytest.approx(nll, rel=0.1)
  monkeypatch.setattr(laplace, "MOST_DENSE", 0)
  with pytest.raises(train.RunError, match=r"laplace\.structure: dense takes .* at most 0, here 650"):
    measured(**{"laplace.structure": "dense"})


def test_laplace_of_weights_that_are_drawn_is_refused():
  program = types.SimpleNamespace(
    extras=types.SimpleNamespace(draw=lambda state, key: state),
    model=models.Classifier(models.MLP(), models.SoftmaxHead(3)),
    method=REGISTRY["method"]["softmax"].function,
  )
  with pytest.raises(train.RunError, match=r"laplace needs one set of weights, but average\.name draws"):
    laplace.check_last_layer(program)
  program.extras.draw = None
  laplace.check_last_layer(program)


def test_every_measure_has_a_name():
  assert {*measures.SPLIT_ALONE, *measures.HELD_OUT, "laplace"} == {
    *names_of(FIELDS["evaluate.measures"].kind)
  }


@pytest.mark.parametrize(("dtype", "scale"), [(np.uint8, 255.0), (np.float32, 1.0)])
def test_images_from_elsewhere_are_stored_as_the_data(dtype, scale):
  inputs = np.zeros((3, 28, 28, 1), dtype)
  for kind, make in evaluate.KINDS.items():
    made = make(inputs, scale)
    assert made.dtype == dtype
    assert made.shape[1:] == inputs.shape[1:]
    assert 0 <= made.min() <= made.max() <= scale
    if kind in ("noise", "digits"):
      assert 0.05 * scale < made.mean() < 0.6 * scale
  assert len(evaluate._digits(inputs, scale)) == 1797


@pytest.mark.thorough
def test_the_checkpoint_of_a_step(finished_run):
  steps = manifest.good_steps(finished_run)
  val = sources.digits().limited(128).val
  for step, metrics in steps.items():
    predict = train.load(finished_run, checkpoint=np.int64(step), replica=np.int32(0))
    predicted = predict(val.inputs).argmax(-1)
    assert np.mean(predicted != val.labels) == pytest.approx(metrics["val/error"])
  with pytest.raises(train.RunError, match=rf"no good checkpoint of step 7; there is {min(steps)}, "):
    train.load(finished_run, checkpoint=7)
  with pytest.raises(train.RunError, match=rf"no good checkpoint of step 7; there is {min(steps)}, "):
    predict.at(7)


@pytest.mark.thorough
def test_a_checkpoint_of_another_seed_is_not_taken_by_a_loaded_run(finished_copy, tmp_path):
  train.train(runs.make_config({"seed": 1}), tmp_path / "other")
  predict = train.load(finished_copy)
  assert predict.at(predict.step).step == predict.step
  folder = finished_copy / "checkpoints" / str(predict.step)
  shutil.rmtree(folder)
  shutil.copytree(tmp_path / "other" / "checkpoints" / str(predict.step), folder)
  with pytest.raises(train.RunError, match=rf"no good checkpoint of step {predict.step}; there is "):
    predict.at(predict.step)


@pytest.mark.thorough
def test_a_checkpoint_that_goes_while_it_is_read_is_not_missed(finished_copy, monkeypatch):
  """As a training run beside deletes it: the next is read. One that is whole and does not fit is told."""
  *_, before, last = sorted(manifest.good_steps(finished_copy))
  restore = checkpoint.restore

  def gone(workdir, step, like):
    if step == last:
      shutil.rmtree(workdir / "checkpoints" / str(step))
    return restore(workdir, step, like)

  with monkeypatch.context() as patch:
    patch.setattr(finished_restore, "restore", gone)
    config = runs.make_config({"job": "evaluate"})
    assert (
      train.evaluate(config, shutil.copytree(finished_copy, finished_copy.parent / "a"))["step"] == before
    )
  with monkeypatch.context() as patch:
    patch.setattr(checkpoint, "restore", gone)
    _, state, _ = restore_run(shutil.copytree(finished_copy, finished_copy.parent / "b"), "latest", 0)
  assert state.step == before
  monkeypatch.setattr(finished_restore, "restore", lambda *_: restore(finished_copy, last, {"x": 0}))
  with pytest.raises(train.RunError, match="does not fit"):
    train.evaluate(config, finished_copy)


@pytest.mark.thorough
@pytest.mark.parametrize("replica", [-1, 1, 0.5, "0", None])
def test_another_replica_is_refused(finished_run, replica):
  with pytest.raises(train.RunError, match=r"^replica: must be an integer of at least 0 and below 1, got "):
    train.load(finished_run, replica=replica)


@pytest.mark.thorough
@pytest.mark.parametrize("checkpoint", ["newest", "", 2.5, None, True])
def test_another_name_of_a_checkpoint_is_refused(finished_run, checkpoint):
  with pytest.raises(train.RunError, match="must be 'latest', 'best' or a step, got "):
    train.load(finished_run, checkpoint=checkpoint)


def test_a_work_directory_without_a_run_is_refused(tmp_path):
  for workdir in (tmp_path / "nowhere", tmp_path):
    with pytest.raises(train.RunError, match=r"has no config\.json: nothing was trained there"):
      train.load(workdir)
  assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["config.json", "data.json"])
def test_a_damaged_work_directory_is_refused(finished_copy, name):
  (finished_copy / name).write_text("{")
  with pytest.raises(train.RunError, match=rf"{name} is damaged"):
    train.load(finished_copy)


@pytest.mark.thorough
def test_a_batch_size_that_the_devices_here_cannot_share_is_no_obstacle(predict, images, finished_copy):
  """Trained with one device in batches of 20, say; predicting needs no batches."""
  file = finished_copy / "config.json"
  file.write_text(json.dumps({**runs.table(file), "batch_size": 20}))
  np.testing.assert_array_equal(train.load(finished_copy)(images), predict(images))


@pytest.fixture
def sampling_copy(finished_copy):
  """The same run, had it been made to predict with 5 sampled masks."""
  file = finished_copy / "config.json"
  config = runs.table(file)
  assert config["method.dropmax.predict.num_samples"] == 0
  file.write_text(json.dumps({**config, "method.dropmax.predict.num_samples": 5}))
  return finished_copy


@pytest.mark.thorough
def test_sampled_predictions_are_those_of_their_key(predict, images, sampling_copy):
  """Without a key, the run's own key gives the same predictions every time."""
  sample = train.load(sampling_copy)
  one, again, other = (np.asarray(sample(images, key=jax.random.key(seed))) for seed in (1, 1, 2))
  np.testing.assert_array_equal(one, again)
  assert np.abs(one - other).max() > 1e-3
  assert np.abs(one - np.asarray(predict(images))).max() > 1e-3
  np.testing.assert_allclose(np.exp(one).sum(-1), 1, rtol=1e-5)
  np.testing.assert_array_equal(sample(images), sample(images))


@pytest.mark.thorough
def test_what_is_predicted_by_sampled_noise_is_so_everywhere(tmp_path, light_runs, images):
  fields = {"method.name": "softmax", "model.MLP.dropout_rate": 0.9, "evaluate.mc_samples": 2, "epochs": 1}
  trained = train.train(runs.make_config(fields), tmp_path / "run")
  bins = runs.table(tmp_path / "run" / "reliability.json")
  bins = calibration.Bins(**{name: np.array(sums) for name, sums in bins.items()})
  assert float(calibration.ece(bins)) == pytest.approx(trained["test/ece"], rel=1e-5)
  predict = train.load(tmp_path / "run")
  one, other = (np.asarray(predict(images, key=jax.random.key(seed))) for seed in (1, 2))
  assert np.abs(one - other).max() > 1e-3
  np.testing.assert_allclose(np.exp(one).sum(-1), 1, rtol=1e-5)


@pytest.mark.slow
def test_training_with_sampled_predictions(tmp_path, light_runs):
  fields = {"method.dropmax.predict.num_samples": 3, "epochs": 1, "batch_size": 64}
  trained = train.train(runs.make_config(fields), tmp_path / "run")
  evaluated = train.evaluate(runs.make_config({**fields, "job": "evaluate"}), tmp_path / "run")
  assert evaluated["test/nll"] == trained["test/nll"]

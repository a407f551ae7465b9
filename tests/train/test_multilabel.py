"""Labels that are no or yes, one an example or several: against float64 NumPy and scikit-learn."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import runs
from scipy.special import expit
from sklearn import metrics as sklearn

from jaxreg import augment, train
from jaxreg.augment._mixup import partners
from jaxreg.train.assemble.from_config import build
from jaxreg.train.data import sources
from jaxreg.train.data.dataset import Dataset, Split
from jaxreg.train.finished.measures import HELD_OUT, SPLIT_ALONE, _conformal_risk, _remarks
from jaxreg.train.finished.predicted import Predicted
from jaxreg.train.methods.yes_or_no import predict_binary
from jaxreg.train.run import manifest
from jaxreg.train.step.batch import make_examples
from jaxreg.train.step.targets import CLASSES
from jaxreg.train.summary import summary

FIELDS = {
  "data.digits.attributes": True,
  "method.name": "binary",
  "model.MLP.dropout_rate": 0.0,
  "epochs": 3,
}
OWN = {"data.name": "npz", "method.name": "binary"}
DATA = sources.digits(attributes=True).limited(128)
ATOL = 1e-6  # of the log-odds
MEASURES = (
  *("ranking", "f1", "thresholds", "mce", "classwise_ece", "adaptive_ece", "temperature", "conformal"),
  "conformal_risk",
)


def test_the_attributes_of_the_digits():
  digits = sources.digits()
  for split, own in zip(sources.digits(attributes=True).splits().values(), digits.splits().values()):
    np.testing.assert_array_equal(split.inputs, own.inputs)
    known = {0: "1010", 1: "0000", 2: "1100", 5: "0101", 8: "1011", 9: "0011"}
    for digit, text in known.items():
      assert (split.labels[own.labels == digit] == [int(letter) for letter in text]).all()


def stepped(batch, **fields):
  config = runs.make_config({**FIELDS, **fields})
  program = build(config, DATA.describe())
  state = program.init(0)
  _, metrics = jax.jit(program.train_step)(state, batch)
  outputs, _ = program.apply_fn(state.params, {}, jnp.asarray(batch["inputs"]) / 16, key=None, train=False)
  return {name: float(total) / float(count) for name, (total, count) in metrics.items()}, outputs["logits"]


def surprise(logits, labels):
  z = np.asarray(logits, np.float64)
  return np.where(labels == 1, np.logaddexp(0, -z), np.logaddexp(0, z))


@pytest.mark.thorough
def test_the_loss_is_the_mean_over_the_labels_that_are_known():
  labels = DATA.train.labels[:32].astype(np.int32)
  labels[::3, 1] = -1
  labels[5] = -1
  inputs, weights = DATA.train.inputs[:32], np.float32(np.arange(32) % 4)
  got, logits = stepped({"inputs": inputs, "labels": labels, "weights": weights})
  assert logits.shape == (32, 4)
  counts = weights[:, None] * (labels >= 0)
  mean = lambda x: (counts * x).sum() / counts.sum()
  assert got["nll"] == pytest.approx(mean(surprise(logits, labels)), rel=1e-5)
  assert got["accuracy"] == pytest.approx(mean((np.asarray(logits) > 0) == labels), rel=1e-5)
  changed = {"inputs": inputs, "labels": np.where(labels < 0, -1, labels), "weights": weights}
  assert stepped(changed)[0]["loss"] == got["loss"]


@pytest.mark.parametrize("numbers", [False, True])
def test_a_mix_with_a_label_that_is_not_known_is_not_known_and_no_other(numbers):
  """The weights and the labels in NumPy: only the answers known to both partners count."""
  labels = np.array([[0, 1, 1], [1, 0, -1], [-1, 1, 0], [1, 1, 1], [-1, -1, -1]])
  stored = np.where(labels < 0, np.nan, labels).astype(np.float32) if numbers else labels.astype(np.int32)
  batch = {"inputs": jnp.arange(5.0)[:, None], "labels": jnp.asarray(stored)}
  mix = functools.partial(augment.mixup, alpha=1.0, num_classes=None if numbers else 2)
  mixed = jax.jit(mix)(jax.random.key(1), batch)  # as a step does
  examples = make_examples(mixed, 1.0, numbers=numbers)
  # The inputs are the numbers of the examples, so that they show partner and share.
  _, for_order = jax.random.split(jax.random.key(1))
  other = np.asarray(partners(for_order, jnp.asarray((labels >= 0).any(1))))
  assert (other != np.arange(5)).sum() >= 2
  both = (labels >= 0) & (labels[other] >= 0)
  np.testing.assert_array_equal(examples.where, both)
  np.testing.assert_array_equal(examples.weights, both)
  share = np.where(other == range(5), 1, (mixed["inputs"][:, 0] - other) / (np.arange(5) - other + 1e-9))
  yes = np.where(both, share[:, None] * labels + (1 - share[:, None]) * labels[other], 0)
  np.testing.assert_allclose(examples.labels if numbers else examples.labels[..., 1], yes, atol=1e-5)


def test_a_gradient_of_mixed_labels_some_of_them_not_known_is_finite():
  labels = DATA.train.labels[:32].astype(np.int32)
  labels[::2, 1] = -1
  fields = {"augment.names": ("mixup",)}
  got, _ = stepped({"inputs": DATA.train.inputs[:32], "labels": labels}, **fields)
  assert 0 < got["nll"] < 2
  assert np.isfinite(got["grad_norm"])


@pytest.mark.thorough
def test_mixed_labels_have_the_mean_of_both_losses():
  batch = {"inputs": DATA.train.inputs[:32], "labels": DATA.train.labels[:32].astype(np.int32)}
  shares = np.random.default_rng(0).dirichlet([1, 1], (32, 4)).astype(np.float32)
  got, logits = stepped({**batch, "labels": shares})
  want = shares[..., 0] * surprise(logits, 0) + shares[..., 1] * surprise(logits, 1)
  assert got["nll"] == pytest.approx(want.mean(), rel=1e-5)
  mixed, _ = stepped(batch, **{"augment.names": ("mixup",)})
  assert 0 < mixed["nll"] < 2


@pytest.fixture(scope="module")
def trained(tmp_path_factory, light_module):
  workdir = tmp_path_factory.mktemp("multilabel")
  train.train(runs.make_config(FIELDS), workdir)
  return workdir


@pytest.mark.thorough
def test_a_run_is_trained_loaded_and_measured(trained, light_runs):
  """scikit-learn's own sums over several labels, and a search of all thresholds."""
  config = runs.make_config({**FIELDS, "job": "evaluate", "evaluate.measures": MEASURES})
  found = train.evaluate(config, trained)
  predict = train.load(trained)
  assert predict.class_names == ("even", "prime", "has a loop", "above 4")
  log_probs = np.asarray(predict(DATA.test.inputs), np.float64)
  assert log_probs.shape == (128, 4, 2)
  np.testing.assert_allclose(np.exp(log_probs).sum(-1), 1, rtol=1e-5)
  yes, labels = np.exp(log_probs[..., 1]), DATA.test.labels
  assert found["test/error"] == pytest.approx(((yes > 0.5) != labels).mean(), abs=1e-6)
  assert found["test/nll"] == pytest.approx(-np.log(np.where(labels, yes, 1 - yes)).mean(), rel=1e-4)
  # The compiled programs of the two jobs round differently, so pairs within `ATOL` may have either order.
  odds = log_probs[..., 1] - log_probs[..., 0]
  ends = [odds + sign * ATOL * (2 * labels - 1) for sign in (-1, 1)]
  scores = {"auroc": sklearn.roc_auc_score, "average_precision": sklearn.average_precision_score}
  for average in ("macro", "micro"):
    for name, score in scores.items():
      low, high = (score(labels, end, average=average) for end in ends)
      assert low <= found[f"test/{name}_{average}"] <= high < low + 1e-3
    f1 = sklearn.f1_score(labels, yes >= 0.5, average=average)
    assert found[f"test/f1_{average}"] == pytest.approx(f1, rel=1e-6)
  held = np.exp(np.asarray(predict(DATA.val.inputs), np.float64))[..., 1]
  best = []
  for p, y in zip(held.T, DATA.val.labels.T):
    f1 = [sklearn.f1_score(y, p >= at) for at in np.sort(p)]
    best.append(np.sort(p)[int(np.argmax(f1))])
  for average in ("macro", "micro"):
    f1 = sklearn.f1_score(labels, yes >= best, average=average)
    assert found[f"test/tuned_f1_{average}"] == pytest.approx(f1, abs=0.01)
  rate = lambda yes, labels, at: (labels * (yes < at)).sum(1) / np.maximum(labels.sum(1), 1)
  number = len(held)  # the largest probability at which few enough labels of the validation split are missed
  fits = [at for at in held.ravel() if rate(held, DATA.val.labels, at).sum() + 1 <= 0.1 * (number + 1)]
  assert found["test/conformal_risk_missed"] == pytest.approx(rate(yes, labels, max(fits)).mean(), abs=1e-3)
  assert found["test/conformal_risk_size"] == pytest.approx((yes >= max(fits)).sum(1).mean(), abs=1e-2)
  told = summary(found, config, trained)
  assert all(word in told for word in ("AUROC", "average precision", "F1: ", "F1, tuned", "conformal_risk"))


@pytest.mark.thorough
def test_a_run_is_resumed_to_the_same_bits(trained, light_runs, tmp_path):
  train.train(runs.make_config({**FIELDS, "epochs": 2}), tmp_path)
  assert max(manifest.good_steps(tmp_path)) == 8
  train.train(runs.make_config(FIELDS), tmp_path)
  runs.assert_bitwise(runs.final_state(tmp_path), runs.final_state(trained))


def test_measures_leave_out_what_is_not_known():
  rng = np.random.default_rng(0)
  labels, z = rng.integers(0, 2, (60, 3)), rng.normal(size=(60, 3))
  labels[:20, 1] = -1
  shown = Predicted(np.log(np.stack([expit(-z), expit(z)], -1)), labels, CLASSES)

  found = SPLIT_ALONE["ranking"](shown) | SPLIT_ALONE["f1"](shown)
  each = [sklearn.roc_auc_score(y[y >= 0], x[y >= 0]) for y, x in zip(labels.T, z.T)]
  known = labels >= 0
  assert found["auroc_macro"] == pytest.approx(np.mean(each))
  assert found["auroc_micro"] == pytest.approx(sklearn.roc_auc_score(labels[known], z[known]))
  assert found["f1_micro"] == pytest.approx(sklearn.f1_score(labels[known], z[known] >= 0))


def test_conformal_risk_leaves_out_examples_without_a_known_label():
  rng = np.random.default_rng(0)
  z = rng.normal(size=(2, 400, 3))
  labels = (rng.random(z.shape) < expit(z)).astype(int)
  log_probs = np.log(np.stack([expit(-z), expit(z)], -1))
  some = [Predicted(*pair, CLASSES) for pair in zip(log_probs[:, ::2], labels[:, ::2])]
  labels[:, 1::2] = -1
  all_of_them = [Predicted(*pair, CLASSES) for pair in zip(log_probs, labels)]
  found, right = (_conformal_risk(*each, 0.1) for each in (all_of_them, some))
  for name, value in right.items():
    assert float(found[name]) == pytest.approx(float(value))


def test_saturated_predictions_are_ranked_by_their_log_odds():
  """The area by a count of all pairs in float64; as probabilities in float32, all of these are 1."""
  z, labels = np.array([20.0, 30, 40, 50, 60, 70, 80, 90, 25]), np.array([0, 0, 1, 0, 1, 1, 1, 1, 1])
  shown = Predicted(np.asarray(predict_binary(logits=jnp.asarray(z, jnp.float32))), labels, CLASSES)
  pairs = z[labels == 1][:, None] > z[labels == 0]
  found = SPLIT_ALONE["ranking"](shown)
  assert found["auroc_micro"] == found["auroc_macro"] == pytest.approx(pairs.mean())
  assert found["average_precision_micro"] == pytest.approx(sklearn.average_precision_score(labels, z))


def test_a_label_without_an_answer_yes_is_left_out_of_means_and_named():
  rng = np.random.default_rng(0)
  labels, z = rng.integers(0, 2, (60, 2)), rng.normal(size=(60, 2))
  labels[:, 1] = 0
  shown = Predicted(np.log(np.stack([expit(-z), expit(z)], -1)), labels, CLASSES)
  first, odds = labels[:, 0], z[:, 0]

  found = SPLIT_ALONE["ranking"](shown) | SPLIT_ALONE["f1"](shown)
  assert found["auroc_macro"] == pytest.approx(sklearn.roc_auc_score(first, odds))
  assert found["average_precision_macro"] == pytest.approx(sklearn.average_precision_score(first, odds))
  assert found["f1_macro"] == pytest.approx(sklearn.f1_score(first, odds >= 0))
  assert found["auroc_micro"] == pytest.approx(sklearn.roc_auc_score(labels.ravel(), z.ravel()))

  # The rare label occurs in the test split alone: its threshold is 1/2, not always yes.
  later = shown._replace(labels=np.stack([first, odds > 1], -1))
  best = max(odds, key=lambda at: sklearn.f1_score(first, odds >= at))
  want = [sklearn.f1_score(first, odds >= best), sklearn.f1_score(odds > 1, z[:, 1] >= 0)]
  assert HELD_OUT["thresholds"](later, shown, 0.1)["tuned_f1_macro"] == pytest.approx(np.mean(want))
  # So it is for a label that is always yes in the validation split.
  always = shown._replace(labels=np.stack([first, np.ones_like(first)], -1))
  assert HELD_OUT["thresholds"](later, always, 0.1)["tuned_f1_macro"] == pytest.approx(np.mean(want))

  none = shown._replace(labels=np.zeros_like(labels))
  assert np.isnan([*SPLIT_ALONE["ranking"](none).values()]).all()
  split = Split(z, labels)
  lines = _remarks(Dataset(split, split, split, 2, class_names=("common", "rare")), "test", MEASURES)
  assert lines == [
    "evaluate.measures: test has no answer yes to the label rare, which the means over labels leave out",
    "evaluate.measures: val has no answer yes to the label rare, whose threshold stays at 0.5",
  ]
  split = Split(z, always.labels)
  lines = _remarks(Dataset(split, split, split, 2, class_names=("common", "rare")), "test", ["thresholds"])
  assert lines == ["evaluate.measures: val has no answer no to the label rare, whose threshold stays at 0.5"]


def arrays(labels, path):
  x = np.random.default_rng(0).normal(size=(len(labels), 5)).astype(np.float32)
  np.savez(path, x_train=x, y_train=labels, x_test=x + 1, y_test=labels)
  return str(path)


def test_arrays_of_your_own(tmp_path):
  labels = np.random.default_rng(1).integers(-1, 2, (50, 3))
  data = runs.read_source("npz", path=arrays(labels, tmp_path / "a.npz"))
  assert data.describe().label_shape == (3,)
  assert data.num_classes == 2
  np.testing.assert_array_equal(data.test.labels, labels)
  assert len(data.train) == 45


@pytest.mark.parametrize("name", ["train", "val", "test"])
def test_a_split_without_a_known_label_is_refused(tmp_path, name):
  labels = {part: np.random.default_rng(1).integers(0, 2, (30, 2)) for part in ("train", "val", "test")}
  labels[name][:] = -1
  parts = {f"x_{part}": np.random.default_rng(k).normal(size=(30, 5)) for k, part in enumerate(labels)}
  np.savez(tmp_path / "a.npz", **parts, **{f"y_{part}": each for part, each in labels.items()})
  fields = {**OWN, "data.npz.path": str(tmp_path / "a.npz")}
  with pytest.raises(train.RunError, match=rf"^data\.npz: split {name}: no label is known, all are -1$"):
    train.train(runs.make_config(fields), tmp_path / "run")
  if name == "train":  # the limit is of training examples with a known label
    return
  labels[name][20:] = 1  # beyond the examples that are kept
  np.savez(tmp_path / "a.npz", **parts, **{f"y_{part}": each for part, each in labels.items()})
  with pytest.raises(train.RunError, match=rf"^data\.subset: split {name}: no label is known in the 20 ex"):
    train.train(runs.make_config({**fields, "data.subset.limit": 20}), tmp_path / "run")


@pytest.mark.parametrize(("kind", "unknown"), [(int, -1), (float, np.nan)])
@pytest.mark.parametrize("name", ["train", "val", "test"])
def test_one_label_that_a_split_does_not_know_is_refused(name, kind, unknown):
  """Yes-or-no labels and numbers; a table of two labels knows their names, a file of arrays may not."""
  generator = np.random.default_rng(1)
  splits = {
    part: Split(generator.normal(size=(30, 5)), generator.integers(0, 2, (30, 2)).astype(kind))
    for part in ("train", "val", "test")
  }
  num_classes = 2 if kind is int else 0
  splits["val"].labels[:7, 1] = splits["train"].labels[::3, 0] = unknown  # some unknown labels do no harm
  Dataset(**splits, num_classes=num_classes).checked()
  splits[name].labels[:, 1] = unknown
  for names, label in {(): "1", ("warm", "wet"): "'wet'"}.items():
    data = Dataset(**splits, num_classes=num_classes, class_names=names)
    with pytest.raises(train.RunError, match=f"split {name}: label {label} is known in none of .0 ex"):
      data.checked()


@pytest.mark.parametrize(
  ("labels", "message"),
  [
    (np.eye(3, dtype=int)[np.arange(30) % 3], r"one-hot: give labels\.argmax\(1\)"),
    (np.arange(60).reshape(30, 2) % 5, "give one label an example"),
    (np.zeros((30, 1), int), r"give labels\[:, 0\]"),
  ],
)
def test_labels_that_are_neither_are_refused(tmp_path, labels, message):
  with pytest.raises(train.RunError, match=message):
    runs.read_source("npz", path=arrays(labels, tmp_path / "a.npz"))


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    (
      {**FIELDS, "method.name": "softmax"},
      "4 yes-or-no labels an example, which need one of binary, binary_focal",
    ),
    ({"method.name": "binary"}, "the labels of the data are 10 classes, which need one of softmax,"),
    ({**FIELDS, "regularizers.names": ("r_drop",)}, "cannot be used with .* several labels an example"),
  ],
)
def test_methods_that_do_not_fit_are_refused(fields, message):
  config = runs.make_config(fields)
  data = sources.digits(attributes="data.digits.attributes" in fields)
  with pytest.raises(train.RunError, match=message):
    build(config, data.describe())


@pytest.mark.thorough
def test_measures_of_ten_classes_are_refused(finished_run, light_runs):
  with pytest.raises(train.RunError, match="f1 needs labels that are no or yes, got 10 classes"):
    train.evaluate(runs.make_config({"job": "evaluate", "evaluate.measures": ("f1",)}), finished_run)


@pytest.mark.thorough
def test_one_label_an_example(tmp_path, light_runs):
  rng = np.random.default_rng(2)
  x = rng.normal(size=(90, 4)).astype(np.float32)
  y = (x[:, 0] + 0.1 * rng.normal(size=90) > 0).astype(int)
  np.savez(tmp_path / "a.npz", x_train=x[:60], y_train=y[:60], x_test=x[60:], y_test=y[60:])
  fields = {
    "data.name": "npz",
    "data.npz.path": str(tmp_path / "a.npz"),
    "method.name": "binary",
    "epochs": 40,
  }
  workdir = tmp_path / "run"
  results = train.train(runs.make_config(fields), workdir)
  assert results["test/error"] < 0.3
  log_probs = train.load(workdir)(x[60:])
  assert log_probs.shape == (30, 2)
  assert results["test/error"] == pytest.approx((log_probs.argmax(-1) != y[60:]).mean())
  measured = {"job": "evaluate", "evaluate.measures": ("ranking", "aps")}
  found = train.evaluate(runs.make_config({**fields, **measured}), workdir)
  assert found["test/auroc_macro"] == pytest.approx(sklearn.roc_auc_score(y[60:], log_probs[:, 1]))
  assert found["test/auroc_micro"] == found["test/auroc_macro"]


@pytest.mark.thorough
def test_laplace_needs_one_label(trained, light_runs):
  config = runs.make_config({**FIELDS, "job": "evaluate", "evaluate.measures": ("laplace",)})
  with pytest.raises(train.RunError, match=r"laplace needs labels \[n\], got \(128, 4\)"):
    train.evaluate(config, trained)

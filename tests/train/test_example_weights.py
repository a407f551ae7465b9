"""Classes of unequal frequency: weights of examples by class, and batches that draw all classes alike."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import runs
from scipy.special import log_softmax

from jaxreg import train
from jaxreg.train.assemble.from_config import build
from jaxreg.train.assemble.load_data import make_order, used_part
from jaxreg.train.data import sources
from jaxreg.train.data.batches import Balanced
from jaxreg.train.data.dataset import Split
from jaxreg.train.finished.loss import whole_batch
from jaxreg.train.run import manifest

QUIET = {"model.MLP.dropout_rate": 0.0, "method.name": "softmax"}
COUNTS = np.bincount(sources.digits().limited(128).train.labels, minlength=10)


def stepped(batch, **fields):
  data = sources.digits().limited(128)
  program = build(runs.make_config({**QUIET, **fields}), data.describe())
  state = program.init(0)
  _, metrics = jax.jit(program.train_step)(state, batch)
  inputs = jnp.asarray(batch["inputs"], jnp.float32) / 16
  logits = program.apply_fn(state.params, {}, inputs, key=None, train=False)[0]["logits"]
  values = {name: float(total) / float(count) for name, (total, count) in metrics.items()}
  return values, log_softmax(np.asarray(logits, np.float64), axis=-1)


@pytest.mark.parametrize(
  ("scheme", "weights"),
  [
    ("inverse", 1 / COUNTS),
    ("sqrt", COUNTS**-0.5),
    ("effective", (1 - 0.999) / (1 - 0.999**COUNTS)),
  ],
)
def test_the_loss_is_a_weighted_mean(scheme, weights):
  """With padding of weight 0; the accuracy is that of all examples alike."""
  batch = runs.digits_batch(24, weights=np.float32(np.arange(24) % 3))
  got, log_probs = stepped(batch, **{"method.class_weights": scheme})
  labels = batch["labels"]
  each = batch["weights"] * weights[labels]
  nll = -log_probs[np.arange(24), labels]
  assert got["nll"] == pytest.approx((each * nll).sum() / each.sum(), rel=1e-5)
  right = log_probs.argmax(-1) == labels
  assert got["accuracy"] == pytest.approx((batch["weights"] * right).sum() / batch["weights"].sum(), rel=1e-5)


@pytest.mark.thorough
def test_a_limit_and_mixed_labels():
  batch = runs.digits_batch(24)
  got, log_probs = stepped(batch, **{"method.class_weights": "inverse", "method.class_weights_limit": 1.25})
  raw = 1 / COUNTS
  weights = np.minimum(raw, 1.25 * raw.min())
  each = weights[batch["labels"]]
  nll = -log_probs[np.arange(24), batch["labels"]]
  assert got["nll"] == pytest.approx((each * nll).sum() / each.sum(), rel=1e-5)
  soft = np.random.default_rng(0).dirichlet(np.ones(10), 24).astype(np.float32)
  got, log_probs = stepped({**batch, "labels": soft}, **{"method.class_weights": "inverse"})
  each = soft @ raw
  assert got["nll"] == pytest.approx((each * -(soft * log_probs).sum(-1)).sum() / each.sum(), rel=1e-5)


@pytest.mark.thorough
def test_evaluation_counts_all_examples_alike():
  data, batch = sources.digits().limited(128), runs.digits_batch(24)
  found = []
  for scheme in ("none", "inverse"):
    program = build(runs.make_config({**QUIET, "method.class_weights": scheme}), data.describe())
    found.append(jax.jit(program.eval_step)(program.init(0), batch, 0))
  jax.tree.map(np.testing.assert_array_equal, *found)


LABELS = np.repeat([0, 1, 2], [50, 8, 3])


def test_balanced_epochs_draw_each_class_alike():
  order = Balanced(LABELS)
  for epoch in range(20):
    drawn = LABELS[order(0, epoch)]
    assert len(drawn) == 61
    assert (np.sort(drawn[:60].reshape(20, 3)) == [0, 1, 2]).all()  # a round has each class once
    of_rare = order(0, epoch)[drawn == 2]
    assert np.bincount(of_rare - 58, minlength=3).min() >= len(of_rare) // 3  # none again before the others
    of_frequent = order(0, epoch)[drawn == 0]
    assert len(set(of_frequent.tolist())) == len(of_frequent)
  seen = np.concatenate([order(0, epoch) for epoch in range(20)])
  assert len(set(seen.tolist())) == 61  # nothing is left out for ever
  assert not np.array_equal(order(0, 0), order(1, 0))
  np.testing.assert_array_equal(order(0, 3), Balanced(LABELS)(0, 3))


@pytest.mark.thorough
def test_a_balanced_run_is_resumed_to_the_same_bits(tmp_path, light_runs):
  fields = {**QUIET, "data.balanced": True, "method.class_weights": "sqrt", "epochs": 3, "replicas": 2}
  train.train(runs.make_config(fields), tmp_path / "whole")
  train.train(runs.make_config({**fields, "epochs": 1}), tmp_path / "parts")
  assert max(manifest.good_steps(tmp_path / "parts")) == 4
  train.train(runs.make_config(fields), tmp_path / "parts")
  runs.assert_bitwise(runs.final_state(tmp_path / "parts"), runs.final_state(tmp_path / "whole"))


def test_batches_of_a_run_are_balanced():
  data = sources.digits()
  rare = np.flatnonzero((data.train.labels > 0) | (np.arange(len(data.train)) % 10 == 0))
  data = dataclasses.replace(data, train=Split(data.train.inputs[rare], data.train.labels[rare]))
  config = runs.make_config({"batch_size": 100, "data.balanced": True})
  order = make_order(config, data)
  for step in range(30):
    counts = np.bincount(data.train.labels[order(step)[0]], minlength=10)
    assert counts.min() >= 8


def test_options_that_do_not_fit_are_refused():
  data = sources.digits()
  config = runs.make_config({"data.balanced": True, "data.bootstrap": True})
  with pytest.raises(train.RunError, match=r"data\.balanced: needs one class .*data\.bootstrap=True"):
    used_part(config, data)
  config = runs.make_config({"method.class_weights": "sqrt", "method.class_weights_limit": 0.5})
  with pytest.raises(train.RunError, match=r"must be 0 or at least 1, got 0\.5"):
    build(config, data.describe())


def test_several_labels_have_no_class_weights():
  config = runs.make_config({"method.name": "binary", "method.class_weights": "inverse"})
  with pytest.raises(train.RunError, match=r"method\.class_weights: needs single-label classes"):
    build(config, sources.digits(attributes=True).describe())


def weighted_file(path, weights, *, rows=slice(None)):
  rng = np.random.default_rng(0)
  x, y = rng.normal(size=(80, 5)).astype(np.float32), np.arange(80) % 3
  arrays = {"x_train": x[:48][rows], "y_train": y[:48][rows], "x_val": x[48:64], "y_val": y[48:64]}
  more = {} if weights is None else {"weights_train": weights}
  np.savez(path, **arrays, **more, x_test=x[64:], y_test=y[64:])
  return str(path)


@pytest.mark.thorough
@pytest.mark.parametrize("resident_gib", [4.0, 0.0])
def test_examples_of_weight_0_or_2_are_left_out_or_doubled(tmp_path, light_runs, resident_gib):
  """Gradient descent on the whole set: weights of an npz file against a file with other rows."""
  weights = np.random.default_rng(1).integers(0, 3, 48)
  weights[weights.argmin()] = 2  # an even number of rows counts, for two devices
  rows = np.repeat(np.arange(48), weights)
  fields = {
    **QUIET,
    "data.name": "npz",
    "optimizer.name": "sgd",
    "epochs": 5,
    "data.resident_gib": resident_gib,
  }
  ends = {}
  for name, given, taken in (("weighted", weights, slice(None)), ("rows", None, rows)):
    file = weighted_file(tmp_path / f"{name}.npz", given, rows=taken)
    size = len(rows) if given is None else int((given > 0).sum())
    config = runs.make_config({**fields, "data.npz.path": file, "batch_size": size})
    train.train(config, tmp_path / name)
    ends[name] = runs.final_state(tmp_path / name)["params"]
  runs.assert_near(ends["weighted"], ends["rows"], 1e-5)


@pytest.mark.thorough
def test_laplace_refuses_fractional_weights(tmp_path, light_runs):
  """Its curvature is a sum over whole examples."""
  file = weighted_file(tmp_path / "a.npz", np.where(np.arange(48) < 9, 0.5, 1.0))
  fields = {**QUIET, "data.name": "npz", "data.npz.path": file, "epochs": 1, "method.name": "softmax"}
  train.train(runs.make_config(fields), tmp_path / "run")
  measured = {"job": "evaluate", "evaluate.measures": ("laplace",)}
  with pytest.raises(train.RunError, match=r"^evaluate\.measures: laplace needs .* weight 0 or 1, got 0\.5"):
    train.evaluate(runs.make_config({**fields, **measured}), tmp_path / "run")


@pytest.mark.thorough
def test_laplace_leaves_out_examples_of_weight_0(tmp_path, light_runs):
  """Of networks that do not train, as if their rows were not in the file."""
  weights, measures = np.arange(48) % 4 > 0, {}
  fields = {**QUIET, "data.name": "npz", "optimizer.learning_rate": 1e-30, "epochs": 1, "batch_size": 12}
  for name, given, rows in (("weighted", weights.astype(float), slice(None)), ("rows", None, weights)):
    fields["data.npz.path"] = weighted_file(tmp_path / f"{name}.npz", given, rows=rows)
    train.train(runs.make_config(fields), tmp_path / name)
    measured = {"job": "evaluate", "evaluate.measures": ("laplace",)}
    measures[name] = train.evaluate(runs.make_config({**fields, **measured}), tmp_path / name)
  for measure in ("test/laplace_precision", "test/laplace_nll"):  # the precision is found to four digits
    np.testing.assert_allclose(measures["weighted"][measure], measures["rows"][measure], rtol=1e-3)


@pytest.mark.thorough
def test_evaluation_does_not_read_the_weights(tmp_path, light_runs):
  weights = np.where(np.arange(48) == 0, 1.0, 1e-3)
  fields = {
    **QUIET,
    "data.name": "npz",
    "data.npz.path": weighted_file(tmp_path / "a.npz", weights),
    "epochs": 1,
  }
  train.train(runs.make_config(fields), tmp_path / "run")
  found = train.evaluate(
    runs.make_config({**fields, "job": "evaluate", "evaluate.split": "train"}), tmp_path / "run"
  )
  with np.load(tmp_path / "a.npz") as arrays:
    wrong = train.load(tmp_path / "run")(arrays["x_train"]).argmax(-1) != arrays["y_train"]
  assert found["train/error"] == pytest.approx(wrong.mean())


@pytest.mark.parametrize("kind", ["classes", "several labels", "numbers"])
def test_rows_that_teach_nothing_are_no_training_examples(tmp_path, kind):
  """BatchNorm would see them, and a part held out for validation would measure their labels."""
  rng = np.random.default_rng(0)
  x, numbers = rng.normal(size=(60, 5)), rng.normal(size=(60, 2))
  y = {"classes": np.arange(60) % 3, "several labels": (numbers > 0).astype(int), "numbers": numbers}[kind]
  counts, weights = np.arange(40) % 4 > 0, np.ones(40)
  y[:40][~counts] = {"classes": 10**6, "several labels": -1, "numbers": np.nan}[kind]
  weights[~counts] = kind != "classes"
  parts = {"x_test": x[40:], "y_test": y[40:]}
  np.savez(tmp_path / "all.npz", x_train=x[:40], y_train=y[:40], weights_train=weights, **parts)
  np.savez(tmp_path / "counting.npz", x_train=x[:40][counts], y_train=y[:40][counts], **parts)
  found, right = (
    runs.read_source("npz", path=str(tmp_path / f"{name}.npz"), validation_fraction=0.2).checked()
    for name in ("all", "counting")
  )
  assert found.num_classes == right.num_classes
  for ours, theirs in zip(found.splits().values(), right.splits().values(), strict=True):
    np.testing.assert_array_equal(ours.inputs, theirs.inputs)
    np.testing.assert_array_equal(ours.labels, theirs.labels)


def test_the_loss_of_a_run_weighs_its_examples():
  """So do the eigenvalues and traces of its report."""
  labels, weights = np.array([0, 1, 2, 1]), np.array([1.0, 3.0, 0.5, 2.0])
  losses = np.array([0.3, 0.7, 2.0, 1.1])
  batch = whole_batch(Split(np.ones((4, 2)), labels, weights))
  assert (losses * batch["weights"]).mean() == pytest.approx(np.average(losses, weights=weights))


@pytest.mark.parametrize("numbers", [False, True])
def test_an_example_of_weight_0_does_not_describe_the_data(tmp_path, numbers):
  """Means, standard deviations and counts of classes are those of a file without these rows."""
  rng = np.random.default_rng(0)
  x, y = rng.normal(size=(60, 5)), rng.normal(size=60) if numbers else np.arange(60) % 3
  weights = np.where(np.arange(40) % 4 == 0, 0.0, 2.0)
  x[:40][weights == 0], described = 1e9, []
  y[:40][weights == 0] = 1e9 if numbers else 0
  for name, rows in (("whole", slice(None)), ("counting", weights > 0)):
    arrays = {"x_train": x[:40][rows], "y_train": y[:40][rows], "weights_train": weights[rows]}
    arrays |= {"x_val": x[40:50], "y_val": y[40:50], "x_test": x[50:], "y_test": y[50:]}
    np.savez(tmp_path / f"{name}.npz", **arrays)
    described.append(runs.read_source("npz", path=str(tmp_path / f"{name}.npz"), standardize=True).describe())
  for name in ("input_mean", "input_std", "label_mean", "label_std", "class_counts"):
    np.testing.assert_allclose(*(getattr(each, name) for each in described), rtol=1e-12)


@pytest.mark.parametrize(
  ("weights", "message"),
  [
    (np.ones(47), r"weights must be numbers \[48\] of at least 0, got float64 \(47,\)"),
    (np.where(np.arange(48) == 5, -1, 1), "got -1 at position 5"),
    (np.where(np.arange(48) == 5, np.nan, 1), "got nan at position 5"),
    (np.zeros(48), "and not all 0"),
    (np.full(48, 1e-46), "the largest from 1e-30 to 1e30, got 1e-46"),
    (np.full(48, 1e38), r"the largest from 1e-30 to 1e30, got 1e\+38"),
  ],
)
def test_wrong_weights_are_refused(tmp_path, weights, message):
  with pytest.raises(train.RunError, match=message):
    runs.read_source("npz", path=weighted_file(tmp_path / "a.npz", weights))


@pytest.mark.parametrize("parts", [pytest.param(1, marks=pytest.mark.thorough), 3])
@pytest.mark.parametrize("name", ["mixup", "cutmix", "manifold_mixup"])
def test_an_example_of_weight_0_has_no_effect_through_mixing(name, parts):
  """Broken pixels and other labels at examples of weight 0; the parts have 1, 3 and 4 that count."""
  fields = {**QUIET, "augment.names": (name,), f"augment.{name}.alpha": 1.0, "accumulate": parts}
  fields |= {"batch_size": 12}
  program = build(runs.make_config(fields), sources.digits().describe())
  batch = runs.digits_batch(12)
  weights = np.float32([0, 1, 0, 0, 1, 2, 0, 1, 1, 3, 1, 1])
  off = weights == 0
  broken = {**batch, "inputs": np.array(batch["inputs"]), "labels": np.array(batch["labels"])}
  broken["inputs"][off], broken["labels"][off] = 16, (broken["labels"][off] + 3) % 10
  step = jax.jit(program.train_step)
  ends = [step(program.init(0), {**each, "weights": weights}) for each in (batch, broken)]
  for one, other in zip(*map(jax.tree.leaves, (ends[0][0].params, ends[1][0].params)), strict=True):
    np.testing.assert_array_equal(one, other)
  for metric, sums in ends[0][1].items():
    np.testing.assert_array_equal(sums[0], ends[1][1][metric][0], err_msg=metric)


@pytest.mark.thorough
def test_rows_of_weight_0_teach_nothing_through_mixup(tmp_path, light_runs, data_dir):
  """A table with wrong labels of weight 0, against the same table without these rows."""
  cases, errors = data_dir / "cases", {}
  for name, file, epochs in (("weighted", "r71", 15), ("clean", "r71clean", 75)):
    fields = {
      "data.name": "csv",
      "data.csv.path": str(cases / f"{file}.csv"),
      "epochs": epochs,
      "batch_size": 32,
    }
    fields |= {"data.csv.test": str(cases / "r71test.csv"), "data.csv.labels": ("label",)}
    fields |= {"method.name": "softmax", "augment.names": ("mixup",), "augment.mixup.alpha": 1.0}
    fields |= {"data.csv.weights": "w"}
    config = runs.make_config({**fields, "data.subset.limit": 0})
    errors[name] = train.train(config, tmp_path / name)["test/error"]
  assert max(errors.values()) <= 0.02, errors

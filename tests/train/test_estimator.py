"""`Estimator`: a configuration in scikit-learn's searches, for classes, yes-or-no labels and numbers."""

import pickle

import numpy as np
import pytest
import runs
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.datasets import load_diabetes, load_iris
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator

from jaxreg import train

TINY = {
  "method.name": "softmax",
  "model.MLP.widths": (8,),
  "model.MLP.dropout_rate": 0.0,
  "optimizer.learning_rate": 0.02,
  "batch_size": 16,
  "epochs": 10,
}
ROWS = np.random.default_rng(0).permutation(150)
X, Y = load_iris(return_X_y=True)
X, Y = StandardScaler().fit_transform(X)[ROWS], np.array(["setosa", "versicolor", "virginica"])[Y[ROWS]]


@pytest.fixture(autouse=True)
def fast(no_figures, monkeypatch):
  """No figures, and one device, as the checks' batches are small."""
  runs.on_devices(monkeypatch, 1)


def make(fields=None, **options):
  return train.Estimator(runs.make_config(fields, base=TINY), **options)


@pytest.mark.thorough
def test_a_search_over_fields_and_its_runs(tmp_path):
  estimator = make(workdir=str(tmp_path))
  assert is_classifier(estimator)
  grid = {"optimizer.learning_rate": [1e-6, 0.02]}
  search = GridSearchCV(estimator, grid, cv=2).fit(X, Y)
  assert search.best_params_ == {"optimizer.learning_rate": 0.02}
  assert estimator.config.optimizer.learning_rate == 0.02
  best = search.best_estimator_
  predicted, probabilities = best.predict(X), best.predict_proba(X)
  assert best.classes_.tolist() == ["setosa", "versicolor", "virginica"]
  assert best.score(X, Y) == np.mean(predicted == Y) > 0.8
  np.testing.assert_array_equal(predicted, best.classes_[probabilities.argmax(1)])
  np.testing.assert_allclose(probabilities.sum(1), 1)

  # The run is one of the trainer, with the names of the classes.
  folders = sorted(tmp_path.glob("run-*"))
  assert len(folders) == 5  # two folds of two rates, and the whole
  loaded = train.load(best.predictor_.workdir)
  assert loaded.class_names == ("setosa", "versicolor", "virginica")
  np.testing.assert_allclose(np.exp(loaded(np.float32(X))), probabilities, rtol=1e-5, atol=1e-6)
  again = pickle.loads(pickle.dumps(best))
  np.testing.assert_array_equal(again.predict_proba(X), probabilities)

  # The same search reads its runs.
  times = {file: file.stat().st_mtime_ns for file in tmp_path.glob("run-*/results.json")}
  GridSearchCV(estimator, grid, cv=2).fit(X, Y)
  assert {file: file.stat().st_mtime_ns for file in tmp_path.glob("run-*/results.json")} == times


@pytest.mark.thorough
def test_numbers_are_predicted_in_their_units():
  x, y = load_diabetes(return_X_y=True)
  estimator = make({"method.name": "squared_error", "epochs": 20})
  assert is_regressor(estimator)
  assert not hasattr(estimator, "predict_proba")
  pipeline = make_pipeline(StandardScaler(), estimator).fit(x[:300], y[:300])
  predicted = pipeline.predict(x[300:])
  explained = 1 - np.square(predicted - y[300:]).sum() / np.square(y[300:] - y[300:].mean()).sum()
  np.testing.assert_allclose(pipeline.score(x[300:], y[300:]), explained, rtol=1e-6)
  assert explained > 0.3
  shifted = make_pipeline(StandardScaler(), clone(estimator)).fit(x[:300], 1.7e9 + y[:300])
  assert shifted.score(x[300:], 1.7e9 + y[300:]) == pytest.approx(explained, abs=1e-3)
  with pytest.raises(TypeError, match="give workdir"):
    pickle.dumps(estimator.fit(x[:50], y[:50]))


@pytest.mark.thorough
def test_several_labels():
  labels = np.stack([X[:, 0] > 0, X[:, 2] > 0], axis=1)
  estimator = make({"method.name": "binary"}).fit(X[:100], labels[:100])
  predicted = estimator.predict(X[100:])
  assert predicted.shape == estimator.predict_proba(X[100:]).shape == (50, 2)
  np.testing.assert_array_equal(predicted, estimator.predict_proba(X[100:]) > 0.5)
  assert (predicted == labels[100:]).mean() > 0.8
  assert estimator.score(X[100:], labels[100:]) == (predicted == labels[100:]).all(1).mean()

  # One label has two classes with names.
  names = np.where(labels[:, 0], "wide", "narrow")
  one = make({"method.name": "binary"}).fit(X[:100], names[:100])
  assert (one.predict(X[100:]) == names[100:]).mean() > 0.8
  assert one.predict_proba(X[100:]).shape == (50, 2)


@pytest.mark.thorough
def test_weights_of_zero_leave_examples_out():
  """A class of weight 0 is not learned."""
  weights = np.where(Y == "virginica", 0.0, 1.0)
  estimator = make().fit(X, Y, sample_weight=weights)
  assert (estimator.predict(X) != "virginica").all()


def test_parameters_are_fields():
  estimator = make()
  deep = estimator.get_params()
  assert deep["optimizer.learning_rate"] == 0.02
  copy = clone(estimator).set_params(**{"method.focal.loss.gamma": np.float64(3), "method.name": "focal"})
  assert (copy.config.method.name, copy.config.method.focal.loss.gamma) == ("focal", 3.0)
  assert estimator.config.method.name == "softmax"
  same = clone(estimator).set_params(
    **{name: deep[name] for name in deep if name not in ("config", "workdir")}
  )
  assert same.get_params() == deep
  for fields, message in (
    ({"optimizer.learning_rat": 1.0}, "no such field; did you mean optimizer.learning_rate?"),
    ({"epochs": "many"}, "epochs='many'"),
    ({"method.name": "softmx"}, "did you mean 'softmax'"),
  ):
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
      make().set_params(**fields)
  with pytest.raises(ValueError, match="got 1 class"):
    make().fit(X, np.zeros(150))


@pytest.mark.parametrize(
  ("method", "y", "weights", "told"),
  [
    ("softmax", Y, [1.0] * 149 + [-1], "sample_weight must be finite and at least 0, got -1$"),
    ("softmax", Y, [1.0] * 149 + [np.nan], "sample_weight must be finite and at least 0, got nan$"),
    ("softmax", Y, [1.0] * 149 + [np.inf], "sample_weight must be finite and at least 0, got inf$"),
    ("softmax", Y, [1.0] * 149, r"sample_weight must be \[150\] and not all 0, got shape \(149,\)$"),
    ("binary", np.where(X[:, :2] > 0, 0.8, 0), None, "y must be 0, 1 or -1 for each .* label, got 0.8$"),
  ],
)
def test_weights_and_labels_that_do_not_fit_are_told(method, y, weights, told):
  with pytest.raises(ValueError, match=told):
    make({"method.name": method}).fit(X, y, sample_weight=weights)


def test_bytes_may_come_in_other_types():
  generator = np.random.default_rng(0)
  x = generator.integers(0, 256, (40, 3), np.uint8)
  estimator = make({"epochs": 1}).fit(x, x[:, 0] > 127)
  expected = estimator.predict_proba(x)
  for other in (x.astype(int), x.astype(np.float32)):
    np.testing.assert_array_equal(estimator.predict_proba(other), expected)
  for wrong in (x - 1.0, x + 0.5):
    with pytest.raises(ValueError, match="inputs must be uint8"):
      estimator.predict_proba(wrong)


# The checks that train at most once or twice. Three others do not fit: batches are drawn, so a weight of 2 is
# not a repeated example; float32 sums differ in the last bits with the size of a batch; a fitted estimator is
# pickled as its folder, which needs `workdir`. The rest take minutes, as each fit compiles.
QUICK = (
  *("check_estimator_cloneable", "check_estimator_tags_renamed", "check_valid_tag_types"),
  *(
    "check_estimator_repr",
    "check_no_attributes_set_in_init",
    "check_mixin_order",
    "check_estimators_unfitted",
  ),
  *(
    "check_estimators_empty_data_messages",
    "check_complex_data",
    "check_do_not_raise_errors_in_init_or_set_params",
  ),
  *("check_estimators_overwrite_params", "check_n_features_in_after_fitting", "check_sample_weights_shape"),
  *("check_dict_unchanged", "check_estimators_nan_inf", "check_requires_y_none", "check_fit2d_1sample"),
  *("check_get_params_invariance", "check_set_params", "check_fit1d", "check_estimator_sparse_array"),
  *(
    "check_classifiers_one_label",
    "check_classifiers_regression_target",
    "check_parameters_default_constructible",
  ),
)


def checks():
  estimator = make({"batch_size": 4, "steps": 2, "data.validation_fraction": 0.3})
  for each, check in estimator_checks_generator(estimator):
    if check.func.__name__ in QUICK:
      yield pytest.param(each, check, id=check.func.__name__)


@pytest.mark.thorough
@pytest.mark.parametrize(("estimator", "check"), checks())
def test_a_check_of_scikit_learn(estimator, check):
  check(estimator)

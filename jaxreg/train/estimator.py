# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
"""A configuration as an estimator of scikit-learn."""

import difflib
import tempfile
import zlib
from pathlib import Path
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import ClassifierTags, RegressorTags, Tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from jaxreg.train.config.checks import check
from jaxreg.train.config.choices import Config, add_options, chosen, flatten, is_choice, relevant
from jaxreg.train.data.dataset import Split
from jaxreg.train.data.subsets import hold_out
from jaxreg.train.errors import RunError, one_line
from jaxreg.train.finished.load import Predictor, load
from jaxreg.train.jobs.train import train
from jaxreg.train.methods.method import NUMBERS, Predicts
from jaxreg.train.run.folder_name import short_hash


class Estimator(BaseEstimator):
  """Trains a configuration with `fit`, for scikit-learn's searches, cross-validation and pipelines.

  The method decides whether the estimator is a classifier, a classifier of several yes-or-no labels or a
  regressor. The data fields of the configuration other than `data.validation_fraction`, `data.npz.scale` and
  `data.npz.standardize` do not count: the arrays come from `fit`. A part of them is held out for validation,
  and the results of the run name this part as the test split, too.

  The fields of the configuration are parameters with their dotted names, such as `optimizer.learning_rate`.
  A classifier also has `predict_proba(X)`, the probability of each class, or of a yes for each label.

  Args:
    config: from `base_config()`, or from a file in `configs/`; `set_params` changes a copy.
    workdir: the folder of the runs, one for each combination of fields and data. A fit that was stopped
      continues there, and a fit that is done is read. By default a run is kept in memory.

  Attributes:
    classes_: the classes, in the order of `predict_proba`; a classifier of one class per example has them.
    predictor_: what `load` returns of the run.
    results_: what `train` returns of the run.

  Example:
    >>> config = jaxreg.train.base_config()
    >>> search = GridSearchCV(jaxreg.train.Estimator(config), {"optimizer.learning_rate": [1e-3, 1e-2]})
    >>> search.fit(x, y).best_params_
  """

  def __init__(self, config: Config, *, workdir: str | None = None) -> None:
    self.config = config
    self.workdir = workdir

  def get_params(self, deep: bool = True) -> dict[str, Any]:
    """Returns `config` and `workdir`, and with `deep` each field by its dotted name."""
    return super().get_params(deep=False) | (flatten(self.config) if deep else {})

  def set_params(self, **params: Any) -> Self:
    """Sets `config`, `workdir` or fields; a field that chooses, such as `method.name`, comes first.

    Raises:
      ValueError: for an unknown field, or a value of the wrong type.
    """
    for name in {"config", "workdir"} & params.keys():
      setattr(self, name, params.pop(name))
    if params:
      self.config = _with_fields(self.config, params)
    return self

  def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
    """Trains on examples `[n, ...]`, with classes, yes-or-no labels `[n, labels]` or numbers as `y`."""
    X, y = self._arrays(X, y)
    weights = None if sample_weight is None else np.asarray(sample_weight, np.float64)
    if weights is not None:
      if weights.shape != y.shape[:1] or not weights.any():
        raise ValueError(f"sample_weight must be [{len(y)}] and not all 0, got shape {weights.shape}")
      if (odd := weights[~(np.isfinite(weights) & (weights >= 0))]).size:
        raise ValueError(f"sample_weight must be finite and at least 0, got {odd[0]:g}")
      X, y, weights = (x[weights != 0] for x in (X, y, weights))
    predicts = self._predicts
    has_names = predicts not in NUMBERS and (y.ndim == 1 or y.shape[1] == 1)
    if has_names:
      check_classification_targets(y)
      self.classes_, y = np.unique(column_or_1d(y, warn=True), return_inverse=True)
      if len(self.classes_) < 2:
        raise ValueError(f"y must have at least 2 classes, got 1 class, {self.classes_[0]!r}")
    else:
      y = np.asarray(y, np.float64)
      if predicts not in NUMBERS:
        if (odd := y[y != np.round(y)]).size:
          raise ValueError(f"y must be 0, 1 or -1 for each yes-or-no label, got {odd[0]:g}")
        y = y.astype(np.int64)
      y = column_or_1d(y, warn=True) if y.ndim == 2 and y.shape[1] == 1 else y
    train_part, held_out = hold_out(Split(X, y, weights), self.config.data.validation_fraction)
    arrays: dict[str, Any] = {"x_train": train_part.inputs, "y_train": train_part.labels}
    arrays |= {f"{axis}_{part}": value for part in ("val", "test") for axis, value in _pair(held_out)}
    if has_names:
      arrays["class_names"] = self.classes_.astype(str)
    if train_part.weights is not None:
      arrays["weights_train"] = train_part.weights
    if self.workdir is None:
      with tempfile.TemporaryDirectory() as folder:
        self._train(arrays, Path(folder))
    else:
      self._train(arrays, Path(self.workdir))
    return self

  def predict(self, X: Any) -> np.ndarray:
    """Returns the most probable class, 0 or 1 for each yes-or-no label, or numbers in the units of `y`."""
    predictions = self._predictions(X)
    if self._predicts in NUMBERS:
      return predictions
    best = predictions.argmax(axis=-1)
    return best if best.ndim > 1 else self.classes_[best]

  def _has_classes(self) -> bool:
    return self._predicts not in NUMBERS

  @available_if(_has_classes)
  def predict_proba(self, X: Any) -> np.ndarray:
    """Returns the probability of each class, or of a yes for each label."""
    probabilities = np.exp(self._predictions(X).astype(np.float64))
    probabilities /= probabilities.sum(axis=-1, keepdims=True)
    return probabilities[..., 1] if probabilities.ndim > 2 else probabilities

  def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
    """Returns the accuracy of classes, or the coefficient of determination of numbers."""
    measure = r2_score if self._predicts in NUMBERS else accuracy_score
    return float(measure(y, self.predict(X), sample_weight=sample_weight))

  @property
  def _predicts(self) -> Predicts:
    return chosen(self.config, "method").entry.function.predicts

  def _arrays(self, X: Any, *y: Any) -> Any:
    """Checks the examples, and in `fit` the labels; bytes stay bytes, and other inputs become floating."""
    options = {"allow_nd": True, "dtype": "numeric", "reset": bool(y)}
    if y and y[0] is None:
      raise ValueError("Estimator requires y to be passed, but the target y is None")
    options |= {"multi_output": True, "y_numeric": self._predicts in NUMBERS} if y else {}
    checked = validate_data(self, X, *y, ensure_min_samples=2 if y else 1, **options)
    X, *rest = checked if y else (checked,)
    X = X if X.dtype == np.uint8 else X.astype(np.float64)
    return (X, *rest) if y else X

  def _train(self, arrays: dict[str, Any], folder: Path) -> None:
    """Trains on the arrays, in a run below the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    crc = 0
    for name, array in arrays.items():
      crc = zlib.crc32(np.ascontiguousarray(array).tobytes(), zlib.crc32(name.encode(), crc))
    config = _with_fields(self.config, {"job": "train", "data.name": "npz"})
    file = folder / f"data-{crc:08x}.npz"
    config.data.npz.path = str(file.absolute())
    check(config)
    if not file.exists():
      part = file.with_suffix(".part.npz")  # a killed process leaves no half of the file
      np.savez(part, **arrays)
      part.replace(file)
    run = folder / f"run-{short_hash(relevant(flatten(config)))}"
    self.results_ = train(config, run)
    self.predictor_: Predictor = load(run)

  def _predictions(self, X: Any) -> np.ndarray:
    check_is_fitted(self, "predictor_")
    X = self._arrays(X)
    # The same values may come in another type, such as from a pipeline or a data frame.
    if self.predictor_.input_dtype == "uint8" and np.array_equal(X, np.clip(np.round(X), 0, 255)):
      X = X.astype(np.uint8)
    return np.asarray(self.predictor_(X))

  def __sklearn_tags__(self) -> Tags:
    tags = super().__sklearn_tags__()
    tags.target_tags.required = True
    tags.target_tags.multi_output = self._predicts != "classes"
    tags.input_tags.three_d_array = True
    if self._has_classes():
      tags.estimator_type = "classifier"
      tags.classifier_tags = ClassifierTags(multi_label=self._predicts == "yes or no")
    else:
      tags.estimator_type = "regressor"
      tags.regressor_tags = RegressorTags()
    return tags

  def __repr__(self, N_CHAR_MAX: int = 700) -> str:
    config = self.config
    return f"Estimator({config.method.name}, {config.model.name}, workdir={self.workdir!r})"

  def __getstate__(self) -> dict[str, Any]:
    state = dict(self.__dict__)
    if predictor := state.pop("predictor_", None):
      if self.workdir is None:
        raise TypeError("a fitted Estimator is pickled as the folder of its run; give workdir")
      state["_run"] = str(predictor.workdir)
    return state

  def __setstate__(self, state: dict[str, Any]) -> None:
    run = state.pop("_run", None)
    self.__dict__.update(state)
    if run:
      self.predictor_ = load(run)


def _pair(split: Split) -> tuple[tuple[str, np.ndarray], ...]:
  return ("x", split.inputs), ("y", split.labels)


def _with_fields(config: Config, fields: dict[str, Any]) -> Config:
  """Returns a copy of a configuration with other values of these fields; choices are set first."""
  changed: Config = config.copy_and_resolve_references()
  for chooses in (True, False):
    names = flatten(changed)
    for field, value in fields.items():
      if is_choice(field) != chooses:
        continue
      if field not in names:
        near = difflib.get_close_matches(field, names, n=1)
        raise ValueError(f"{field}: there is no such field{f'; did you mean {near[0]}?' if near else ''}")
      value = value.item() if isinstance(value, np.generic) else value
      try:
        changed.update_from_flattened_dict({field: tuple(value) if isinstance(value, list) else value})
      except (TypeError, ValueError) as error:
        raise ValueError(f"{field}={value!r}: {one_line(error)}") from error
    try:
      add_options(changed)
    except RunError as error:
      raise ValueError(str(error)) from error
  return changed.lock()

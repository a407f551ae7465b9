"""What the sections of a card see: a model's predictions, its data, and what can be asked of it."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxreg._checks import check_log_probs, one_line
from jaxreg.reports._numbers import Number, resamples
from jaxreg.reports._statistics import bootstrapped
from jaxreg.typing import Array, Key, LossFn, Params

BATCH = 256  # examples of one call of the model
LEAST = 128  # examples of a section, however small the budget

Predict = Callable[[Params, Any, Key | None], Any]


class Unavailable(ValueError):
  """A section needs what the model or its data do not have."""


class Section(NamedTuple):
  """What a section found, by name."""

  numbers: dict[str, Number]
  arrays: dict[str, Any]  # of its figures
  sentence: str  # how to read it
  cost: str  # what it computed
  function: str  # the functions that compute it
  # Values of each example in the order of the model, by the number that is their mean, which `compare` pairs.
  each: Mapping[str, Any] = {}


class Predicted(NamedTuple):
  """Predictions `[n, ...]` and labels `[n]`."""

  predictions: np.ndarray
  labels: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Model:
  """A model and its data; attributes without a word here are arguments of `report`."""

  shown: Predicted  # for the data of the card
  apart: Predicted | None = None  # to learn a temperature or a threshold from; None takes a half of `shown`
  groups: np.ndarray | None = None  # of the shown examples, and of those apart
  groups_apart: np.ndarray | None = None
  held_out: Mapping[str, Any] | None = None
  inputs: np.ndarray | None  # of the shown examples
  predict: Predict | None
  draws: bool  # whether `predict` draws noise of a key
  params: Params
  loss_fn: LossFn | None
  features_fn: Callable[..., Any] | None
  last_layer: tuple[Any, Any] | None
  key: Key
  train: Mapping[str, Any] | None
  others: Mapping[str, np.ndarray]
  minutes: float
  alpha: float
  eps: tuple[float, ...]
  levels: tuple[float, ...]
  value_range: tuple[float, float] | None
  channel_axis: int
  class_names: tuple[str, ...]

  @functools.cached_property
  def seed(self) -> int:
    return int(jax.random.bits(jax.random.fold_in(self.key, 0)))

  @functools.cached_property
  def order(self) -> np.ndarray:
    """The order in which a section that takes few examples takes them; the same for every model."""
    return np.random.default_rng(self.seed).permutation(len(self.shown.labels))

  @functools.cached_property
  def statistics(self) -> dict[str, Number]:
    """The statistics of the shown predictions."""
    return self.bootstrapped(self.shown)

  def bootstrapped(self, predicted: Predicted) -> dict[str, Number]:
    return bootstrapped(*predicted, self.levels, resamples(self.seed, len(predicted.labels)))

  def halves(self) -> tuple[Predicted, Predicted, str]:
    """Returns the shown and the held-out examples, and a remark if both come from the same data."""
    if self.apart is not None:
      return self.shown, self.apart, ""
    rows = np.split(self.order, [len(self.order) // 2])
    apart, shown = (Predicted(*(x[half] for x in self.shown)) for half in rows)
    return shown, apart, " It was learned from one half of the data and measured on the other."

  def halves_of_groups(self) -> tuple[np.ndarray, np.ndarray] | None:
    """The groups of the shown and the held-out examples that `halves` returns; None without groups."""
    if self.groups is None or self.apart is not None:
      return None if self.groups is None or self.groups_apart is None else (self.groups, self.groups_apart)
    apart, shown = (self.groups[half] for half in np.split(self.order, [len(self.order) // 2]))
    return shown, apart

  def function(self) -> tuple[Predict, np.ndarray]:
    """Returns the function and the inputs."""
    if self.predict is None or self.inputs is None:
      raise Unavailable("needs a function of the inputs, and the card has predictions alone")
    return self.predict, self.inputs

  def traced(self) -> tuple[Predict, np.ndarray]:
    """Returns the function and the inputs, if JAX can trace the function."""
    function = self.function()
    if not self._is_traced:
      raise Unavailable("needs a function that JAX can trace")
    return function

  def features(self, inputs: np.ndarray) -> np.ndarray:
    """Returns the features `[n, size]` of inputs in float32."""

    def of_batch(key: Key, x: np.ndarray) -> np.ndarray:
      del key
      arguments = (x,) if self.params is None else (self.params, x)
      out = np.asarray(self._compiled_features(*arguments), np.float32)
      return out.reshape(len(out), -1)

    return self.batched(of_batch, inputs)

  @functools.cached_property
  def _compiled_features(self) -> Callable[..., Any]:
    if self.features_fn is None:
      raise Unavailable("needs a features_fn")
    return jax.jit(self.features_fn) if self._is_traced else self.features_fn

  def images(self) -> np.ndarray:
    """Returns the inputs as `[n, height, width, channels]`."""
    _, inputs = self.function()
    if inputs.ndim != 4:
      raise Unavailable(f"needs images [n, height, width, channels], got inputs {inputs.shape}")
    return np.moveaxis(inputs, self.channel_axis, -1)

  @functools.cached_property
  def _is_traced(self) -> bool:
    predict, inputs = self.function()
    try:
      jax.eval_shape(lambda params, x: predict(params, x, None), self.params, inputs[:1])
    except (jax.errors.JAXTypeError, TypeError, ValueError, AttributeError):
      return False
    return True

  @functools.cached_property
  def _compiled(self) -> Predict:
    predict, _ = self.function()
    return jax.jit(predict) if self._is_traced else predict

  def run(self, inputs: np.ndarray) -> np.ndarray:
    """Predicts for other inputs."""
    return self.batched(lambda key, x: self._compiled(self.params, x, None), inputs)

  def batched(self, function: Callable[..., Any], *arrays: np.ndarray, stream: int = 0) -> Any:
    """Joins `function(key, *arrays)` of batches of one size; the last batch repeats its rows."""
    key, parts = jax.random.fold_in(self.key, stream), []
    for number, start in enumerate(range(0, len(arrays[0]), BATCH)):
      rows = np.resize(np.arange(start, min(start + BATCH, len(arrays[0]))), BATCH)
      parts.append(function(jax.random.fold_in(key, number), *(x[rows] for x in arrays)))
    return jax.tree.map(lambda *each: np.concatenate(each)[: len(arrays[0])], *parts)

  def range(self) -> tuple[float, float]:
    """Returns the minimum and maximum of an input value."""
    _, inputs = self.function()
    ends = float(inputs.min()), float(inputs.max())
    return self.value_range or ((0.0, 255.0) if inputs.dtype == np.uint8 else ends)

  @functools.cached_property
  def seconds(self) -> float:
    """The time of one prediction."""
    _, inputs = self.function()
    batch = np.resize(inputs[:BATCH], (BATCH, *inputs.shape[1:]))
    for _ in range(2):  # the first call compiles
      start = time.perf_counter()
      jax.block_until_ready(self._compiled(self.params, batch, None))
    return (time.perf_counter() - start) / BATCH

  def affordable(self, passes: float, part: float, most: int | None = None) -> int:
    """Counts the examples that a part of the budget pays for, at `passes` predictions per example."""
    most = len(self.shown.labels) if most is None else most
    number = 60 * self.minutes * part / (passes * max(self.seconds, 1e-9))
    # Powers of 2, so that two models of nearly the same speed have the same examples.
    return int(min(most, max(LEAST, 2 ** int(np.log2(max(number, 1))))))


def losses_of(predictions: Array, labels: Any) -> Array:
  """Computes the negative log-likelihood of each label, or the squared error of each number."""
  labels = jnp.asarray(labels)
  if jnp.issubdtype(labels.dtype, jnp.integer):
    return -jnp.take_along_axis(predictions, labels[:, None], axis=-1)[:, 0]
  return jnp.square(predictions.reshape(len(labels), -1)[:, 0] - labels)


def make_model(
  predict_fn: Any,
  data: Mapping[str, Any],
  *,
  held_out: Mapping[str, Any] | None,
  params: Params,
  in_units: Callable[[np.ndarray], np.ndarray] | None,
  **fields: Any,
) -> Model:
  """Checks the arguments of `report`, and predicts."""
  labels, inputs = _labels(data, "data"), data.get("inputs")
  classes, predict, draws = labels.dtype.kind != "f", None, False
  if callable(predict_fn):
    predict, draws = _function(predict_fn, params, classes)
    if inputs is None:
      raise ValueError("data must have 'inputs' for a predict_fn that is a function, got none")
  inputs = None if inputs is None else np.asarray(inputs)
  if inputs is not None and len(inputs) != len(labels):
    raise ValueError(f"data['inputs'] must have {len(labels)} examples, as the labels, got {len(inputs)}")
  shown = Predicted(labels, labels)
  fixed: dict[str, Any] = {"inputs": inputs, "held_out": held_out, "params": params}
  bare = Model(shown=shown, predict=predict, draws=draws, **fixed, **fields)

  def predicted(data: Mapping[str, Any], name: str, outputs: Any) -> Predicted:
    truth = _labels(data, name)
    if (truth.dtype.kind == "f") == classes:
      raise ValueError(f"{name}['labels'] must be of the kind of data's, {labels.dtype}, got {truth.dtype}")
    raw = bare.run(np.asarray(data["inputs"])) if predict else _as_predictions(np.asarray(outputs), classes)
    raw = raw if in_units is None else in_units(np.asarray(raw, np.float64))
    return Predicted(check_predictions(raw, truth, name, bare.levels), truth)

  shown = predicted(data, "data", predict_fn)
  apart = None if held_out is None else predicted(held_out, "held_out", held_out.get("predictions"))
  loss_fn = bare.loss_fn
  if loss_fn is None and predict is not None and params is not None:

    def mean_loss(params: Params, batch: Any, *, key: Key | None) -> Any:
      return losses_of(predict(params, batch["inputs"], key), batch["labels"]).mean()

    loss_fn = mean_loss

  groups: dict[str, Any] = {"groups": _groups(data, len(shown.labels), "data")}
  if held_out is not None and apart is not None:
    groups["groups_apart"] = _groups(held_out, len(apart.labels), "held_out")
  return dataclasses.replace(bare, shown=shown, apart=apart, loss_fn=loss_fn, **groups)


def _as_predictions(outputs: Any, classes: bool) -> Any:
  """Converts a model's outputs, which may be logits, to log-probabilities; numbers stay as they are."""
  wide = outputs.astype(np.promote_types(outputs.dtype, np.float32))
  predictions = jax.nn.log_softmax(wide, axis=-1) if classes else wide
  return np.asarray(predictions) if isinstance(outputs, np.ndarray) else predictions


def _function(predict_fn: Callable[..., Any], params: Params, classes: bool) -> tuple[Predict, bool]:
  """Returns `(params, inputs, key) -> predictions`, and whether the predictions depend on the key."""
  try:
    draws = "key" in inspect.signature(predict_fn).parameters
  except (TypeError, ValueError):
    draws = False

  def predict(params: Params, inputs: Any, key: Key | None) -> Any:
    args = (inputs,) if params is None else (params, inputs)
    return _as_predictions(predict_fn(*args, key=key) if draws else predict_fn(*args), classes)

  return predict, draws


def _labels(data: Mapping[str, Any], name: str) -> np.ndarray:
  if not isinstance(data, Mapping) or "labels" not in data:
    raise ValueError(f"{name} must be a mapping with 'labels', got {one_line(data)}")
  labels = np.asarray(data["labels"])
  if labels.ndim != 1 or labels.dtype.kind not in "iuf" or len(labels) < 4:
    got = f"got {labels.dtype} {labels.shape}"
    raise ValueError(f"{name}['labels'] must be classes or floating numbers [n], at least four, {got}")
  return labels


def _groups(data: Mapping[str, Any], number: int, name: str) -> np.ndarray | None:
  if data.get("groups") is None:
    return None
  groups = np.asarray(data["groups"])
  if groups.shape != (number,) or groups.dtype.kind not in "iuU":
    got = f"got {groups.dtype} {groups.shape}"
    raise ValueError(f"{name}['groups'] must be integers or texts [{number}], {got}")
  return groups


def check_predictions(
  predictions: Any, labels: np.ndarray, name: str, levels: tuple[float, ...]
) -> np.ndarray:
  """Checks the shape of predictions; predicted numbers become `[n, 1]`, `[n, 2]` or `[n, levels]`."""
  number, classes = len(labels), labels.dtype.kind != "f"
  if classes:
    fits, allowed = predictions.ndim == 2, f"[{number}, classes]"
  else:
    predictions = predictions[:, None] if predictions.ndim == 1 else predictions
    fits = predictions.ndim == 2 and predictions.shape[1] in ((len(levels),) if levels else (1, 2))
    allowed = f"[{number}, {len(levels)}], as levels" if levels else f"[{number}] or [{number}, 2]"
  if not fits or len(predictions) != number:
    raise ValueError(f"the predictions of {name} must be {allowed}, got {predictions.shape}")
  if classes:
    check_log_probs(predictions, f"the predictions of {name}")
    if labels.min() < 0 or labels.max() >= predictions.shape[1]:
      got = f"{labels.min()} to {labels.max()}"
      raise ValueError(f"{name}['labels'] must lie in [0, {predictions.shape[1] - 1}], got {got}")
  return predictions

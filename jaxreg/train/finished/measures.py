"""`evaluate.measures`: further measures of a run's predictions, from the functions of `calibration`."""

import functools
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from jax.typing import ArrayLike

from jaxreg import calibration
from jaxreg._analyses import same
from jaxreg.train import keys
from jaxreg.train.data.batches import Source
from jaxreg.train.data.dataset import Dataset
from jaxreg.train.devices import processes
from jaxreg.train.entries import Options
from jaxreg.train.errors import RunError
from jaxreg.train.finished.laplace import check_last_layer, laplace_measures
from jaxreg.train.finished.predicted import Predicted, by_target
from jaxreg.train.finished.restore import RestoredRun
from jaxreg.train.step.state import TrainState
from jaxreg.train.step.targets import Numbers
from jaxreg.typing import Array

Measured = Mapping[str, ArrayLike]  # the numbers of one measure by their names


def _ece(name: str, shown: Predicted, *, kind: Any = "width", **options: Any) -> Measured:
  bins = shown.measured(functools.partial(calibration.ece_bins, kind=kind))
  return {name: calibration.ece(bins, **options).mean()}  # by class, there is one for each


def _smooth_ece(shown: Predicted) -> Measured:
  return {"smooth_ece": shown.measured(calibration.smooth_ece)}


def _selective(shown: Predicted) -> Measured:
  curve = shown.measured(calibration.risk_coverage)
  return {"aurc": curve.aurc, "augrc": curve.augrc}


def _temperature(shown: Predicted, held_out: Predicted, alpha: float) -> Measured:
  del alpha
  temperature = held_out.measured(calibration.fit_temperature)
  tempered = calibration.temper(shown.predictions, temperature=temperature)
  return {"temperature": temperature, **_again("tempered", shown, tempered)}


def _scaled(
  kind: Literal["vector", "matrix"], shown: Predicted, held_out: Predicted, alpha: float
) -> Measured:
  del alpha
  scaling = held_out.measured(functools.partial(calibration.fit_temperature, kind=kind))
  return _again(kind, shown, calibration.temper(shown.predictions, temperature=scaling))


def _again(name: str, shown: Predicted, log_probs: Array) -> Measured:
  """Measures recalibrated predictions."""
  total, count = shown.measured(calibration.nll, log_probs)
  ece = calibration.ece(shown.measured(calibration.ece_bins, log_probs))
  return {f"{name}_nll": total / count, f"{name}_ece": ece}


def _isotonic(shown: Predicted, held_out: Predicted, alpha: float) -> Measured:
  """Measures one isotonic regression per class, whose probabilities are divided by their sum.

  A class that no regression of an example gives a probability has 0 there, so the NLL may be infinite.
  """
  from sklearn.isotonic import IsotonicRegression

  del alpha
  classes = shown.predictions.shape[-1]
  if shown.labels.ndim > 1:
    raise RunError(f"evaluate.measures: isotonic needs labels [n], got {shown.labels.shape}")
  probs, where = np.exp(np.float64(shown.predictions)), held_out.where
  theirs, labels = np.exp(np.float64(held_out.predictions))[where], held_out.labels[where]
  for number in range(classes):
    isotonic = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip")
    probs[:, number] = isotonic.fit(theirs[:, number], labels == number).predict(probs[:, number])
  total = probs.sum(axis=-1, keepdims=True)
  probs = np.where(total > 0, probs / np.where(total > 0, total, 1), 1 / classes)
  with np.errstate(divide="ignore"):
    log_probs = np.log(probs).astype(np.float32)
  return _again("isotonic", shown, log_probs)


def _conformal(shown: Predicted, held_out: Predicted, alpha: float) -> Measured:
  if isinstance(shown.target, Numbers):
    return _intervals(shown, held_out, alpha)
  scores, theirs = (calibration.conformal_scores(each.predictions) for each in (shown, held_out))
  return _sets("conformal", scores, theirs, shown, held_out, alpha)


def _by_class(shown: Predicted, held_out: Predicted, alpha: float) -> Measured:
  scores, theirs = (calibration.conformal_scores(each.predictions) for each in (shown, held_out))
  return _sets("conformal_by_class", scores, theirs, shown, held_out, alpha, by_class=True)


def _adaptive(name: str, penalty: float, shown: Predicted, held_out: Predicted, alpha: float) -> Measured:
  scores, theirs = (
    calibration.aps_scores(same(each.key), each.predictions, penalty=penalty) for each in (shown, held_out)
  )
  return _sets(name, scores, theirs, shown, held_out, alpha)


def _sets(
  name: str,
  scores: Array,
  theirs: Array,
  shown: Predicted,
  held_out: Predicted,
  alpha: float,
  *,
  by_class: bool = False,
) -> Measured:
  """Measures how often the sets hold the label, and their mean number of classes."""
  options: Any = {"alpha": alpha, "by_class": by_class, "where": held_out.where}
  sets = np.asarray(calibration.conformal_sets(scores, theirs, held_out.labels, **options))
  held = np.take_along_axis(sets, np.maximum(shown.labels, 0)[..., None], axis=-1)[..., 0]
  where = shown.where
  return {f"{name}_coverage": held[where].mean(), f"{name}_size": sets.sum(axis=-1)[where].mean()}


def _intervals(shown: Predicted, held_out: Predicted, alpha: float) -> Measured:
  """Measures how often conformal intervals hold a target, and their mean width; means over the targets."""
  assert isinstance(shown.target, Numbers)
  coverages: list[float] = []
  widths: list[float] = []
  for ours, theirs, unit in zip(
    shown.intervals(), held_out.intervals(), shown.target.standard.stds, strict=True
  ):
    (low, high, targets, where), (*held_out_arrays, held_out_where) = ours, theirs
    ends = calibration.conformal_intervals(low, high, *held_out_arrays, alpha=alpha, where=held_out_where)
    sums = calibration.interval_coverage(*ends, targets, where=where)
    coverages.append(float(sums.covered / sums.count))
    widths.append(float(sums.width / sums.count) * unit)
  return {"conformal_coverage": np.mean(coverages), "conformal_width": np.mean(widths)}


def _conformal_risk(shown: Predicted, held_out: Predicted, alpha: float) -> Measured:
  """Measures the mean share of an example's labels that its set misses, and the mean size of the sets."""
  (ours, costs), calibrating = (_label_costs(each) for each in (shown, held_out))
  sets = ours <= calibration.conformal_risk_threshold(*calibrating, alpha=alpha)
  missed = np.where(sets, 0, costs).sum(axis=-1).mean()
  return {"conformal_risk_missed": missed, "conformal_risk_size": np.sum(sets, axis=-1).mean()}


def _label_costs(shown: Predicted) -> tuple[np.ndarray, np.ndarray]:
  """Returns scores `[n, labels]` where a label is known, and costs that add up to the false negative rate."""
  where = shown.where.reshape(len(shown.labels), -1).any(axis=1)
  scores = np.asarray(calibration.conformal_scores(shown.predictions))[where, ..., 1].reshape(where.sum(), -1)
  yes = np.float32(shown.labels[where].reshape(where.sum(), -1) == 1)
  return scores, yes / np.maximum(yes.sum(axis=-1, keepdims=True), 1)


class _Answers(NamedTuple):
  """The answers to one yes-or-no label, where it is known."""

  yes: np.ndarray  # `[m]`, bool: whether the answer is yes
  log_odds: np.ndarray  # `[m]`, of yes; probabilities would tie where they round to 0 or 1


def _ranking(shown: Predicted) -> Measured:
  """Measures AUROC and average precision: the mean over the labels, and over all answers together.

  The mean leaves out labels without an answer yes, and for AUROC labels without an answer no.
  """
  from sklearn import metrics  # its import takes a moment

  measured: dict[str, ArrayLike] = {}
  each = _answers(shown)
  for end, answers in {"macro": each, "micro": [_together(each)]}.items():
    with_yes = [label for label in answers if label.yes.any()]
    with_both = [label for label in with_yes if not label.yes.all()]
    measured[f"auroc_{end}"] = _mean([metrics.roc_auc_score(*label) for label in with_both])
    precisions = [metrics.average_precision_score(*label) for label in with_yes]
    measured[f"average_precision_{end}"] = _mean(precisions)
  return measured


def _thresholds(shown: Predicted, held_out: Predicted, alpha: float) -> Measured:
  """Measures F1 with the threshold for each label that has the largest F1 on the validation split.

  A label without an answer yes, or without an answer no, in the validation split keeps the threshold 0, which
  is the probability 0.5.
  """
  from sklearn.metrics import precision_recall_curve

  del alpha
  best: list[float] = []
  for label in _answers(held_out):
    if not label.yes.any() or label.yes.all():  # the largest F1 would be that of always yes
      best.append(0.0)
      continue
    precision, recall, thresholds = precision_recall_curve(*label)
    f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-12)
    best.append(thresholds[f1[:-1].argmax()])
  return _f1_at(shown, best, "tuned_f1")


def _f1(shown: Predicted) -> Measured:
  return _f1_at(shown, [0.0] * len(_answers(shown)), "f1")


def _f1_at(shown: Predicted, thresholds: Sequence[float], name: str) -> Measured:
  """Measures F1 of the answers yes, with a threshold of the log-odds for each label."""
  from sklearn.metrics import f1_score

  score = functools.partial(f1_score, zero_division=0.0)  # type: ignore[arg-type]  # if none is yes
  pairs = zip(_answers(shown), thresholds, strict=True)
  answers = [_Answers(label.yes, label.log_odds >= threshold) for label, threshold in pairs]
  macro = _mean([score(*label) for label in answers if label.yes.any()])
  return {f"{name}_macro": macro, f"{name}_micro": score(*_together(answers))}


def _answers(shown: Predicted) -> list[_Answers]:
  """Returns the known answers to each label."""
  log_probs = np.asarray(shown.predictions, np.float64)
  log_odds = by_target(log_probs[..., 1] - log_probs[..., 0])
  columns = zip(by_target(shown.labels), log_odds, strict=True)
  return [_Answers(labels[labels >= 0] == 1, odds[labels >= 0]) for labels, odds in columns]


def _together(answers: Sequence[_Answers]) -> _Answers:
  return _Answers(*(np.concatenate(parts) for parts in zip(*answers, strict=True)))


def _mean(values: Sequence[float]) -> float:
  """Computes the mean; NaN without values."""
  return float(np.mean(values)) if values else float("nan")


def _lacking(labels: np.ndarray, answer: int, names: Sequence[str]) -> str:
  """Names the labels that have no such answer in a split; "" if all have one."""
  columns = by_target(labels)
  named = names if labels.ndim > 1 and names else [str(number) for number in range(len(columns))]
  return ", ".join(name for name, column in zip(named, columns, strict=True) if not (column == answer).any())


def _remarks(dataset: Dataset, split: str, names: Collection[str]) -> list[str]:
  """Returns a line for the labels that the measures leave out, since a split lacks one of their answers."""
  labels, lines = dataset.splits()[split].labels, []
  if {"ranking", "f1", "thresholds"} & {*names} and (lacking := _lacking(labels, 1, dataset.class_names)):
    lines.append(f"{split} has no answer yes to the label {lacking}, which the means over labels leave out")
  if "ranking" in names and (lacking := _lacking(labels, 0, dataset.class_names)):
    lines.append(f"{split} has no answer no to the label {lacking}, which the mean AUROC leaves out")
  held_out = dataset.val.labels
  for word, answer in {"yes": 1, "no": 0}.items():
    if "thresholds" in names and (lacking := _lacking(held_out, answer, dataset.class_names)):
      lines.append(f"val has no answer {word} to the label {lacking}, whose threshold stays at 0.5")
  return [f"evaluate.measures: {line}" for line in lines]


SPLIT_ALONE: dict[str, Callable[[Predicted], Measured]] = {
  "mce": functools.partial(_ece, "mce", norm="max"),
  "adaptive_ece": functools.partial(_ece, "adaptive_ece", kind="mass"),
  "classwise_ece": functools.partial(_ece, "classwise_ece", kind="classwise"),
  "smooth_ece": _smooth_ece,
  "debiased_ece": functools.partial(_ece, "debiased_ece", kind="mass", norm="l2", debiased=True),
  "selective": _selective,
  "ranking": _ranking,
  "f1": _f1,
}
# These learn numbers from the validation split.
HELD_OUT: dict[str, Callable[[Predicted, Predicted, float], Measured]] = {
  "temperature": _temperature,
  "vector": functools.partial(_scaled, "vector"),
  "matrix": functools.partial(_scaled, "matrix"),
  "isotonic": _isotonic,
  "conformal": _conformal,
  "conformal_by_class": _by_class,
  "aps": functools.partial(_adaptive, "aps", 0.0),
  "raps": functools.partial(_adaptive, "raps", 0.01),
  "conformal_risk": _conformal_risk,
  "thresholds": _thresholds,
}
FOR_YES_OR_NO = ("ranking", "f1", "thresholds", "conformal_risk")
FOR_NUMBERS = ("conformal", "laplace")


def further_measures(
  run: RestoredRun, split: str, names: Collection[str], *, alpha: float, laplace: Options
) -> dict[str, np.ndarray]:
  """Computes the measures with these names on a split, `[replicas]` each, as `<split>/<measure>`.

  `alpha` is the share of labels that conformal sets and intervals may miss; `laplace` has the options of
  `laplace_measures`.
  """
  dataset, ensemble = run.dataset, run.program.ensemble
  wanted = {"val": dataset.val, split: dataset.splits()[split]}
  labels = wanted[split].labels
  if ensemble > 1 or (labels.ndim > 1 and dataset.describe().has_tokens):
    raise RunError(
      "evaluate.measures: needs ensemble=1 and labels of examples, "
      f"got ensemble={ensemble} and labels {labels.shape}"
    )
  if not dataset.num_classes and (others := [name for name in names if name not in FOR_NUMBERS]):
    raise RunError(
      f"evaluate.measures: {', '.join(others)} needs classes, and the labels are numbers; "
      f"allowed are {', '.join(FOR_NUMBERS)}"
    )
  if dataset.num_classes != 2 and (binary := [name for name in names if name in FOR_YES_OR_NO]):
    raise RunError(
      f"evaluate.measures: {', '.join(binary)} needs labels that are no or yes, got {dataset.num_classes} "
      "classes"
    )
  if labels.ndim > 1 and "laplace" in names:
    raise RunError(f"evaluate.measures: laplace needs labels [n], got {labels.shape}")
  learns = [name for name in names if name in HELD_OUT]
  # Two splits may be the same examples, read twice.
  if learns and np.array_equal(wanted["val"].labels, labels):
    raise RunError(
      f"evaluate.measures: {', '.join(learns)} learns from the validation split, which must have other "
      f"examples than evaluate.split={split}"
    )
  if processes.is_first():
    for line in _remarks(dataset, split, names):
      warnings.warn(line, stacklevel=2)
  sources: dict[str, Source] = {}
  if "laplace" in names:
    check_last_layer(run.program)
    splits = {"train": dataset.train, "shown": wanted[split]}
    sources = {name: run.source(one) for name, one in splits.items()}
  measured: dict[str, list[float]] = {}
  for state in run.each():

    @functools.cache
    def predicted(name: str, state: TrainState = state) -> Predicted:
      predictions = run.outputs(state, run.source(wanted[name]))["predictions"]
      return Predicted(predictions, wanted[name].labels, run.program.target, keys.prediction_sets(name))

    for name in names:
      if name == "laplace":
        values = laplace_measures(run, state, sources, **laplace)
      elif name in HELD_OUT:
        values = HELD_OUT[name](predicted(split), predicted("val"), alpha)
      else:
        values = SPLIT_ALONE[name](predicted(split))
      for measure, value in jax.device_get(values).items():
        measured.setdefault(f"{split}/{measure}", []).append(float(value))
  return {name: np.array(values) for name, values in measured.items()}

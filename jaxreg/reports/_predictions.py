"""The sections that need predictions and labels alone, for classes and for numbers."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
from scipy.special import ndtri

from jaxreg import calibration
from jaxreg._metrics import metric
from jaxreg.reports._model import Model, Predicted, Section
from jaxreg.reports._numbers import Number, in_percent, mean, resamples, share
from jaxreg.reports._statistics import point

MISTAKES = 12  # pictures
WORST = 3  # classes
MOST_CLASSES = 100  # for matrix scaling, which learns a number for each pair of classes
MOST_NAMED = 5  # groups with too few held-out examples
GRID = np.linspace(0.01, 1, 100)  # coverages of a curve


def errors(model: Model) -> Section:
  """Measures the error, the confusions, the worst classes, and the mistakes that the model is surest of."""
  log_probs, labels = model.shown
  guessed, classes, confidence = log_probs.argmax(axis=-1), log_probs.shape[-1], log_probs.max(axis=-1)
  wrong = guessed != labels
  confusion = np.zeros((classes, classes), int)
  np.add.at(confusion, (labels, guessed), 1)
  names = model.class_names or tuple(map(str, range(classes)))
  present = np.flatnonzero(confusion.sum(axis=1))
  recall = confusion.diagonal()[present] / confusion.sum(axis=1)[present]
  numbers = {"error": share("error", wrong)}
  for number in present[np.argsort(recall, kind="stable")][:WORST]:
    numbers[f"recall/{names[number]}"] = share(f"found of class {names[number]}", ~wrong[labels == number])
  arrays: dict[str, Any] = {"confusion": confusion}
  if model.inputs is not None and model.inputs.ndim == 4:
    surest = np.flatnonzero(wrong)
    surest = surest[np.argsort(-confidence[surest], kind="stable")][:MISTAKES]
    arrays["pictures"] = np.moveaxis(model.inputs[surest], model.channel_axis, -1)
    arrays |= {"labels": labels[surest], "guessed": guessed[surest], "sure": np.exp(confidence[surest])}
  sentence = (
    "A row of the matrix is a true class, a column the answer. The worst classes come first; they are chosen "
    "by these examples, and their intervals do not allow for the choice. A mistake with a confidence near 1 "
    "is often a wrong label, or a kind of example that the training lacks."
  )
  return Section(numbers, arrays, sentence, f"{len(labels)} predictions", "numpy", {"error": wrong})


def calibrated(model: Model) -> Section:
  """Compares the confidence with the accuracy, and finds the temperature that mends it."""
  shown, apart, remark = model.halves()

  @jax.jit
  def fitted(shown: Any, apart: Any) -> Any:
    temperature = calibration.fit_temperature(*apart)
    tempered = calibration.temper(shown.predictions, temperature=temperature)
    return temperature, tempered, calibration.smooth_ece(*shown)

  @jax.jit
  def by_matrix(shown: Any, apart: Any) -> Any:
    scaling = calibration.fit_temperature(*apart, kind="matrix")
    return calibration.temper(shown.predictions, temperature=scaling)

  temperature, tempered, smooth_ece = fitted(shown, apart)
  again = Predicted(np.asarray(tempered), shown.labels)
  numbers = {name: model.statistics[name] for name in ("ece", "adaptive_ece", "nll", "brier")}
  numbers["smooth_ece"] = Number(metric("smooth_ece").title, float(smooth_ece), percent=True)
  numbers["temperature"] = Number("temperature", float(temperature))
  statistics = model.bootstrapped(again)
  for name in ("ece", "nll"):
    title = f"{statistics[name].title} at the temperature"
    numbers[f"tempered_{name}"] = statistics[name]._replace(title=title)
  number, classes = shown.predictions.shape
  if classes <= MOST_CLASSES:
    log_probs = np.asarray(by_matrix(shown, apart), np.float64)
    losses = -log_probs[np.arange(number), shown.labels]
    numbers["matrix_nll"] = mean("NLL after matrix scaling", losses, resamples(model.seed, number))
  arrays: dict[str, Any] = {}
  for name, predicted in {"": model.shown, "tempered_": again}.items():
    bins = jax.jit(calibration.ece_bins)(*predicted)
    arrays |= {f"{name}{part}": np.asarray(value) for part, value in bins._asdict().items()}
  sentence = (
    "Points below the diagonal are overconfident. A temperature above 1 makes the model less sure without "
    "changing an answer; matrix scaling learns more numbers, and may change answers. Few examples raise a "
    "calibration error by chance; its interval allows for that, and "
    f"starts at 0 if a calibrated model may have as much.{remark}"
  )
  function = "calibration.ece_bins, smooth_ece, nll, brier, fit_temperature"
  return Section(numbers, arrays, sentence, f"{len(model.shown.labels)} predictions", function)


def selective(model: Model) -> Section:
  """Measures the error of the answers that the model is surest of."""
  numbers = {name: model.statistics[name] for name in ("aurc", "augrc")}
  coverage, risk, *_ = map(np.asarray, jax.jit(calibration.risk_coverage)(*model.shown))
  numbers |= {name: each for name, each in model.statistics.items() if name.startswith("error_at_")}
  places = np.searchsorted(coverage, GRID - 1e-6).clip(max=len(risk) - 1)
  sentence = (
    "If the model may decline to answer, its error should fall with every example that it declines. A flat "
    "curve says that its confidence does not know its mistakes. AURC is the mean error over all coverages; "
    "AUGRC is the mean share of all examples that are answered and wrong."
  )
  arrays = {"coverage": GRID, "risk": risk[places]}
  return Section(
    numbers, arrays, sentence, f"{len(model.shown.labels)} predictions", "calibration.risk_coverage"
  )


def prediction_sets(model: Model) -> Section:
  """Sets of classes that hold the label with a promised probability."""
  shown, apart, remark = model.halves()
  ours, theirs = jax.random.split(jax.random.fold_in(model.key, 1))
  plain, adaptive = jax.jit(calibration.conformal_scores), jax.jit(calibration.aps_scores)
  scores = {
    "conformal": [plain(shown.predictions), plain(apart.predictions)],
    "aps": [adaptive(ours, shown.predictions), adaptive(theirs, apart.predictions)],
  }
  numbers: dict[str, Number] = {}
  arrays: dict[str, Any] = {}
  each: dict[str, Any] = {}
  for (name, (mine, other)), title in zip(scores.items(), ("smallest sets", "adaptive sets"), strict=True):
    sets = np.asarray(calibration.conformal_sets(mine, other, apart.labels, alpha=model.alpha))
    hits, sizes = sets[np.arange(len(sets)), shown.labels], sets.sum(axis=-1)
    numbers[f"{name}_coverage"] = share(f"{title}: with the label", hits)
    numbers[f"{name}_size"] = mean(f"{title}: classes", sizes, resamples(model.seed, len(sizes)))
    arrays[title] = sizes
    each |= {f"{name}_coverage": hits, f"{name}_size": sizes}
  mine, other = scores["conformal"]
  kinds: dict[str, tuple[np.ndarray, np.ndarray, tuple[str, ...]]] = {
    "class": (shown.labels, apart.labels, model.class_names)
  }
  if groups := model.halves_of_groups():
    names, both = np.unique(np.concatenate(groups), return_inverse=True)
    kinds["group"] = both[: len(shown.labels)], both[len(shown.labels) :], tuple(map(str, names))
  lines = ""
  for kind, (ours, theirs, names) in kinds.items():
    more, line = _by_group(kind, names, (ours, mine, shown), (theirs, other, apart), each, model)
    numbers, lines = {**numbers, **more}, lines + line
  sentence = (
    f"The sets are to hold the label in {in_percent(1 - model.alpha)} of all examples, whatever the model. A "
    "better model needs fewer classes for it; adaptive sets are larger where the model is in doubt. One "
    "threshold for all examples covers some classes and groups less often. A threshold for each of them "
    f"keeps the promise in each, with larger sets.{lines}{remark}"
  )
  function = "calibration.conformal_scores, aps_scores, conformal_sets"
  return Section(numbers, arrays, sentence, f"{len(shown.labels)} predictions", function, each)


def _by_group(
  kind: str,
  names: tuple[str, ...],
  shown: tuple[np.ndarray, Any, Predicted],
  apart: tuple[np.ndarray, Any, Predicted],
  each: dict[str, Any],
  model: Model,
) -> tuple[dict[str, Number], str]:
  """Measures the coverage of each class or group: by one threshold for all the least, and by its own."""
  (ours, mine, (_, labels)), (theirs, other, (_, held_out)) = shown, apart
  number = mine.shape[-1] if kind == "class" else max(int(ours.max()), int(theirs.max())) + 1
  options: dict[str, Any] = {"by_class": True}
  if kind == "group":
    options = {"groups": ours, "held_out_groups": theirs, "num_groups": number}
  sets = np.asarray(calibration.conformal_sets(mine, other, held_out, alpha=model.alpha, **options))
  hits = sets[np.arange(len(sets)), labels]
  hits_of_all = each["conformal_coverage"]
  name_of = lambda one: names[one] if one < len(names) else str(one)
  present = np.unique(ours)
  rates = [hits_of_all[ours == one].mean() for one in present]
  chosen = present[np.argsort(rates, kind="stable")]
  numbers: dict[str, Number] = {}
  for one in chosen[:WORST] if kind == "class" else present:
    title = f"{kind} {name_of(one)}"
    numbers[f"coverage/{kind} {name_of(one)}"] = share(
      f"smallest sets: with the label, {title}", hits_of_all[ours == one]
    )
    numbers[f"own_coverage/{kind} {name_of(one)}"] = share(
      f"by {kind}: with the label, {title}", hits[ours == one]
    )
  sizes = sets.sum(axis=-1)
  numbers[f"by_{kind}_coverage"] = share(f"by {kind}: with the label", hits)
  numbers[f"by_{kind}_size"] = mean(f"by {kind}: classes", sizes, resamples(model.seed, len(sizes)))
  each |= {f"by_{kind}_coverage": hits, f"by_{kind}_size": sizes}
  least = math.ceil(round(1 / model.alpha, 9)) - 1
  few = np.flatnonzero(np.bincount(theirs, minlength=number) < least)
  if not len(few):
    return numbers, ""
  listed = ", ".join(map(name_of, few[:MOST_NAMED])) + (", ..." if len(few) > MOST_NAMED else "")
  holds = "every set holds the class" if kind == "class" else "sets hold all classes"
  return numbers, f" Held-out examples of {kind} {listed} are fewer than {least}, so {holds}."


def interval_of(predictions: np.ndarray, model: Model) -> tuple[np.ndarray, np.ndarray]:
  """Returns the ends of the predicted interval: outer quantiles, a Gaussian's, or the prediction itself."""
  if model.levels:
    return predictions[:, 0], predictions[:, -1]
  variances = predictions[:, 1] if predictions.shape[1] == 2 else np.zeros(len(predictions))
  half = float(ndtri(1 - model.alpha / 2)) * np.sqrt(variances)
  return predictions[:, 0] - half, predictions[:, 0] + half


def intervals(model: Model) -> Section:
  """Intervals that hold the target with a promised probability."""
  shown, apart, remark = model.halves()
  ours, theirs = (interval_of(each.predictions, model) for each in (shown, apart))
  kinds = {"predicted": ours} if shown.predictions.shape[1] > 1 else {}
  ends = calibration.conformal_intervals(*ours, *theirs, apart.labels, alpha=model.alpha)
  kinds["conformal"] = np.asarray(ends[0]), np.asarray(ends[1])
  numbers: dict[str, Number] = {}
  each: dict[str, Any] = {}
  for name, (low, high) in kinds.items():
    hits = (low <= shown.labels) & (shown.labels <= high)
    numbers[f"{name}_coverage"] = share(f"{name} intervals: with the target", hits)
    numbers[f"{name}_width"] = mean(f"{name} intervals: width", high - low, resamples(model.seed, len(low)))
    each |= {f"{name}_coverage": hits, f"{name}_width": high - low}
  order = np.argsort(point(shown.predictions, model.levels))
  low, high = kinds["conformal"]
  arrays = {"low": low[order], "high": high[order], "targets": shown.labels[order]}
  sentence = (
    f"Conformal intervals are to hold {in_percent(1 - model.alpha)} of the targets, whatever the model; a "
    f"better model needs a smaller width for it.{remark}"
  )
  function = "calibration.conformal_intervals"
  return Section(numbers, arrays, sentence, f"{len(shown.labels)} predictions", function, each)


def residuals(model: Model) -> Section:
  """Measures errors of predicted numbers, and the share of the targets below each predicted quantile."""
  predictions, labels = model.shown
  levels, outputs = model.levels, point(predictions, model.levels)
  numbers = {**model.statistics}
  arrays = {"targets": labels, "outputs": outputs}
  quantiles = predictions
  if not levels and predictions.shape[1] == 2:
    levels = (model.alpha / 2, 0.25, 0.5, 0.75, 1 - model.alpha / 2)
    quantiles = predictions[:, :1] + np.sqrt(predictions[:, 1:]) * ndtri(np.array(levels))
  for level, values in zip(levels, quantiles.T):
    numbers[f"below/{level:.3g}"] = share(f"below the {in_percent(level)} quantile", labels <= values)
  if levels:
    arrays |= {"quantiles": quantiles, "levels": np.array(levels)}
  sentence = "Good predictions lie on the diagonal. The share below a predicted quantile is to be its level."
  return Section(numbers, arrays, sentence, f"{len(labels)} predictions", "numpy")

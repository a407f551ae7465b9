"""The sections that need predictions and labels alone, for classes and for numbers."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from scipy.special import ndtri

from jaxreg import calibration
from jaxreg.reports._model import Model, Options, Section
from jaxreg.reports._numbers import Number, bootstrapped, mean, share
from jaxreg.reports._statistics import OF_CLASSES, OF_NUMBERS, conformal_intervals, conformal_sets

MISTAKES = 12  # pictures
WORST = 3  # classes
GRID = np.linspace(0.01, 1, 100)  # coverages of a curve
ANSWERED = (0.9, 0.8)


def point(predictions: np.ndarray, levels: tuple[float, ...]) -> np.ndarray:
  """The mean, or the quantile nearest the median, `[n]`."""
  return predictions[:, int(np.abs(np.asarray(levels) - 0.5).argmin()) if levels else 0]


def errors(model: Model, options: Options) -> Section:
  """The error, the confusions, the worst classes, and the mistakes that the model is surest of."""
  log_probs, labels = model.shown
  guessed, classes, confidence = log_probs.argmax(axis=-1), log_probs.shape[-1], log_probs.max(axis=-1)
  wrong = guessed != labels
  confusion = np.zeros((classes, classes), int)
  np.add.at(confusion, (labels, guessed), 1)
  names = options.class_names or tuple(map(str, range(classes)))
  present = np.flatnonzero(confusion.sum(axis=1))
  recall = confusion.diagonal()[present] / confusion.sum(axis=1)[present]
  found = {"error": share("error", wrong)}
  for number in present[np.argsort(recall, kind="stable")][:WORST]:
    found[f"recall/{names[number]}"] = share(f"found of class {names[number]}", ~wrong[labels == number])
  arrays: dict[str, Any] = {"confusion": confusion}
  if model.inputs is not None and model.inputs.ndim == 4:
    surest = np.flatnonzero(wrong)
    surest = surest[np.argsort(-confidence[surest], kind="stable")][:MISTAKES]
    arrays["pictures"] = np.moveaxis(model.inputs[surest], options.channel_axis, -1)
    arrays |= {"labels": labels[surest], "guessed": guessed[surest], "sure": np.exp(confidence[surest])}
  sentence = (
    "A row of the matrix is a true class, a column the answer. The worst classes come first. A mistake with "
    "a confidence near 1 is often a wrong label, or a kind of example that the training lacks."
  )
  return Section(found, arrays, sentence, f"{len(labels)} predictions", "numpy")


def calibrated(model: Model, options: Options) -> Section:
  """Whether the confidence is the accuracy, and the temperature that mends it."""
  del options
  weights = model.resampled(len(model.shown.labels))
  names = ("ece", "adaptive_ece", "nll", "brier")
  found = bootstrapped({name: OF_CLASSES[name] for name in names}, *model.shown, weights)
  shown, apart, remark = model.halves()
  temperature = float(calibration.fit_temperature(*apart))
  tempered = np.asarray(calibration.temper(shown.predictions, temperature=temperature))
  found["temperature"] = Number("temperature", temperature)
  again = {
    f"tempered_{name}": OF_CLASSES[name]._replace(title=f"{OF_CLASSES[name].title} at the temperature")
    for name in ("ece", "nll")
  }
  found |= bootstrapped(again, tempered, shown.labels, model.resampled(len(shown.labels)))
  arrays: dict[str, Any] = {}
  for name, bins in {
    "": calibration.ece_bins(*model.shown),
    "tempered_": calibration.ece_bins(tempered, shown.labels),
  }.items():
    arrays |= {f"{name}{part}": np.asarray(value) for part, value in bins._asdict().items()}
  sentence = (
    "Points below the diagonal are overconfident. A temperature above 1 makes the model less sure without "
    f"changing an answer.{remark}"
  )
  function = "calibration.ece_bins, adaptive_bins, nll, brier, fit_temperature"
  return Section(found, arrays, sentence, f"{len(model.shown.labels)} predictions", function)


def selective(model: Model, options: Options) -> Section:
  """The error of the answers that the model is surest of."""
  del options
  log_probs, labels = model.shown
  found = bootstrapped({"aurc": OF_CLASSES["aurc"]}, *model.shown, model.resampled(len(labels)))
  coverage, risk, _ = map(np.asarray, calibration.risk_coverage(*model.shown))
  order = np.argsort(np.asarray(calibration.least_confidence(log_probs)), kind="stable")
  wrong = (log_probs.argmax(axis=-1) != labels)[order]
  for part in ANSWERED:
    answered = wrong[: round(part * len(wrong))]
    found[f"error_at_{part:g}"] = share(f"error of the surest {part:.0%}", answered)
  places = np.searchsorted(coverage, GRID - 1e-6).clip(max=len(risk) - 1)
  sentence = (
    "If the model may decline to answer, its error should fall with every example that it declines. A flat "
    "curve says that its confidence does not know its mistakes. AURC is the mean error over all coverages."
  )
  arrays = {"coverage": GRID, "risk": risk[places]}
  return Section(found, arrays, sentence, f"{len(labels)} predictions", "calibration.risk_coverage")


def prediction_sets(model: Model, options: Options) -> Section:
  """Sets of classes that hold the label with a promised probability."""
  shown, apart, remark = model.halves()
  ours, theirs = jax.random.split(jax.random.fold_in(model.key, 1))
  scores = {
    "conformal": [calibration.conformal_scores(each.predictions) for each in (shown, apart)],
    "aps": [
      calibration.aps_scores(*each) for each in ((ours, shown.predictions), (theirs, apart.predictions))
    ],
  }
  found: dict[str, Number] = {}
  arrays: dict[str, Any] = {}
  for (name, (mine, other)), title in zip(scores.items(), ("smallest sets", "adaptive sets"), strict=True):
    hits, sizes = conformal_sets(mine, shown.labels, other, apart.labels, alpha=options.alpha)
    found[f"{name}_coverage"] = share(f"{title}: with the label", hits)
    found[f"{name}_size"] = mean(f"{title}: classes", sizes, model.resampled(len(sizes)))
    arrays[title] = sizes
  sentence = (
    f"The sets are to hold the label in {1 - options.alpha:.0%} of all examples, whatever the model. A "
    "better model needs fewer classes for it; adaptive sets are larger where the model is in doubt."
    f"{remark}"
  )
  function = "calibration.conformal_scores, aps_scores, conformal_threshold"
  return Section(found, arrays, sentence, f"{len(shown.labels)} predictions", function)


def interval_of(predictions: np.ndarray, options: Options) -> tuple[np.ndarray, np.ndarray]:
  """The ends of the predicted interval: outer quantiles, a Gaussian's, or the prediction itself."""
  if options.levels:
    return predictions[:, 0], predictions[:, -1]
  variances = predictions[:, 1] if predictions.shape[1] == 2 else np.zeros(len(predictions))
  half = float(ndtri(1 - options.alpha / 2)) * np.sqrt(variances)
  return predictions[:, 0] - half, predictions[:, 0] + half


def intervals(model: Model, options: Options) -> Section:
  """Intervals that hold the target with a promised probability."""
  shown, apart, remark = model.halves()
  ours, theirs = (interval_of(each.predictions, options) for each in (shown, apart))
  kinds = {"predicted": ours} if shown.predictions.shape[1] > 1 else {}
  kinds["conformal"] = conformal_intervals(ours, theirs, apart.labels, alpha=options.alpha)
  found: dict[str, Number] = {}
  for name, (low, high) in kinds.items():
    hits = (low <= shown.labels) & (shown.labels <= high)
    found[f"{name}_coverage"] = share(f"{name} intervals: with the target", hits)
    found[f"{name}_width"] = mean(f"{name} intervals: width", high - low, model.resampled(len(low)))
  order = np.argsort(point(shown.predictions, options.levels))
  low, high = kinds["conformal"]
  arrays = {"low": low[order], "high": high[order], "targets": shown.labels[order]}
  sentence = (
    f"Conformal intervals are to hold {1 - options.alpha:.0%} of the targets, whatever the model; a better "
    f"model needs a smaller width for it.{remark}"
  )
  function = "calibration.interval_scores, conformal_threshold"
  return Section(found, arrays, sentence, f"{len(shown.labels)} predictions", function)


def residuals(model: Model, options: Options) -> Section:
  """Errors of predicted numbers, and the share of the targets below each predicted quantile."""
  predictions, labels = model.shown
  levels, outputs = options.levels, point(predictions, options.levels)
  found = bootstrapped(OF_NUMBERS, outputs, labels, model.resampled(len(labels)))
  arrays = {"targets": labels, "outputs": outputs}
  quantiles = predictions
  if not levels and predictions.shape[1] == 2:
    levels = (options.alpha / 2, 0.25, 0.5, 0.75, 1 - options.alpha / 2)
    quantiles = predictions[:, :1] + np.sqrt(predictions[:, 1:]) * ndtri(np.array(levels))
  for level, values in zip(levels, quantiles.T):
    found[f"below/{level:.3g}"] = share(f"below the {level:.3g} quantile", labels <= values)
  if levels:
    arrays |= {"quantiles": quantiles, "levels": np.array(levels)}
  sentence = "Good predictions lie on the diagonal. The share below a predicted quantile is to be its level."
  return Section(found, arrays, sentence, f"{len(labels)} predictions", "numpy")

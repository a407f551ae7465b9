"""`evaluate.measures`: more about a run's probabilities than error, NLL, Brier score and ECE."""

import functools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxreg import calibration
from jaxreg.train import keys
from jaxreg.train.data.placement import Source
from jaxreg.train.errors import RunError
from jaxreg.train.jobs.laplace import check_last_layer, laplace_measures
from jaxreg.train.jobs.restored_run import RestoredRun
from jaxreg.train.step.state import TrainState
from jaxreg.typing import Array, Key


class Predicted(NamedTuple):
  """The log-probabilities `[n, classes]` of a run for a split with these labels `[n]`; `key` is for draws."""

  log_probs: np.ndarray
  labels: np.ndarray
  key: Key


def _temperature(shown: Predicted, held_out: Predicted, alpha: float) -> dict[str, Any]:
  del alpha
  temperature = calibration.fit_temperature(held_out.log_probs, held_out.labels)
  tempered = calibration.temper(shown.log_probs, temperature=temperature)
  total, count = calibration.nll(tempered, shown.labels)
  ece = calibration.ece(calibration.ece_bins(tempered, shown.labels))
  return {"temperature": temperature, "tempered_nll": total / count, "tempered_ece": ece}


def _conformal(shown: Predicted, held_out: Predicted, alpha: float) -> dict[str, Any]:
  scores = calibration.conformal_scores
  return _sets("conformal", scores(shown.log_probs), shown, scores(held_out.log_probs), held_out, alpha)


def _aps(shown: Predicted, held_out: Predicted, alpha: float) -> dict[str, Any]:
  ours, theirs = (calibration.aps_scores(each.key, each.log_probs) for each in (shown, held_out))
  return _sets("aps", ours, shown, theirs, held_out, alpha)


def _sets(
  name: str, ours: Array, shown: Predicted, theirs: Array, held_out: Predicted, alpha: float
) -> dict[str, Any]:
  """How often the sets hold the label, and their mean number of classes."""
  sets = np.asarray(ours <= calibration.conformal_threshold(theirs, held_out.labels, alpha=alpha))
  covered = sets[np.arange(len(sets)), shown.labels]
  return {f"{name}_coverage": covered.mean(), f"{name}_size": sets.sum(axis=-1).mean()}


OF_THE_SPLIT: dict[str, Callable[[np.ndarray, np.ndarray], Array]] = {
  "mce": lambda log_probs, labels: calibration.mce(calibration.ece_bins(log_probs, labels)),
  "adaptive_ece": lambda log_probs, labels: calibration.ece(calibration.adaptive_bins(log_probs, labels)),
  "classwise_ece": lambda log_probs, labels: calibration.ece(
    calibration.classwise_bins(log_probs, labels)
  ).mean(),
}
# These learn one number from the validation split.
HELD_OUT: dict[str, Callable[[Predicted, Predicted, float], dict[str, Any]]] = {
  "temperature": _temperature,
  "conformal": _conformal,
  "aps": _aps,
}


def further_measures(
  run: RestoredRun, split: str, names: Iterable[str], *, alpha: float
) -> dict[str, np.ndarray]:
  """The measures with these names on a split, `[replicas]` each, as `<split>/<measure>`.

  `temperature` gives the temperature, and NLL and ECE at it. `conformal` and `aps` give the share of the
  sets that hold the label, which is to be `1 - alpha`, and their mean size. `laplace` is as in
  `laplace_measures`.
  """
  dataset, ensemble = run.dataset, run.program.ensemble
  wanted = {"val": dataset.val, split: dataset.splits()[split]}
  if ensemble > 1 or wanted[split].labels.ndim > 1:
    raise RunError(
      "evaluate.measures: needs labels [n] and ensemble=1, "
      f"got labels {wanted[split].labels.shape} and ensemble={ensemble}"
    )
  learns = [name for name in names if name in HELD_OUT or name == "laplace"]
  # Two splits may be the same examples, read twice.
  if learns and np.array_equal(wanted["val"].labels, wanted[split].labels):
    raise RunError(
      f"evaluate.measures: {', '.join(learns)} learns from the validation split, which must have other "
      f"examples than evaluate.split={split}"
    )
  sources: dict[str, Source] = {}
  if "laplace" in learns:
    check_last_layer(run.program)
    splits = {"train": dataset.train, "val": wanted["val"], "shown": wanted[split]}
    sources = {name: run.source(one) for name, one in splits.items()}
  found: dict[str, list[float]] = {}
  for state in run.each():

    @functools.cache
    def predicted(name: str, state: TrainState = state) -> Predicted:
      outputs = run.outputs(state, run.source(wanted[name]))
      log_probs, labels = outputs["log_probs"], wanted[name].labels
      return Predicted(log_probs, labels, keys.prediction_sets(name))

    for name in names:
      if name == "laplace":
        values = laplace_measures(run.program, run.replicas.mesh, state, sources, run.batch_size)
      elif name in HELD_OUT:
        values = HELD_OUT[name](predicted(split), predicted("val"), alpha)
      else:
        shown = predicted(split)
        values = {name: OF_THE_SPLIT[name](shown.log_probs, shown.labels)}
      for measure, value in jax.device_get(values).items():
        found.setdefault(f"{split}/{measure}", []).append(float(value))
  return {name: np.array(values) for name, values in found.items()}

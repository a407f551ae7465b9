"""`evaluate.measures`: more about a run's probabilities than error, NLL, Brier score and ECE."""

import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np

from jaxreg import calibration
from jaxreg.train import keys
from jaxreg.train.data.dataset import Dataset
from jaxreg.train.data.placement import make_source
from jaxreg.train.devices.replicas import Loop, Vmap
from jaxreg.train.errors import RunError
from jaxreg.train.jobs.laplace import check_last_layer, laplace_measures
from jaxreg.train.run.whole_split import outputs_over
from jaxreg.train.step.program import Program


@dataclasses.dataclass(frozen=True)
class Predicted:
  """The log-probabilities `[n, classes]` of a run for a split with these labels `[n]`; `key` is for draws."""

  log_probs: np.ndarray
  labels: np.ndarray
  key: Any


def _mce(shown: Predicted) -> dict[str, Any]:
  return {"mce": calibration.mce(calibration.ece_bins(shown.log_probs, shown.labels))}


def _adaptive_ece(shown: Predicted) -> dict[str, Any]:
  return {"adaptive_ece": calibration.ece(calibration.adaptive_bins(shown.log_probs, shown.labels))}


def _classwise_ece(shown: Predicted) -> dict[str, Any]:
  bins = calibration.classwise_bins(shown.log_probs, shown.labels)
  return {"classwise_ece": calibration.ece(bins).mean()}


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
  name: str, ours: Any, shown: Predicted, theirs: Any, held_out: Predicted, alpha: float
) -> dict[str, Any]:
  """How often the sets hold the label, and their mean number of classes."""
  sets = np.asarray(ours <= calibration.conformal_threshold(theirs, held_out.labels, alpha=alpha))
  covered = sets[np.arange(len(sets)), shown.labels]
  return {f"{name}_coverage": covered.mean(), f"{name}_size": sets.sum(axis=-1).mean()}


OF_THE_SPLIT: dict[str, Callable[[Predicted], dict[str, Any]]] = {
  "mce": _mce,
  "adaptive_ece": _adaptive_ece,
  "classwise_ece": _classwise_ece,
}
# These learn one number from the validation split.
HELD_OUT: dict[str, Callable[[Predicted, Predicted, float], dict[str, Any]]] = {
  "temperature": _temperature,
  "conformal": _conformal,
  "aps": _aps,
}


def further_measures(
  program: Program,
  replicas: Vmap | Loop,
  states: Any,
  dataset: Dataset,
  split: str,
  names: Iterable[str],
  *,
  number: int,
  batch_size: int,
  resident: bool,
  alpha: float,
) -> dict[str, np.ndarray]:
  """The measures with these names on a split, `[number]` each, as `<split>/<measure>`.

  `temperature` gives the temperature, and NLL and ECE at it. `conformal` and `aps` give the share of the
  sets that hold the label, which is to be `1 - alpha`, and their mean size. `laplace` is as in
  `laplace_measures`. `number` is the number of replicas; `resident` as in `make_source`.
  """
  wanted = {"val": dataset.val, split: dataset.splits()[split]}
  if program.ensemble > 1 or wanted[split].labels.ndim > 1:
    raise RunError(
      "evaluate.measures: needs labels [n] and ensemble=1, "
      f"got labels {wanted[split].labels.shape} and ensemble={program.ensemble}"
    )
  learns = [name for name in names if name in HELD_OUT or name == "laplace"]
  # Two splits may be the same examples, read twice.
  if learns and np.array_equal(wanted["val"].labels, wanted[split].labels):
    raise RunError(
      f"evaluate.measures: {', '.join(learns)} learns from the validation split, which must have other "
      f"examples than evaluate.split={split}"
    )
  source = lambda one: make_source(replicas.mesh, one, resident=resident)
  if "laplace" in learns:
    check_last_layer(program)
    sources = {"train": source(dataset.train), "val": source(wanted["val"]), "shown": source(wanted[split])}
  found: dict[str, list[float]] = {}
  for replica in range(number):
    state = replicas.pick(states, replica)

    @functools.cache
    def predicted(name: str, state: Any = state) -> Predicted:
      outputs = outputs_over(program, replicas.mesh, state, source(wanted[name]), batch_size)
      return Predicted(outputs["log_probs"], wanted[name].labels, keys.prediction_sets(name))

    for name in names:
      if name == "laplace":
        values = laplace_measures(program, replicas.mesh, state, sources, batch_size)
      elif name in HELD_OUT:
        values = HELD_OUT[name](predicted(split), predicted("val"), alpha)
      else:
        values = OF_THE_SPLIT[name](predicted(split))
      for measure, value in jax.device_get(values).items():
        found.setdefault(f"{split}/{measure}", []).append(float(value))
  return {name: np.array(values) for name, values in found.items()}

"""Recalibration and conformal sets on the logits of two networks that other people trained.

    JAXREG_TEST_DATA=DIR python -m benchmarks recalibration

DIR has what `others_networks` needs of it. The test images at hand, 10 000 of CIFAR-100 and 5000 of CIFAR-10,
which are stored as JPEG, are divided at random into two halves: one to learn from, the other to measure. This
is done 20 times. The script writes the records `recalibration` and `conformal_sets`.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _public_networks import NETWORKS, features_of
from _records import Found
from _report import Report, flags
from others_networks import read
from sklearn.isotonic import IsotonicRegression

from jaxreg import calibration

CHOSEN = {"CIFAR-100": "dis_resnet20_cifar100", "CIFAR-10": "aka_resnet20-12fca82f"}
SPLITS, ALPHA = 20, 0.1
KINDS = {"temperature": "scalar", "vector": "vector", "matrix": "matrix", "Dirichlet": "dirichlet"}
WEIGHTS = (10.0, 100.0, 1000.0, 10_000.0)  # of Dirichlet's penalty, chosen on a fifth of the images


def isotonic(probs: np.ndarray, labels: np.ndarray, new: np.ndarray) -> np.ndarray:
  """Returns log-probabilities by one isotonic regression for each class, as on the page on calibration."""
  out = np.empty_like(new)
  for k in range(probs.shape[1]):
    regression = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(probs[:, k], labels == k)
    out[:, k] = regression.predict(new[:, k])
  out += 1e-9
  return np.log(out / out.sum(axis=1, keepdims=True))


@jax.jit
def quality(log_probs: Any, labels: Any) -> dict[str, Any]:
  total, count = calibration.nll(log_probs, labels)
  bins = calibration.ece_bins(log_probs, labels)
  return {
    "error, %": 100 * jnp.mean(log_probs.argmax(-1) != labels),
    "NLL": total / count,
    "ECE, %": 100 * calibration.ece(bins),
    "debiased L2 ECE, %": 100 * calibration.ece(bins, norm="l2", debiased=True),
    "SmoothECE, %": 100 * calibration.smooth_ece(log_probs, labels),
  }


@jax.jit
def coverage(sets: Any, labels: Any) -> dict[str, Any]:
  covered = jnp.take_along_axis(sets, labels[:, None], axis=1)[:, 0]
  of_class = jax.nn.one_hot(labels, sets.shape[1])
  shares = covered @ of_class / of_class.sum(axis=0)
  sizes = sets.sum(axis=1)
  return {
    "covered, %": 100 * covered.mean(),
    "classes in a set": sizes.mean(),
    "sets of more than 20 classes, %": 100 * jnp.mean(sizes > 20),
    "distance of a class from 90 %": 100 * jnp.abs(shares - (1 - ALPHA)).mean(),
    "least covered class, %": 100 * shares.min(),
  }


def dirichlet(logits: Any, labels: Any, new: Any) -> Any:
  """Log-probabilities by Dirichlet scaling with the weight that has the least NLL on the last fifth."""
  start = 4 * len(labels) // 5

  def by(weight: float, end: int, others: Any) -> Any:
    fitted = calibration.fit_temperature(logits[:end], labels[:end], kind="dirichlet", weight=weight)
    return calibration.temper(others, temperature=fitted)

  def nll(weight: float) -> float:
    return float(calibration.nll(by(weight, start, logits[start:]), labels[start:])[0])

  return by(min(WEIGHTS, key=nll), len(labels), new)


def recalibrated(logits: Any, labels: Any, new: Any) -> dict[str, Any]:
  """The log-probabilities of new examples by each way to recalibrate."""
  found = {"none": jax.nn.log_softmax(new)}
  for title, kind in KINDS.items():
    options: Any = {"kind": kind}
    fitted = calibration.fit_temperature(logits, labels, **options)
    found[title] = calibration.temper(new, temperature=fitted)
  found["Dirichlet, weight chosen"] = dirichlet(logits, labels, new)
  probs = np.asarray(jax.nn.softmax(logits)), np.asarray(labels), np.asarray(jax.nn.softmax(new))
  return {**found, "isotonic": isotonic(*probs)}


def conformal(key: Any, log_probs: Any, labels: Any, new: Any) -> dict[str, Any]:
  """The sets of new examples by each kind of score and of threshold."""
  scores: dict[str, Callable[..., Any]] = {
    "of the probabilities": lambda key, log_probs: calibration.conformal_scores(log_probs),
    "adaptive": calibration.aps_scores,
    "RAPS": lambda key, log_probs: calibration.aps_scores(key, log_probs, penalty=0.01),
  }
  ours, theirs = jax.random.split(key)
  found = {}
  for title, score in scores.items():
    held_out, of_new = score(ours, log_probs), score(theirs, new)
    for name, by_class in ((title, False), (f"{title}, by class", True)):
      found[name] = calibration.conformal_sets(of_new, held_out, labels, alpha=ALPHA, by_class=by_class)
  return found


def main() -> None:
  options = flags(__doc__ or "", rounds=1).parse_args()
  if not (given := os.environ.get("JAXREG_TEST_DATA")):
    raise SystemExit("JAXREG_TEST_DATA must name the folder of the networks and their data, got none")
  folder, kinds, sets = Path(given), Found(), Found()
  splits, number = (2, 1000) if options.quick else (SPLITS, None)
  for data, name in CHOSEN.items():
    network = NETWORKS[name]
    test = read(network.data, folder)["test"]
    features_fn, head = features_of(name, folder)
    logits = features_fn(np.asarray(test.inputs[:number])) @ head["kernel"] + head["bias"]
    labels = jnp.asarray(test.labels[:number])
    found: dict[str, dict[str, list[Any]]] = {"kinds": {}, "sets": {}}
    for split in range(splits):
      key, order = jax.random.split(jax.random.key(split))
      learn, measure = jnp.split(jax.random.permutation(order, len(labels)), 2)
      log_probs = recalibrated(logits[learn], labels[learn], logits[measure])
      for title, each in log_probs.items():
        found["kinds"].setdefault(title, []).append(quality(each, labels[measure]))
      plain = jax.nn.log_softmax(logits)
      for title, each in conformal(key, plain[learn], labels[learn], plain[measure]).items():
        found["sets"].setdefault(title, []).append(coverage(each, labels[measure]))
      print(f"{data}: {split + 1} of {splits} splits", flush=True)
    for record, rows in ((kinds, found["kinds"]), (sets, found["sets"])):
      for title, runs in rows.items():
        for quantity in runs[0]:
          digits = 3 if quantity == "NLL" else 2
          record.add(f"{data}, {title}", quantity, [float(run[quantity]) for run in runs], digits)
  if not options.quick:
    kinds.write("recalibration", "JAXREG_TEST_DATA=DIR python -m benchmarks recalibration")
    sets.write("conformal_sets", "JAXREG_TEST_DATA=DIR python -m benchmarks recalibration")
  Report(options.json).close()


if __name__ == "__main__":
  main()

"""`job = evaluate`: the metrics of a checkpoint on a split, and how well it tells other inputs apart."""

import os
from collections.abc import Callable, Iterable

import jax
import jax.numpy as jnp
import numpy as np

from jaxreg import calibration
from jaxreg._log_odds import error_log_odds, log_entropy
from jaxreg.train.config.choices import Config
from jaxreg.train.data.batches import make_source
from jaxreg.train.data.dataset import Split
from jaxreg.train.data.sources import digits
from jaxreg.train.errors import RunError
from jaxreg.train.finished.measures import further_measures
from jaxreg.train.finished.restore import RestoredRun, restore_states
from jaxreg.train.run.evaluation import make_evaluate
from jaxreg.train.sealed_tables import Table
from jaxreg.train.step.metrics import averaged, summarize
from jaxreg.train.step.state import TrainState
from jaxreg.train.user_paths import user_path
from jaxreg.typing import Array


def evaluate(config: Config, workdir: str | os.PathLike[str]) -> Table:
  """Evaluates a checkpoint of `workdir`, as `config.evaluate` says.

  Raises:
    RunError: if `workdir` holds nothing usable, or if it was trained under another configuration.
  """
  run, options = restore_states(config, user_path(workdir, "--workdir")), config.evaluate
  split = run.dataset.splits()[options.split]
  sums = make_evaluate(run.program, run.replicas, run.batch_size)(run.states, run.source(split))
  values = summarize(sums, options.split)
  if options.measures:
    laplace = config.laplace.to_dict()
    values |= further_measures(run, options.split, options.measures, alpha=options.alpha, laplace=laplace)
  if options.ood:
    values |= _detection(run, split, options.ood)
  return {"step": run.step, **averaged(values)}


def _rotated(inputs: np.ndarray, scale: float) -> np.ndarray:
  del scale
  if inputs.shape[1] != inputs.shape[2]:
    raise RunError(f"evaluate.ood: rotated needs square images, got {inputs.shape[1:]}")
  return np.rot90(inputs, axes=(1, 2)).copy()


def _inverted(inputs: np.ndarray, scale: float) -> np.ndarray:
  return (scale - inputs).astype(inputs.dtype)


def _noise(inputs: np.ndarray, scale: float) -> np.ndarray:
  uniform = np.random.default_rng(0).uniform(0, scale, inputs.shape)
  return (uniform.round() if np.issubdtype(inputs.dtype, np.integer) else uniform).astype(inputs.dtype)


def _digits(inputs: np.ndarray, scale: float) -> np.ndarray:
  data = digits()
  images = np.concatenate([split.inputs for split in data.splits().values()]) / data.scale
  resized = np.asarray(jax.image.resize(images, (len(images), *inputs.shape[1:3], 1), "linear")) * scale
  resized = np.broadcast_to(resized, (len(images), *inputs.shape[1:]))
  return (resized.round() if inputs.dtype == np.uint8 else resized).astype(inputs.dtype)


KINDS: dict[str, Callable[[np.ndarray, float], np.ndarray]] = {
  "rotated": _rotated,
  "inverted": _inverted,
  "noise": _noise,
  "digits": _digits,
}


def _detection(run: RestoredRun, split: Split, kinds: Iterable[str]) -> dict[str, np.ndarray]:
  """Computes each score's AUROC, and its false positives at 95 % of the split, for each kind, `[replicas]`.

  The names are `ood/<kind>/<score>_auroc` and `_fpr95`. The scores are the confidence, the entropy and, if
  the head returns logits, the energy.
  """
  inputs = split.inputs
  if not isinstance(inputs, np.ndarray) or inputs.ndim != 4 or run.program.ensemble > 1:
    raise RunError("evaluate.ood: needs images [n, height, width, channels] in memory, and ensemble=1")
  others = {kind: KINDS[kind](inputs, run.dataset.scale) for kind in kinds}
  measured: dict[str, list[float]] = {}
  for state in run.each():

    def scores(inputs: np.ndarray, state: TrainState = state) -> dict[str, Array]:
      images = Split(inputs, np.zeros(len(inputs), np.int32))
      outputs = run.outputs(state, make_source(run.replicas.mesh, images, resident=False))
      log_probs = jnp.asarray(outputs["predictions"])
      made = {"confidence": error_log_odds(log_probs), "entropy": log_entropy(log_probs)}
      return made | ({"energy": calibration.energy(outputs["logits"])} if "logits" in outputs else {})

    usual = scores(inputs)
    for kind, other in others.items():
      for name, strange in scores(other).items():
        for metric, measure in (("auroc", calibration.auroc), ("fpr95", calibration.fpr_at_tpr)):
          value = float(measure(usual[name], strange))
          measured.setdefault(f"ood/{kind}/{name}_{metric}", []).append(value)
  return {name: np.array(values) for name, values in measured.items()}

"""The ranges of the numbers in a configuration."""

import fnmatch
import functools
import math
from collections.abc import Mapping
from typing import Any

from jaxreg.train.errors import RunError
from jaxreg.train.step import optimizer

# Upper bounds: only a slip exceeds them, and a run would not survive it.
STEPS, SIZE, MANY = "1e9", "1e6", "1e4"

# Intervals by patterns of field names. The first pattern that fits counts, for each number of a tuple. The
# functions themselves check numbers without an interval here.
RANGES = {
  "batch_size": "[1, inf)",
  "epochs": f"[1, {STEPS}]",
  "steps": f"[0, {STEPS}]",
  "eval_every": "[1, inf)",
  "eval_batch_size": f"[1, {SIZE}]",
  "log_every": "[1, inf)",
  "watch.steps": "[0, inf)",
  "steps_per_dispatch": f"[0, {SIZE}]",
  "replicas": f"[1, {MANY}]",
  "ensemble": f"[1, {MANY}]",
  "accumulate": "[1, inf)",
  "mesh.model": "[1, inf)",
  "mesh.min_size": "[0, inf)",
  "stacks_after": "[0, inf)",
  "checkpoint.every": "[1, inf)",
  "checkpoint.every_*": "[0, inf)",
  "checkpoint.keep": "[2, inf)",  # a single one could be lost while the next is being written
  "compare.seeds": f"[1, {MANY}]",
  "evaluate.mc_samples": f"[0, {SIZE}]",
  "evaluate.alpha": "[0, 1]",
  "translate.beam_size": f"[1, {MANY}]",
  "translate.length_penalty": "[0, inf)",
  "data.limit": "[0, inf)",
  "data.resident_gib": "[0, inf)",
  "data.subset.per_class": "[0, inf)",
  "data.subset.seed": "[0, inf)",
  "data.flipped_labels.seed": "[0, inf)",
  "data.unlabelled.batch_size": "[0, inf)",
  "data.stream.size": f"[1, {MANY}]",
  "data.stream.resize": f"[1, {MANY}]",
  "data.stream.workers": f"[0, {MANY}]",
  "data.*.num_*": "[0, inf)",
  "data.idx.per_class": "[0, inf)",
  "data.*.validation_fraction": "(0, 1)",
  "model.unbalance": "[0, inf)",
  "model.*_rate": "[0, 1]",
  "model.*.weight_noise_std": "[0, inf)",
  "model.*.hidden_noise_std": "[0, inf)",
  "model.*.embedding_noise_alpha": "[0, inf)",
  "model.*.num_kept": f"[0, {SIZE}]",
  "model.*.depth": f"[1, {MANY}]",
  "model.*.num_*": f"[1, {MANY}]",
  **{f"model.*.{size}": f"[1, {SIZE}]" for size in ("width", "widths", "hidden", "block_size", "d_*")},
  "method.focal.loss.gamma": "[0, 100]",  # above 100, even an example in doubt has no gradient
  "method.logit_adjustment.loss.class_counts": "(0, inf)",
  "method.*.num_*": f"[0, {MANY}]",
  "method.*.loss.weight": f"[0, {SIZE}]",
  "method.*": f"[-{SIZE}, {SIZE}]",
  "regularizers.dual_learning_rate": "(0, inf)",
  "regularizers.*.weight": "[0, inf)",
  "regularizers.*.limit": "[0, inf)",
  "regularizers.*.eps": "[0, inf)",
  "regularizers.*.num_*": f"[0, {MANY}]",
  "average.swag.rank": f"[2, {MANY}]",
  "average.swag.samples": f"[1, {SIZE}]",
  "average.swag.scale": "[0, inf)",
  "noise.*.std": "[0, inf)",
  "noise.*.rate": "[0, 1]",
  "augment.*.rate": "[0, 1]",
  "optimizer.learning_rate": "(0, inf)",
  "optimizer.clip_norm": "[0, inf)",
  "optimizer.weight_decay.rate": "[0, inf)",
  "optimizer.schedule.warmup_epochs": "[0, inf)",
  "optimizer.schedule.step.factor": "[0, inf)",
  "optimizer.schedule.cosine.final": "[0, 1]",
  "optimizer.schedule.noam.*": "[1, inf)",
  "optimizer.optimistic_*.alpha": "[0, inf)",
  "optimizer.optimistic_*.beta": "[0, inf)",
  # The averages of our own optimizers may have a decay of 1.
  **{f"optimizer.{name}.{field}": "[0, 1]" for name in optimizer.OURS for field in ("b[12]", "*decay")},
  "optimizer.adafactor.clipping_threshold": "(0, inf)",
  "optimizer.adafactor.decay_rate": "(0, 1]",
  "optimizer.adafactor.decay_offset": f"[-{STEPS}, 0]",  # above 0, early steps are negative
  "optimizer.adafactor.min_dim_size_to_factor": "[1, inf)",
  "optimizer.adadelta.rho": "[0, 1)",
  **{f"optimizer.*.{field}": "[0, 1)" for field in ("b[123]", "beta", "decay", "momentum")},
  "optimizer.*.eps": "[0, 1e3]",
  "optimizer.*.eps_root": "[0, 1e3]",
  "optimizer.adagrad.initial_accumulator_value": "[0, inf)",
  "optimizer.rmsprop.initial_scale": "[0, inf)",
  "optimizer.lars.trust_coefficient": "(0, inf)",
  "optimizer.fromage.min_norm": "[0, inf)",
  "optimizer.radam.threshold": "[4, inf)",  # below 4, its rectification is a root of a negative number
  "optimizer.*.eta": "[0, inf)",
  "optimizer.*.gamma": "[0, inf)",
  "optimizer.rprop.eta_minus": "(0, 1]",
  "optimizer.rprop.eta_plus": "[1, inf)",
  "optimizer.rprop.*_step_size": "(0, inf)",
  "optimizer.lbfgs.memory_size": f"[1, {MANY}]",
  "*.replica": "[0, inf)",
  "flatness.examples": "[0, inf)",
  "flatness.parts": f"[1, {SIZE}]",
  "flatness.seed": "[0, inf)",
  "flatness.profile.directions": f"[1, {SIZE}]",
  "flatness.profile.points": f"[3, {SIZE}]",
  "flatness.profile.reach": "(0, inf)",
  "flatness.*.samples": f"[2, {STEPS}]",
  "flatness.variance_flatness.directions": "[0, inf)",
  "flatness.projected_variance.eigenpairs": "[0, inf)",
  "flatness.*.tolerance": "[0, inf)",
  "flatness.alignment.num_masks": f"[1, {SIZE}]",
  "*": "(-inf, inf)",
}


def check_ranges(fields: Mapping[str, Any]) -> None:
  """Checks the numbers of a flat configuration.

  Raises:
    RunError: with the field, its value and the allowed values.
  """
  for field, value in fields.items():
    interval = _interval(field)
    values = value if isinstance(value, list) else [value]
    if not all(_lies_in(interval, each) for each in values if isinstance(each, int | float)):
      got = tuple(value) if isinstance(value, list) else value
      raise RunError(f"{field}: must be {_in_words(interval)}, got {got}")


@functools.cache
def _interval(field: str) -> str:
  return next(RANGES[pattern] for pattern in RANGES if fnmatch.fnmatchcase(field, pattern))


def _bounds(interval: str) -> tuple[str, str]:
  low, _, high = interval[1:-1].partition(", ")
  return low, high


def _lies_in(interval: str, value: float) -> bool:
  low, high = map(float, _bounds(interval))
  above = value > low if interval[0] == "(" else value >= low
  return math.isfinite(value) and above and (value < high if interval[-1] == ")" else value <= high)


def _in_words(interval: str) -> str:
  low, high = _bounds(interval)
  if low == "-inf":
    return "finite"
  most = f"{'below' if interval[-1] == ')' else 'at most'} {high}"
  return f"{'above' if interval[0] == '(' else 'at least'} {low} and {'finite' if high == 'inf' else most}"

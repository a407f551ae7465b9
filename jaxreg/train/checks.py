"""The checks of a configuration that need nothing but it: of each field here, of several in `conflicts`."""

import math
from collections.abc import Mapping
from typing import Any

from jaxreg.train import averages, optimizer, schedule, sources, toolbox
from jaxreg.train.config import (
  AUGMENTATIONS,
  BACKBONES,
  BEST,
  JOBS,
  PRECISIONS,
  SPLITS,
  Config,
  base_config,
  flatten,
)
from jaxreg.train.conflicts import check_conflicts
from jaxreg.train.errors import RunError, shortened, unknown
from jaxreg.train.methods import METHODS
from jaxreg.train.parallel import PARALLEL
from jaxreg.train.replicas import FORMS

CHOICES = {
  "job": JOBS,
  "parallel": PARALLEL,
  "replicas_by": FORMS,
  "precision": PRECISIONS,
  "data.name": sources.SOURCES,
  "model.name": BACKBONES,
  "method.name": tuple(METHODS),
  "average.name": averages.AVERAGES,
  "optimizer.name": tuple(optimizer.OPTIMIZERS),
  **{f"optimizer.{name}.inner": tuple(optimizer.STEPS) for name in optimizer.WRAPPERS},
  "optimizer.schedule.name": schedule.SCHEDULES,
  "optimizer.weight_decay.mask": optimizer.MASKS,
  **{f"{group}.mask": optimizer.MASKS for group in toolbox.CHOSEN},
  "evaluate.checkpoint": ("latest", "best"),
  "evaluate.split": SPLITS,
  "pretrained.checkpoint": ("latest", "best"),
  "checkpoint.best": BEST,
  "compare.choose": BEST,
  "flatness.checkpoint": ("latest", "best"),
  "flatness.profile.granularity": ("layer", "filter"),
}

SEVERAL = {"augment.names": AUGMENTATIONS} | {
  f"{group}.names": tuple(known) for group, known in toolbox.CHOSEN.items()
}

AT_LEAST = {
  "batch_size": 1,
  "epochs": 1,
  "steps": 0,
  "eval_every": 1,
  "eval_batch_size": 1,
  "log_every": 1,
  "watch.steps": 0,
  "steps_per_dispatch": 0,
  "replicas": 1,
  "ensemble": 1,
  "accumulate": 1,
  "mesh.model": 1,
  "mesh.min_size": 0,
  "checkpoint.every": 1,
  "checkpoint.every_steps": 0,
  "checkpoint.every_minutes": 0,
  "stacks_after": 0,
  "checkpoint.keep": 2,  # one could be lost while the next is being written
  "compare.seeds": 1,
  "evaluate.mc_samples": 0,
  "translate.beam_size": 1,
  "translate.length_penalty": 0,
  "data.limit": 0,
  "data.resident_gib": 0,
  "data.subset.per_class": 0,
  "data.subset.seed": 0,
  "data.flipped_labels.seed": 0,
  "data.unlabelled.batch_size": 0,
  "data.stream.size": 1,
  "data.stream.workers": 0,
  "model.unbalance": 0,
  "optimizer.clip_norm": 0,
  "optimizer.weight_decay.rate": 0,
  "optimizer.adagrad.initial_accumulator_value": 0,
  "optimizer.schedule.warmup_epochs": 0,
  "optimizer.schedule.noam.d_model": 1,
  "optimizer.schedule.noam.warmup_steps": 1,
  "flatness.replica": 0,
  "flatness.examples": 0,
  "flatness.seed": 0,
  "flatness.profile.directions": 1,
  "flatness.profile.points": 3,
  "flatness.variance_flatness.samples": 2,
  "flatness.variance_flatness.directions": 0,
  "flatness.variance_flatness.tolerance": 0,
  "flatness.projected_variance.samples": 2,
  "flatness.projected_variance.eigenpairs": 0,
  "flatness.projected_variance.tolerance": 0,
  "flatness.alignment.num_masks": 1,
}

ABOVE_ZERO = ("optimizer.learning_rate", "regularizers.dual_learning_rate", "flatness.profile.reach")


KINDS = {bool: "True or False", int: "an integer", float: "a number", str: "a text", list: "a tuple"}


def check_types(fields: Mapping[str, Any]) -> None:
  """Checks that the known fields of a flat configuration have values of the kinds that their defaults have.

  Raises:
    RunError: naming the field, what it holds and what is allowed.
  """
  for field, default in flatten(base_config()).items():
    # Without a default, it is a number that may be left out.
    kind = float if default is None else type(default)
    value = fields.get(field, default)
    if not (_is_of(kind, value) or value is default is None):
      raise RunError(f"{field}: must be {KINDS[kind]}, got {shortened(repr(value), 80)}")


def _is_of(kind: type, value: Any) -> bool:
  if kind is list:
    return isinstance(value, list | tuple) and all(
      isinstance(item, str | int | float) or _is_of(list, item) for item in value
    )
  allowed = (float, int) if kind is float else kind
  return isinstance(value, allowed) and (kind is bool or not isinstance(value, bool))


def check(config: Config) -> None:
  """Checks names and numbers, and what cannot be together.

  Raises:
    RunError: naming the field, what it holds and what is allowed.
  """
  check_types(flatten(config))
  for field, allowed in CHOICES.items():
    if _get(config, field) not in allowed:
      raise unknown(field, _get(config, field), allowed)
  for field, allowed in SEVERAL.items():
    for name in _get(config, field):
      if name not in allowed:
        raise unknown(field, name, allowed)
  for field, low in AT_LEAST.items():
    _in_range(config, field, low)
  for field in ABOVE_ZERO:
    _in_range(config, field, 0, above=True)
  for name in config.regularizers.names:
    _in_range(config, f"regularizers.{name}.weight", 0)
    if name in toolbox.REGULARIZERS:
      _in_range(config, f"regularizers.{name}.limit", 0)
  _check_augment(config.augment)
  _check_stream(config.data.stream)
  _check_rates(config.model.name, config.model[config.model.name])
  _check_layers(config.model.MLP)
  _check_optimizer(config.optimizer)
  _check_factors(config.flatness.variance_flatness.factors)
  check_conflicts(config)


def _check_augment(chosen: Config) -> None:
  mean, std = chosen.mean, chosen.std
  numbers = all(isinstance(value, int | float) and math.isfinite(value) for value in (*mean, *std))
  if not numbers or len(mean) != len(std) or not all(value > 0 for value in std):
    raise RunError(
      f"augment.mean, augment.std: must be a number per channel each, std above 0, got {mean} and {std}"
    )


def _check_stream(stream: Config) -> None:
  if stream.resize < stream.size:
    raise RunError(f"data.stream.resize: must be at least size={stream.size}, got {stream.resize}")
  sides = stream.sides
  if sides and not (len(sides) == 2 and all(isinstance(side, int) for side in sides)):
    raise RunError(f"data.stream.sides: must be () or two whole numbers, got {sides!r}")
  if sides and not stream.size <= sides[0] <= sides[1]:
    raise RunError(f"data.stream.sides: must be in order and at least size={stream.size}, got {sides!r}")
  for field, most in (("area", 1), ("aspect", math.inf)):
    bounds = stream[field]
    numbers = len(bounds) == 2 and all(isinstance(value, int | float) for value in bounds)
    if not (numbers and 0 < bounds[0] <= bounds[1] <= most and bounds[1] < math.inf):
      allowed = "two numbers in order, above 0" + (f" and at most {most}" if most == 1 else "")
      raise RunError(f"data.stream.{field}: must be {allowed}, got {bounds!r}")


def _check_rates(name: str, model: Config) -> None:
  for field, value in model.items():
    if field.endswith("_rate") and not 0 <= value <= 1:
      raise RunError(f"model.{name}.{field}: must lie in [0, 1], got {value}")


def _check_layers(mlp: Config) -> None:
  widths, rates = mlp.widths, mlp.dropout_rates
  if not all(isinstance(width, int) and width >= 1 for width in widths):
    raise RunError(f"model.MLP.widths: must be integers of at least 1, as in '(256, 256)', got {widths!r}")
  if rates and (len(rates) != len(widths) or mlp.dropout_rate):
    raise RunError(
      f"model.MLP.dropout_rates: must be (), or with dropout_rate=0 a rate for each of the {len(widths)} "
      f"hidden layers, got {rates!r} and {mlp.dropout_rate}"
    )
  if not all(isinstance(rate, int | float) and 0 <= rate <= 1 for rate in rates):
    raise RunError(f"model.MLP.dropout_rates: must be numbers from 0 to 1, as in '(0.2, 0.5)', got {rates!r}")


def _check_optimizer(chosen: Config) -> None:
  for name in optimizer.OPTIMIZERS:
    ours = name in optimizer.OURS  # averages that may be flat
    for field in ("b1", "b2", "decay", "momentum"):
      value = chosen[name].get(field)
      if value is not None and not (0 <= value < 1 or (ours and value == 1)):
        allowed = "from 0 to 1" if ours else "at least 0 and below 1"
        raise RunError(f"optimizer.{name}.{field}: must be {allowed}, got {value}")
  for field, value in flatten(chosen, "optimizer.").items():
    if isinstance(value, float) and not math.isfinite(value):
      raise RunError(f"{field}: must be finite, got {value}")
  step = chosen.schedule.step
  for boundary in step.boundaries:
    if not (isinstance(boundary, int | float) and 0 <= boundary < (1 if step.relative else math.inf)):
      allowed = "fractions of the run, at least 0 and below 1" if step.relative else "numbers of at least 0"
      raise RunError(f"optimizer.schedule.step.boundaries: must be {allowed}, got {boundary!r}")


def _check_factors(factors: tuple[float, ...]) -> None:
  if not factors or not all(isinstance(factor, int | float) and 1 < factor < math.inf for factor in factors):
    raise RunError(
      f"flatness.variance_flatness.factors: must be numbers above 1, as in '(2.0,)', got {factors!r}"
    )
  if len(set(factors)) < len(factors):
    raise RunError(f"flatness.variance_flatness.factors: must be different ones, got {factors!r}")


def _get(config: Config, field: str) -> Any:
  for name in field.split("."):
    config = config[name]
  return config


def _in_range(config: Config, field: str, low: float, *, above: bool = False) -> None:
  value = _get(config, field)
  if not (math.isfinite(value) and (value > low if above else value >= low)):
    raise RunError(f"{field}: must be {'above' if above else 'at least'} {low} and finite, got {value}")

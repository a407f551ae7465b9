"""Checks that need the configuration alone: of single fields here, of several fields in `conflicts`."""

import math
import re
from collections.abc import Mapping
from typing import Any

from jaxreg.train.config.choices import check_choices
from jaxreg.train.config.conflicts import check_conflicts
from jaxreg.train.config.fields import (
  BEST,
  JOBS,
  MEASURES,
  OOD,
  PRECISIONS,
  SPLITS,
  Config,
  base_config,
  flatten,
)
from jaxreg.train.config.ranges import check_ranges
from jaxreg.train.devices.compile import PARALLEL
from jaxreg.train.devices.replicas import FORMS
from jaxreg.train.errors import RunError, shortened, unknown
from jaxreg.train.step import averages, optimizer, predict, schedule

CHOICES = {
  "job": JOBS,
  "parallel": PARALLEL,
  "replicas_by": FORMS,
  "precision": PRECISIONS,
  "model.RNN.weight_noise_per": ("step", "sequence"),
  "model.RNN.weight_noise_kind": ("additive", "multiplicative"),
  "average.name": averages.AVERAGES,
  "optimizer.schedule.name": schedule.SCHEDULES,
  "optimizer.weight_decay.mask": optimizer.MASKS,
  **{f"{group}.mask": optimizer.MASKS for group in ("regularizers", "noise", "optimizer.constraints")},
  "evaluate.checkpoint": ("latest", "best"),
  "evaluate.split": SPLITS,
  "evaluate.combine": predict.COMBINE,
  "pretrained.checkpoint": ("latest", "best"),
  "teacher.checkpoint": ("latest", "best"),
  "checkpoint.best": BEST,
  "compare.choose": BEST,
  "flatness.checkpoint": ("latest", "best"),
  "flatness.profile.granularity": ("layer", "filter"),
}

# Fields in which a name that appears twice counts twice.
WEIGHTED = re.compile(r"augment\.\w+\.operations$")

KINDS = {bool: "True or False", int: "an integer", float: "a number", str: "a text", list: "a tuple"}


def check_types(fields: Mapping[str, Any]) -> None:
  """Checks that the known fields of a flat configuration have values of their defaults' types.

  Raises:
    RunError: with the field, its value and the allowed values.
  """
  for field, default in flatten(base_config()).items():
    # A field whose default is None is a number that may be left out.
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
  """Checks names and numbers, and fields that conflict.

  Raises:
    RunError: with the field, its value and the allowed values.
  """
  check_types(flatten(config))
  for field, allowed in CHOICES.items():
    if _get(config, field) not in allowed:
      raise unknown(field, _get(config, field), allowed)
  check_choices(config)
  for field, allowed in (("ood", OOD), ("measures", MEASURES)):
    for name in config.evaluate[field]:
      if name not in allowed:
        raise unknown(f"evaluate.{field}", name, allowed)
  for field, value in flatten(config).items():
    names = [repr(item) for item in value if not isinstance(item, int | float)] if type(value) is list else []
    if len(set(names)) < len(names) and not WEIGHTED.match(field):
      raise RunError(f"{field}: each must be named once, got {tuple(value)}")
  check_ranges(flatten(config))
  _check_augment(config.augment)
  _check_stream(config.data.stream)
  _check_layers(config.model.MLP)
  _check_optimizer(config.optimizer)
  _check_factors(config.flatness.variance_flatness.factors)
  check_conflicts(config)


def _check_augment(chosen: Config) -> None:
  mean, std = chosen.mean, chosen.std
  numbers = all(isinstance(value, int | float) and math.isfinite(value) for value in (*mean, *std))
  if not numbers or len(mean) != len(std) or not all(value > 0 for value in std):
    raise RunError(
      f"augment.mean, augment.std: must each have a number per channel, std above 0, got {mean} and {std}"
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
  for name in ("sgd", "rmsprop", "lars"):
    if chosen[name].nesterov and not chosen[name].momentum:
      raise RunError(
        f"optimizer.{name}.nesterov: must be False without momentum, got True with "
        f"optimizer.{name}.momentum={chosen[name].momentum}"
      )
  low, high = chosen.rprop.min_step_size, chosen.rprop.max_step_size
  if low > high:
    raise RunError(f"optimizer.rprop.min_step_size: must be at most max_step_size={high}, got {low}")
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

"""Checks that need the configuration alone: of single fields, then of fields that conflict."""

import math
import re
from collections.abc import Mapping
from typing import Any

from jaxreg.train.config.choices import Config, base_config, check_choices, flatten
from jaxreg.train.config.fields import TEXTS, attribute
from jaxreg.train.devices.sharding import parse
from jaxreg.train.errors import RunError, shortened, unknown
from jaxreg.train.step import optimizer

# Fields in which a name that appears twice counts twice.
WEIGHTED = re.compile(r"augment\.\w+\.operations$")

COSINES = ("cosface", "arcface")
KINDS = {
  bool: "True or False",
  int: "an integer",
  float: "a number",
  str: "a text",
  list: "a tuple",
  dict: "a table",
}


def check_types(fields: Mapping[str, Any]) -> None:
  """Checks that the known fields of a flat configuration have values of their defaults' types."""
  for field, default in flatten(base_config()).items():
    # A field whose default is None is a number that may be left out.
    kind = float if default is None else type(default)
    value = fields.get(field, default)
    if not (_is_of(kind, value) or value is default is None):
      raise RunError(f"{field}: must be {KINDS[kind]}, got {shortened(repr(value), 80)}")
    texts = holds_texts(field) and isinstance(value, list | tuple)
    if texts and not all(isinstance(item, str) for item in value):
      raise RunError(f"{field}: must be a tuple of texts, got {shortened(repr(tuple(value)), 80)}")


def holds_texts(field: str) -> bool:
  """Whether a tuple holds texts. Of other tuples the items are numbers, or what their function allows."""
  allowed = attribute(field, "allowed")
  return allowed == TEXTS or isinstance(allowed, tuple)


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
  check_choices(config)
  for field, value in flatten(config).items():
    _check_allowed(field, value)
  _check_augment(config.augment)
  _check_stream(config.data.stream)
  _check_layers(config.model.MLP)
  _check_optimizer(config.optimizer)
  _check_factors(config.flatness.variance_flatness.factors)
  _check_conflicts(config)


def _check_allowed(field: str, value: Any) -> None:
  """Checks the names or the numbers of one field."""
  allowed = attribute(field, "allowed") or "(-inf, inf)"
  values = value if isinstance(value, list) else [value]
  if isinstance(allowed, tuple):
    for name in values:
      if name not in allowed:
        raise unknown(field, name, allowed)
  names = [repr(item) for item in value if not isinstance(item, int | float)] if type(value) is list else []
  if len(set(names)) < len(names) and not WEIGHTED.match(field):
    raise RunError(f"{field}: each must be named once, got {tuple(value)}")
  numbers = [each for each in values if isinstance(each, int | float) and not isinstance(each, bool)]
  if not isinstance(allowed, tuple) and allowed != TEXTS and not all(_lies_in(allowed, n) for n in numbers):
    got = tuple(value) if isinstance(value, list) else value
    raise RunError(f"{field}: must be {_in_words(allowed)}, got {shortened(str(got), 80)}")


def _lies_in(interval: str, value: float) -> bool:
  low, high = map(float, interval[1:-1].split(", "))
  if isinstance(value, int) and value.bit_length() > 1000:  # no float is as large
    return False
  above = value > low if interval[0] == "(" else value >= low
  return math.isfinite(value) and above and (value < high if interval[-1] == ")" else value <= high)


def _in_words(interval: str) -> str:
  low, high = interval[1:-1].split(", ")
  if low == "-inf":
    return "finite"
  most = f"{'below' if interval[-1] == ')' else 'at most'} {high}"
  return f"{'above' if interval[0] == '(' else 'at least'} {low} and {'finite' if high == 'inf' else most}"


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


def _check_conflicts(config: Config) -> None:
  """Checks that no two fields conflict; each single field must be valid already."""
  _check_replicas(config)
  _check_mesh(config)
  _check_model(config)
  _check_teacher(config)
  _check_mixing(config)
  _check_schedule(config.optimizer)
  _check_step(config)
  _check_combine(config.evaluate)
  _check_average(config)


def _check_replicas(config: Config) -> None:
  if config.average.name == "early_stopping" and config.ensemble > 1:
    raise RunError(f"average.name: early_stopping is for single runs; give ensemble=1, got {config.ensemble}")
  if config.job != "compare" and config.replicas % config.ensemble:
    raise RunError(
      f"ensemble: must divide replicas, which are all members, got {config.ensemble} and {config.replicas}"
    )
  if config.parallel == "pmap" and (config.replicas_by == "vmap" or config.steps_per_dispatch > 1):
    raise RunError(
      "parallel: pmap takes one replica and one step a call; give parallel=jit, or replicas_by=loop and "
      f"steps_per_dispatch=1, got {config.replicas_by} and {config.steps_per_dispatch}"
    )
  # Larger seeds repeat the keys of smaller ones in JAX.
  if not 0 <= config.seed <= 2**32 - config.replicas:
    raise RunError(f"seed: must be at least 0, and below 2**32 for every replica, got {config.seed}")


def _check_mesh(config: Config) -> None:
  axes = {axis for rule in config.mesh.shard for axis in parse(rule).axes}
  if config.mesh.model > 1 and "model" not in axes:
    raise RunError(
      f"mesh.model: nothing is split over the model axis; give 1, or name it in mesh.shard, as 'head' does, "
      f"got {config.mesh.model}"
    )
  if axes and (config.parallel == "pmap" or config.replicas_by == "vmap"):
    raise RunError(
      "mesh.shard: a state that is split needs parallel=jit and replicas_by=auto or loop, "
      f"got {config.parallel} and {config.replicas_by}"
    )


def _check_model(config: Config) -> None:
  model = config.model
  if model.unbalance and model.name != "MLP":
    raise RunError(f"model.unbalance: must be 0 with model.name={model.name}, it is for an MLP")
  if model.unbalance and (not model.MLP.widths or config.pretrained.workdir or config.method.name in COSINES):
    raise RunError(
      "model.unbalance: must be 0 without hidden layers, with pretrained.workdir and with "
      f"method.name={' or '.join(COSINES)}, got {model.unbalance}"
    )
  if model.unbalance and not _is_plain(model.MLP):
    raise RunError(
      "model.unbalance: must be 0 except with model.MLP.activation=relu and layer=dense, where the function "
      f"stays the same, got {model.MLP.activation} and {model.MLP.layer}"
    )
  if "kl_sparsity" in config.regularizers.names and not (model.name == "MLP" and _is_sigmoid(model.MLP)):
    raise RunError(
      "regularizers.names: kl_sparsity is for activations between 0 and 1; give model.name=MLP, with hidden "
      "layers, activation=sigmoid and no dropout"
    )


def _check_teacher(config: Config) -> None:
  if bool(config.teacher.workdir) != ("distillation" in config.regularizers.names):
    raise RunError(
      "teacher.workdir: goes together with distillation in regularizers.names, "
      f"got {config.teacher.workdir!r} and {tuple(config.regularizers.names)}"
    )


def _check_mixing(config: Config) -> None:
  if "manifold_mixup" in config.augment.names and config.teacher.workdir:
    raise RunError(
      "augment.names: manifold_mixup mixes features of the network alone; leave it out with teacher.workdir"
    )


def _check_schedule(chosen: Config) -> None:
  if chosen.schedule.name == "noam" and chosen.schedule.warmup_epochs:
    raise RunError(
      "optimizer.schedule.warmup_epochs: noam warms up over optimizer.schedule.noam.warmup_steps; give 0, "
      f"got {chosen.schedule.warmup_epochs}"
    )


def _check_step(config: Config) -> None:
  chosen = config.optimizer
  name = optimizer.step_name(chosen)
  if name in optimizer.NUMBERS and (chosen.schedule.name != "constant" or chosen.schedule.warmup_epochs):
    raise RunError(
      f"optimizer.schedule: {name} takes one number and finds its own rates; give name=constant and "
      f"warmup_epochs=0, got {chosen.schedule.name} and {chosen.schedule.warmup_epochs}"
    )
  if name == "lbfgs" and (chosen.weight_decay.rate or chosen.clip_norm or chosen.constraints.names):
    raise RunError(
      "optimizer.name: lbfgs searches along the loss itself, which weight_decay, clip_norm and constraints "
      "would change; leave them at 0, or give regularizers.names=('l2',)"
    )
  if name == "fista" and (
    chosen.weight_decay.rate or chosen.clip_norm or config.noise.names or config.augment.names
  ):
    raise RunError(
      "optimizer.name: fista searches along a loss without noise, which weight_decay, clip_norm, noise.names "
      "and augment.names would change; leave them out, or give regularizers.names=('l2',)"
    )
  coupled = chosen.weight_decay.rate and not chosen.weight_decay.decoupled
  changes = chosen.name in (*optimizer.SHARPNESS_AWARE, "gradient_noise")
  if name == "polyak_sgd" and (chosen.clip_norm or coupled or changes):
    raise RunError(
      "optimizer.name: polyak_sgd compares the loss with its own gradient, which clip_norm, coupled "
      "weight_decay, sam, asam, gsam and gradient_noise would change; leave them out, or give "
      "regularizers.names=('l2',)"
    )
  of_paths = config.model.name != "RNN" and (config.model.name != "MLP" or _is_plain(config.model.MLP))
  if name == "path_sgd" and not of_paths:
    raise RunError(
      "optimizer.name: path_sgd is for networks of ReLU and plain layers, without recurrence, not "
      f"model.name={config.model.name} as it is set"
    )
  if chosen.name == "gradient_noise" and name in ("noisy_sgd", "sgld"):
    raise RunError(f"optimizer.gradient_noise.inner: {name} draws the same noise itself; give another")
  searches = name in ("lbfgs", "fista")
  if searches and (config.parallel == "pmap" or config.accumulate > 1 or chosen.name != name):
    raise RunError(
      f"optimizer.name: {name} evaluates whole batches and fits no wrapper; give parallel=jit, accumulate=1 "
      f"and optimizer.name={name}, got {config.parallel}, {config.accumulate} and {chosen.name}"
    )


def _check_combine(chosen: Config) -> None:
  if chosen.combine != "arithmetic" and bool(chosen.mc_samples) != (chosen.combine == "geometric"):
    raise RunError(
      "evaluate.combine: geometric needs evaluate.mc_samples above 0, and weight_scaling needs 0, "
      f"got {chosen.combine} and {chosen.mc_samples}"
    )
  if chosen.mirror and "laplace" in chosen.measures:
    raise RunError(
      "evaluate.mirror: must be False with the measure laplace, which needs a linear layer, got True"
    )


def _check_average(config: Config) -> None:
  if config.average.name == "swag" and config.evaluate.mc_samples:
    raise RunError(
      "evaluate.mc_samples: swag draws parameters, and its predictions have no other noise; give 0, or "
      f"another average.name, got {config.evaluate.mc_samples}"
    )


def _is_sigmoid(mlp: Config) -> bool:
  """Whether the features lie between 0 and 1, and so do their means over examples."""
  return bool(mlp.widths) and mlp.activation == "sigmoid" and not (mlp.dropout_rate or any(mlp.dropout_rates))


def _is_plain(mlp: Config) -> bool:
  """Whether a unit's scale can move between the layers before and after it without changing the function."""
  return mlp.activation == "relu" and mlp.layer == "dense"

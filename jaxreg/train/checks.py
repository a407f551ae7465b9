"""The checks of a configuration that need nothing but it."""

import math
from typing import Any

from jaxreg.train import averages, optimizer, schedule, sources, toolbox
from jaxreg.train.config import AUGMENTATIONS, BACKBONES, BEST, JOBS, PRECISIONS, SPLITS, Config, flatten
from jaxreg.train.errors import RunError, unknown
from jaxreg.train.methods import METHODS
from jaxreg.train.parallel import PARALLEL
from jaxreg.train.replicas import FORMS
from jaxreg.train.sharding import parse

COSINES = ("cosface", "arcface")


def check(config: Config) -> None:
  """Checks names and numbers.

  Raises:
    RunError: naming the field, what it holds and what is allowed.
  """
  _one_of(config, "job", JOBS)
  _one_of(config, "parallel", PARALLEL)
  _one_of(config, "replicas_by", FORMS)
  _one_of(config, "precision", PRECISIONS)
  _one_of(config, "data.name", sources.SOURCES)
  _one_of(config, "model.name", BACKBONES)
  _one_of(config, "method.name", tuple(METHODS))
  for name in config.augment.names:
    if name not in AUGMENTATIONS:
      raise unknown("augment.names", name, AUGMENTATIONS)
  for group, known in toolbox.CHOSEN.items():
    for name in _get(config, f"{group}.names"):
      if name not in tuple(known):
        raise unknown(f"{group}.names", name, tuple(known))
    _one_of(config, f"{group}.mask", optimizer.MASKS)
  for name in config.regularizers.names:
    _in_range(config, f"regularizers.{name}.weight", 0)
    if name in toolbox.REGULARIZERS:
      _in_range(config, f"regularizers.{name}.limit", 0)
  _in_range(config, "regularizers.dual_learning_rate", 0, above=True)
  _one_of(config, "average.name", averages.AVERAGES)
  if config.average.name == "early_stopping" and config.ensemble > 1:
    raise RunError(f"average.name: early_stopping is of single runs; give ensemble=1, got {config.ensemble}")
  mean, std = config.augment.mean, config.augment.std
  numbers = all(isinstance(value, int | float) and math.isfinite(value) for value in (*mean, *std))
  if not numbers or len(mean) != len(std) or not all(value > 0 for value in std):
    raise RunError(
      f"augment.mean, augment.std: must be a number per channel each, std above 0, got {mean} and {std}"
    )
  _one_of(config, "optimizer.name", tuple(optimizer.OPTIMIZERS))
  for name in optimizer.WRAPPERS:
    _one_of(config, f"optimizer.{name}.inner", tuple(optimizer.STEPS))
  _one_of(config, "optimizer.schedule.name", schedule.SCHEDULES)
  _check_optimizer(config)
  _one_of(config, "optimizer.weight_decay.mask", optimizer.MASKS)
  _one_of(config, "evaluate.checkpoint", ("latest", "best"))
  _one_of(config, "evaluate.split", SPLITS)
  _one_of(config, "pretrained.checkpoint", ("latest", "best"))
  _one_of(config, "checkpoint.best", BEST)
  _one_of(config, "compare.choose", BEST)
  for field in (
    "batch_size",
    "epochs",
    "eval_every",
    "eval_batch_size",
    "log_every",
    "checkpoint.every",
    "replicas",
    "ensemble",
    "accumulate",
    "compare.seeds",
    "optimizer.schedule.noam.d_model",
    "optimizer.schedule.noam.warmup_steps",
    "translate.beam_size",
    "data.stream.size",
  ):
    _in_range(config, field, 1)
  if config.job != "compare" and config.replicas % config.ensemble:
    raise RunError(
      f"ensemble: must divide replicas, which are all members, got {config.ensemble} and {config.replicas}"
    )
  # One could be lost while the next is being written.
  _in_range(config, "checkpoint.keep", 2)
  for field in (
    "steps",
    "data.limit",
    "data.resident_gib",
    "data.subset.per_class",
    "data.subset.seed",
    "data.flipped_labels.seed",
    "data.unlabelled.batch_size",
    "data.stream.workers",
    "steps_per_dispatch",
    "translate.length_penalty",
    "evaluate.mc_samples",
    "model.unbalance",
  ):
    _in_range(config, field, 0)
  _check_stream(config.data.stream)
  if config.parallel == "pmap" and (config.replicas_by == "vmap" or config.steps_per_dispatch > 1):
    raise RunError(
      "parallel: pmap takes one replica and one step a call; give parallel=jit, or replicas_by=loop and "
      f"steps_per_dispatch=1, got {config.replicas_by} and {config.steps_per_dispatch}"
    )
  _in_range(config, "mesh.model", 1)
  _in_range(config, "mesh.min_size", 0)
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
  # JAX's keys of larger seeds repeat.
  if not 0 <= config.seed <= 2**32 - config.replicas:
    raise RunError(f"seed: must be at least 0 and, of every replica, below 2**32, got {config.seed}")
  widths = config.model.MLP.widths
  if not all(isinstance(width, int) and width >= 1 for width in widths):
    raise RunError(f"model.MLP.widths: must be integers of at least 1, as in '(256, 256)', got {widths!r}")
  if config.model.unbalance and config.model.name != "MLP":
    raise RunError(f"model.unbalance: must be 0 with model.name={config.model.name}, it is for an MLP")
  if config.model.unbalance and (not widths or config.pretrained.workdir or config.method.name in COSINES):
    raise RunError(
      "model.unbalance: must be 0 without hidden layers, with pretrained.workdir and with "
      f"method.name={' or '.join(COSINES)}, got {config.model.unbalance}"
    )
  if config.model.unbalance and not _is_plain(config.model.MLP):
    raise RunError(
      "model.unbalance: must be 0 but for model.MLP.activation=relu and layer=dense, of which the function "
      f"stays the same, got {config.model.MLP.activation} and {config.model.MLP.layer}"
    )
  if "kl_sparsity" in config.regularizers.names and (
    config.model.name != "MLP" or config.model.MLP.activation != "sigmoid"
  ):
    raise RunError(
      "regularizers.names: kl_sparsity is for activations between 0 and 1; give model.name=MLP and "
      f"model.MLP.activation=sigmoid, got {config.model.name} and {config.model.MLP.activation}"
    )
  rates = config.model.MLP.dropout_rates
  if rates and (len(rates) != len(widths) or config.model.MLP.dropout_rate):
    raise RunError(
      f"model.MLP.dropout_rates: must be (), or with dropout_rate=0 a rate for each of the {len(widths)} "
      f"hidden layers, got {rates!r} and {config.model.MLP.dropout_rate}"
    )
  if not all(isinstance(rate, int | float) and 0 <= rate <= 1 for rate in rates):
    raise RunError(f"model.MLP.dropout_rates: must be numbers from 0 to 1, as in '(0.2, 0.5)', got {rates!r}")
  _in_range(config, "optimizer.learning_rate", 0, above=True)
  for field in ("optimizer.clip_norm", "optimizer.weight_decay.rate", "optimizer.schedule.warmup_epochs"):
    _in_range(config, field, 0)
  for name in set(optimizer.OPTIMIZERS) - set(optimizer.OURS):  # ours check their own, some of which may be 1
    for field in ("b1", "b2", "decay", "momentum"):
      value = config.optimizer[name].get(field)
      if value is not None and not 0 <= value < 1:
        raise RunError(f"optimizer.{name}.{field}: must be at least 0 and below 1, got {value}")
  _in_range(config, "optimizer.adagrad.initial_accumulator_value", 0)
  for field, value in flatten(config.optimizer, "optimizer.").items():
    if isinstance(value, float) and not math.isfinite(value):
      raise RunError(f"{field}: must be finite, got {value}")
  if config.optimizer.schedule.name == "noam" and config.optimizer.schedule.warmup_epochs:
    raise RunError(
      "optimizer.schedule.warmup_epochs: noam warms up over optimizer.schedule.noam.warmup_steps; give 0, "
      f"got {config.optimizer.schedule.warmup_epochs}"
    )
  step = config.optimizer.schedule.step
  for boundary in step.boundaries:
    if not (isinstance(boundary, int | float) and 0 <= boundary < (1 if step.relative else math.inf)):
      allowed = "fractions of the run, at least 0 and below 1" if step.relative else "numbers of at least 0"
      raise RunError(f"optimizer.schedule.step.boundaries: must be {allowed}, got {boundary!r}")
  _check_flatness(config)


def _check_flatness(config: Config) -> None:
  _one_of(config, "flatness.checkpoint", ("latest", "best"))
  _one_of(config, "flatness.profile.granularity", ("layer", "filter"))
  for field, low in {
    "replica": 0,
    "examples": 0,
    "seed": 0,
    "profile.directions": 1,
    "profile.points": 3,
    "variance_flatness.samples": 2,
    "variance_flatness.directions": 0,
    "variance_flatness.tolerance": 0,
    "projected_variance.samples": 2,
    "projected_variance.eigenpairs": 0,
    "projected_variance.tolerance": 0,
    "alignment.num_masks": 1,
  }.items():
    _in_range(config, f"flatness.{field}", low)
  _in_range(config, "flatness.profile.reach", 0, above=True)
  factors = config.flatness.variance_flatness.factors
  if not factors or not all(isinstance(factor, int | float) and 1 < factor < math.inf for factor in factors):
    raise RunError(
      f"flatness.variance_flatness.factors: must be numbers above 1, as in '(2.0,)', got {factors!r}"
    )


def _check_optimizer(config: Config) -> None:
  """What some optimizers cannot be together with."""
  chosen = config.optimizer
  name = chosen[chosen.name].get("inner", chosen.name)
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
  coupled = chosen.weight_decay.rate and not chosen.weight_decay.decoupled
  if name == "polyak_sgd" and (chosen.clip_norm or coupled):
    raise RunError(
      "optimizer.name: polyak_sgd compares the loss with its own gradient, which clip_norm and coupled "
      "weight_decay would change; leave them at 0, or give regularizers.names=('l2',)"
    )
  of_paths = config.model.name != "RNN" and (config.model.name != "MLP" or _is_plain(config.model.MLP))
  if name == "path_sgd" and not of_paths:
    raise RunError(
      "optimizer.name: path_sgd is for networks of ReLU and plain layers, without recurrence, not "
      f"model.name={config.model.name} as it is set"
    )
  if chosen.name == "gradient_noise" and name in ("noisy_sgd", "sgld"):
    raise RunError(f"optimizer.gradient_noise.inner: {name} draws the same noise itself; give another")
  if name == "lbfgs" and (config.parallel == "pmap" or config.accumulate > 1 or chosen.name != name):
    raise RunError(
      "optimizer.name: lbfgs evaluates whole batches, by itself; give parallel=jit, accumulate=1 and "
      f"optimizer.name=lbfgs, got {config.parallel}, {config.accumulate} and {chosen.name}"
    )


def _is_plain(mlp: Config) -> bool:
  """Whether factors of a unit can move between the layers before and after it."""
  return mlp.activation == "relu" and mlp.layer == "dense"


def _check_stream(stream: Config) -> None:
  if stream.resize < stream.size:
    raise RunError(f"data.stream.resize: must be at least size={stream.size}, got {stream.resize}")
  for field, most in (("area", 1), ("aspect", math.inf)):
    bounds = stream[field]
    numbers = len(bounds) == 2 and all(isinstance(value, int | float) for value in bounds)
    if not (numbers and 0 < bounds[0] <= bounds[1] <= most and bounds[1] < math.inf):
      allowed = "two numbers in order, above 0" + (f" and at most {most}" if most == 1 else "")
      raise RunError(f"data.stream.{field}: must be {allowed}, got {bounds!r}")


def _get(config: Config, field: str) -> Any:
  for name in field.split("."):
    config = config[name]
  return config


def _one_of(config: Config, field: str, allowed: tuple[str, ...]) -> None:
  if _get(config, field) not in allowed:
    raise unknown(field, _get(config, field), allowed)


def _in_range(config: Config, field: str, low: float, *, above: bool = False) -> None:
  value = _get(config, field)
  if not (math.isfinite(value) and (value > low if above else value >= low)):
    raise RunError(f"{field}: must be {'above' if above else 'at least'} {low} and finite, got {value}")

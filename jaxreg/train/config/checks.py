"""The check of a configuration: of each field alone, then of fields that conflict with each other."""

import itertools
from collections.abc import Iterator

from jaxreg.train.config.choices import check_choices, flatten
from jaxreg.train.config.fields import Config, Model
from jaxreg.train.config.values import check_types, check_value, kind_of
from jaxreg.train.devices.sharding import parse
from jaxreg.train.errors import RunError
from jaxreg.train.step import optimizer

COSINES = ("cosface", "arcface")


def check(config: Config) -> None:
  """Checks names and numbers, and fields that conflict.

  Raises:
    RunError: with the field, its value and the allowed values.
  """
  flat = flatten(config)
  check_types(flat)
  check_choices(config)
  for field, value in flat.items():
    check_value(field, value, kind_of(field, flat))
  for message in itertools.chain(_conflicts(config), _optimizer_conflicts(config)):
    raise RunError(message)


def _conflicts(config: Config) -> Iterator[str]:
  """Yields a message for each conflict between fields that are valid alone."""
  augment, stream, model, mlp = config.augment, config.data.stream, config.model, config.model.MLP
  evaluate, mesh, pretrained = config.evaluate, config.mesh, config.pretrained
  if len(augment.mean) != len(augment.std):
    yield f"augment.mean, augment.std: must have a number per channel, got {augment.mean} and {augment.std}"
  if stream.sides and not (len(stream.sides) == 2 and stream.size <= stream.sides[0] <= stream.sides[1]):
    yield f"data.stream.sides: must be () or two in order, at least size={stream.size}, got {stream.sides}"

  if config.average.name == "early_stopping" and config.ensemble > 1:
    yield f"average.name: early_stopping is for single runs; give ensemble=1, got {config.ensemble}"
  if config.job != "compare" and config.replicas % config.ensemble:
    yield f"ensemble: must divide replicas={config.replicas}, got {config.ensemble}"
  if config.parallel == "pmap" and config.steps_per_dispatch > 1:
    got = config.steps_per_dispatch
    yield f"steps_per_dispatch: must be 0 or 1 with parallel=pmap, got {got}"
  # Larger seeds repeat the keys of smaller ones in JAX.
  if not 0 <= config.seed <= 2**32 - config.replicas:
    yield f"seed: must be at least 0, and below 2**32 for every replica, got {config.seed}"
  axes = {axis for rule in mesh.shard for axis in parse(rule).axes}
  if mesh.model > 1 and "model" not in axes:
    got = mesh.model
    yield f"mesh.model: nothing is split over the model axis; give 1, or name it in mesh.shard, got {got}"
  if axes and config.parallel == "pmap":
    yield f"mesh.shard: must be empty with parallel=pmap, got {mesh.shard}"
  if mesh.slices > 1 and config.parallel == "pmap":
    yield f"mesh.slices: must be 1 with parallel=pmap, got {mesh.slices}"
  if mesh.axes == "explicit" and (config.parallel == "pmap" or config.accumulate > 1):
    got = f"{config.parallel} and {config.accumulate}"
    yield f"mesh.axes: explicit needs parallel=jit and accumulate=1, got {got}"
  if pretrained.workdir and pretrained.file:
    yield f"pretrained.file: must be empty with pretrained.workdir, got {pretrained.file!r}"
  if model.unbalance and model.name != "MLP":
    yield f"model.unbalance: must be 0 with model.name={model.name}, it is for an MLP"
  if model.unbalance and not (mlp.widths and _is_plain(model)):
    yield (
      "model.unbalance: must be 0 except with hidden layers, activation=relu and layer=dense, where the "
      f"function stays the same, got {mlp.widths}, {mlp.activation} and {mlp.layer}"
    )
  if model.unbalance and (pretrained.workdir or config.method.name in COSINES):
    yield f"model.unbalance: must be 0 with pretrained.workdir, cosface and arcface, got {model.unbalance}"
  if "kl_sparsity" in config.regularizers.names and not (model.name == "MLP" and _is_sigmoid(model)):
    yield (
      "regularizers.names: kl_sparsity is for activations between 0 and 1; give model.name=MLP, with hidden "
      "layers, activation=sigmoid and no dropout"
    )
  if bool(config.teacher.workdir) != ("distillation" in config.regularizers.names):
    yield (
      "teacher.workdir: goes together with distillation in regularizers.names, "
      f"got {config.teacher.workdir!r} and {tuple(config.regularizers.names)}"
    )
  if "manifold_mixup" in augment.names and config.teacher.workdir:
    yield "augment.names: manifold_mixup mixes features of one network; leave it out with teacher.workdir"
  if "manifold_mixup" in augment.names and config.method.chunk_size:
    yield f"method.chunk_size: must be 0 with manifold_mixup in augment.names, got {config.method.chunk_size}"
  if evaluate.combine != "arithmetic" and bool(evaluate.mc_samples) != (evaluate.combine == "geometric"):
    yield (
      "evaluate.combine: geometric needs evaluate.mc_samples above 0, and weight_scaling needs 0, "
      f"got {evaluate.combine} and {evaluate.mc_samples}"
    )
  if evaluate.mirror and "laplace" in evaluate.measures:
    yield "evaluate.mirror: must be False with the measure laplace, which needs a linear layer, got True"
  if config.average.name == "swag" and evaluate.mc_samples:
    got = evaluate.mc_samples
    yield f"evaluate.mc_samples: swag draws parameters, and has no other noise; give 0, got {got}"


def _optimizer_conflicts(config: Config) -> Iterator[str]:
  """Yields a message for each conflict between the optimizer and other fields."""
  chosen, model = config.optimizer, config.model
  name, decay, schedule = optimizer.step_name(chosen), chosen.weight_decay.rate, chosen.schedule
  if schedule.step.relative and max(schedule.step.boundaries, default=0) >= 1:
    got = schedule.step.boundaries
    yield f"optimizer.schedule.step.boundaries: must be fractions of the run, in [0, 1), got {got}"
  if schedule.name == "noam" and schedule.warmup_epochs:
    got = schedule.warmup_epochs
    yield f"optimizer.schedule.warmup_epochs: noam warms up over its own warmup_steps; give 0, got {got}"
  if name in optimizer.NUMBERS and (schedule.name != "constant" or schedule.warmup_epochs):
    yield (
      f"optimizer.schedule: {name} takes one number and finds its own rates; give name=constant and "
      f"warmup_epochs=0, got {schedule.name} and {schedule.warmup_epochs}"
    )
  if name == "lbfgs" and (decay or chosen.clip_norm or chosen.constraints.names):
    yield (
      "optimizer.name: lbfgs searches along the loss itself, which weight_decay, clip_norm and constraints "
      "would change; leave them at 0, or give regularizers.names=('l2',)"
    )
  if name == "fista" and (decay or chosen.clip_norm or config.noise.names or config.augment.names):
    yield (
      "optimizer.name: fista searches along a loss without noise, which weight_decay, clip_norm, noise.names "
      "and augment.names would change; leave them out, or give regularizers.names=('l2',)"
    )
  kind = chosen.weight_decay.kind if decay else "none"
  coupled = kind == "coupled"
  least, rate = 1e-4 if name == "momo_adam" else 0.01, chosen.learning_rate
  if name in optimizer.LEARNING_RATE_FREE and rate < least:
    yield (
      f"optimizer.learning_rate: {name} finds its own rate, and takes this one as a factor or a limit, "
      f"usually {100 * least:g}; give at least {least:g}, got {rate:g}"
    )
  if name in optimizer.LEARNING_RATE_FREE and kind in ("decoupled", "cautious", "corrected"):
    yield (
      f"optimizer.weight_decay.kind: {name} finds its own learning rate, which {kind} decay does not follow; "
      "give coupled, independent or fixed_norm"
    )
  if kind == "fixed_norm" and (chosen.constraints.names or chosen.name in ("layer_decay", "schedule_free")):
    yield (
      "optimizer.weight_decay.kind: fixed_norm holds norms and the length of steps, which constraints, "
      "layer_decay and schedule_free would change; leave them out, or give another kind"
    )
  if chosen.name == "schedule_free" and (chosen.constraints.names or config.average.name != "none"):
    yield (
      "optimizer.name: schedule_free averages itself, and constraints would move the average; give "
      f"average.name=none and no optimizer.constraints.names, got {config.average.name} and "
      f"{tuple(chosen.constraints.names)}"
    )
  changes = chosen.name in (*optimizer.SHARPNESS_AWARE, "gradient_noise")
  if name in ("polyak_sgd", "momo", "momo_adam") and (chosen.clip_norm or coupled or changes):
    yield (
      f"optimizer.name: {name} compares the loss with its own gradient, which clip_norm, coupled "
      "weight_decay, sam, asam, gsam and gradient_noise would change; leave them out, or give "
      "regularizers.names=('l2',)"
    )
  of_paths = model.name != "RNN" and (model.name != "MLP" or _is_plain(model))
  if name == "path_sgd" and not of_paths:
    yield f"optimizer.name: path_sgd is for networks of ReLU and plain layers, not this {model.name}"
  if chosen.name == "gradient_noise" and name in ("noisy_sgd", "sgld"):
    yield f"optimizer.gradient_noise.inner: {name} draws the same noise itself; give another"
  whole = config.parallel != "pmap" and config.accumulate == 1 and chosen.name == name
  if name in ("lbfgs", "fista", "sophia") and not whole:
    yield (
      f"optimizer.name: {name} evaluates whole batches and fits no wrapper; give parallel=jit, accumulate=1 "
      f"and optimizer.name={name}, got {config.parallel}, {config.accumulate} and {chosen.name}"
    )


def _is_sigmoid(model: Model) -> bool:
  """Tells whether the features lie between 0 and 1, and so do their means over examples."""
  mlp = model.MLP
  return bool(mlp.widths) and mlp.activation == "sigmoid" and not (mlp.dropout_rate or any(mlp.dropout_rates))


def _is_plain(model: Model) -> bool:
  """Tells whether scale can move from a unit's inputs to its outputs without changing the function."""
  return model.MLP.activation == "relu" and model.MLP.layer == "dense"

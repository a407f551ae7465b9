"""Checks that the fields of a configuration fit each other, whatever the data."""

from jaxreg.train.config.fields import Config
from jaxreg.train.devices.sharding import parse
from jaxreg.train.errors import RunError
from jaxreg.train.step import optimizer

COSINES = ("cosface", "arcface")


def check_conflicts(config: Config) -> None:
  """Checks that no two fields conflict; each single field must be valid already.

  Raises:
    RunError: with the field, its value and the allowed values.
  """
  _check_replicas(config)
  _check_mesh(config)
  _check_model(config)
  _check_teacher(config)
  _check_mixing(config)
  _check_schedule(config.optimizer)
  _check_optimizer(config)
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


def _check_optimizer(config: Config) -> None:
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

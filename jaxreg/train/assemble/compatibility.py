"""Checks of a configuration that need the data, the devices or the network."""

# pyright: reportUnknownMemberType=false

from collections.abc import Iterator, Mapping

import jax

from jaxreg import models
from jaxreg.train.config.choices import Config, chosen, chosen_all
from jaxreg.train.config.fields import MOST_STEPS
from jaxreg.train.data.dataset import DataSpec
from jaxreg.train.devices.sharding import make_mesh, num_parts
from jaxreg.train.errors import RunError
from jaxreg.train.methods.dropmax import AttentionHead
from jaxreg.train.methods.method import NUMBERS, Method
from jaxreg.train.registry import REGISTRY
from jaxreg.train.step.optimizer import step_name


def check_devices(config: Config, mesh: jax.sharding.Mesh | None = None) -> None:
  """Checks that a batch can be divided among the devices of the mesh, by default of all devices here."""
  for message in _device_conflicts(config, mesh or make_mesh(config.mesh.model, slices=config.mesh.slices)):
    raise RunError(message)


def _device_conflicts(config: Config, mesh: jax.sharding.Mesh) -> Iterator[str]:
  if config.parallel == "pmap" and jax.process_count() > 1:
    yield f"parallel: pmap runs in one process, here are {jax.process_count()}; give parallel=jit"
  devices = num_parts(mesh)
  which = "the number of devices" + (" on the data axis" if config.mesh.model > 1 else "")
  unlabelled = config.data.unlabelled.batch_size
  if unlabelled and (config.parallel == "pmap" or config.accumulate > 1):
    yield (
      "data.unlabelled.batch_size: a part of a batch could lack labelled or unlabelled examples; give "
      f"parallel=jit and accumulate=1, got {config.parallel} and {config.accumulate}"
    )
  if unlabelled and (config.batch_size + unlabelled) % devices:
    yield (
      f"batch_size: its sum with data.unlabelled.batch_size must be divisible by {which}, {devices}, "
      f"got {config.batch_size} + {unlabelled}"
    )
  if not unlabelled and config.batch_size % (devices * config.accumulate):
    parts = f" times accumulate, {devices} * {config.accumulate}" if config.accumulate > 1 else f", {devices}"
    yield f"batch_size: must be divisible by {which}{parts}, got {config.batch_size}"


def length(config: Config, sizes: Mapping[str, int]) -> dict[str, int]:
  """Computes the `steps_per_epoch` and `num_steps` of a run on splits of these sizes."""
  for message in _size_conflicts(config, sizes):
    raise RunError(message)
  steps_per_epoch = sizes["train"] // config.batch_size
  num_steps = config.steps or config.epochs * steps_per_epoch
  if num_steps > float(MOST_STEPS):
    raise RunError(f"epochs: must give at most {MOST_STEPS} steps, got {config.epochs} of {steps_per_epoch}")
  return {"steps_per_epoch": steps_per_epoch, "num_steps": num_steps}


def _size_conflicts(config: Config, sizes: Mapping[str, int]) -> Iterator[str]:
  size, number = config.batch_size, sizes["train"]
  if size > number:
    yield f"batch_size: must be at most the number of training examples, {number}, got {size}"
  if step_name(config.optimizer) == "fista" and size != number:
    yield (
      "batch_size: must be the number of training examples with optimizer.name=fista, whose steps need one "
      f"loss, {number}, got {size}"
    )
  unlabelled, rest = config.data.unlabelled.batch_size, sizes.get("unlabelled", 0)
  if unlabelled > rest:
    yield (
      f"data.unlabelled.batch_size: must be at most {rest}, the number of training examples that "
      f"data.{config.data.name} and data.subset leave over, got {unlabelled}"
    )


def check_data(config: Config, data: DataSpec) -> None:
  """Checks that what the configuration names fits the inputs and the labels of the data."""
  for conflicts in (_input_conflicts, _label_conflicts, _term_conflicts):
    for message in conflicts(config, data):
      raise RunError(message)


def _input_conflicts(config: Config, data: DataSpec) -> Iterator[str]:
  inputs, augment = f"the inputs of data.{config.data.name}", config.augment
  if data.has_tokens and (augment.names or len(augment.mean)):
    yield f"augment: is for images, and {inputs} are tokens; leave it empty"
  if data.has_tokens and "gaussian_noise" in config.noise.names:
    yield f"noise.names: gaussian_noise cannot be added to tokens, {inputs}"
  if config.evaluate.mirror and (data.has_tokens or len(data.input_shape) != 3):
    yield (
      f"evaluate.mirror: is for images, and an input of data.{config.data.name} has shape "
      f"{data.input_shape}; give False"
    )
  if (data.mean or data.input_mean) and augment.mean:
    yield f"augment.mean: {inputs} are standardised already; leave it empty, got {augment.mean}"
  channels = data.input_shape[-1] if data.input_shape else 0
  if len(augment.mean) not in (0, channels):
    yield f"augment.mean, augment.std: must be {channels} numbers, one per channel, got {augment.mean}"


def _label_conflicts(config: Config, data: DataSpec) -> Iterator[str]:
  """Yields what fits no labels of the data: the method, the metrics that choose, and terms of classes."""
  method_name, predicts = config.method.name, chosen(config, "method").entry.function.predicts
  if data.has_numbers:
    fits = predicts in NUMBERS
  elif data.has_tokens or not data.label_shape:
    yes_or_no = predicts == "yes or no" and data.num_classes == 2 and not data.has_tokens
    fits = predicts == "classes" or yes_or_no
  else:
    fits = predicts == "yes or no"
  if not fits:
    kinds = NUMBERS if data.has_numbers else ("yes or no",) if data.label_shape else ("classes",)
    names = [name for name, row in REGISTRY["method"].items() if row.function.predicts in kinds]
    hint = "; classes are integers" if data.has_numbers else ""
    yield (
      f"method.name: the labels of the data are {data.labels_in_words}, which need one of "
      f"{', '.join(names)}, got {method_name}{hint}"
    )
  metrics = ["val/error", "val/nll", "val/nll_refined", "val/brier", "val/ece"]
  if data.has_numbers:
    metrics = ["val/rmse", "val/mae", *(["val/nlpd"] if predicts == "moments" else [])]
  best = config.checkpoint.best
  if best not in ("auto", *metrics):
    labels = "numbers" if data.has_numbers else "classes"
    yield f"checkpoint.best: must be auto or {', '.join(metrics)} where labels are {labels}, got {best}"
  chunk_size = config.method.chunk_size
  if chunk_size and predicts != "classes":
    name, got = method_name, chunk_size
    yield f"method.chunk_size: must be 0 with method.name={name}, which has no classes, got {got}"
  if data.has_numbers:
    asked = {
      "regularizers.names": [x.name for x in chosen_all(config, "regularizers") if x.needs("classes")],
      "noise.names": [x.name for x in chosen_all(config, "noise") if x.kind == "label_noise"],
      "evaluate.combine": ["geometric"] if config.evaluate.combine == "geometric" else [],
    }
    for name, values in asked.items():
      if values:
        yield f"{name}: {', '.join(values)} needs classes, and the labels of the data are numbers"


def _term_conflicts(config: Config, data: DataSpec) -> Iterator[str]:
  terms = {each.name: each for each in chosen_all(config, "regularizers") if each.kind == "term"}
  named = f"{', '.join(terms)} in regularizers.names"
  if config.data.unlabelled.batch_size and all(term.needs("labels") for term in terms.values()):
    rows = REGISTRY["regularizers"].items()
    without = ", ".join(name for name, row in rows if row.kind == "term" and "labels" not in row.needs)
    yield (
      "data.unlabelled.batch_size: no term uses examples without labels; name one of "
      f"{without} in regularizers.names, or give 0"
    )
  if "mean_teacher" in terms and config.average.name != "ema":
    yield "regularizers.mean_teacher: needs average.name=ema, whose parameters are the teacher's"
  if config.method.chunk_size and terms:
    got = config.method.chunk_size
    yield f"method.chunk_size: must be 0 with {named}, which need all logits, got {got}"
  if terms and (data.has_tokens or data.label_shape):
    yield (
      f"regularizers.names: {', '.join(terms)} cannot be used with tokens, or with several labels an example"
    )


def check_state(config: Config, data: DataSpec, method: Method, *, has_statistics: bool) -> None:
  """Checks that the average and the optimizer fit the network and its head.

  `swa`, `swag`, `power_ema`, `schedule_free` and `path_sgd` need a network without statistics (such as
  BatchNorm's) in its state. `ema` averages the statistics as well: they are moving averages themselves.
  """
  if has_statistics and config.average.name in ("swa", "swag", "power_ema"):
    raise RunError(
      "average.name: the network's statistics, such as BatchNorm's, do not fit averaged parameters; give "
      f"none, ema or early_stopping, or average afterwards with jaxreg.averaging, got {config.average.name}"
    )
  if has_statistics and config.optimizer.name == "schedule_free":
    raise RunError(
      "optimizer.name: schedule_free evaluates an average of the parameters, which the network's statistics, "
      "as of BatchNorm, do not fit; give another optimizer, or a network with other normalisation"
    )
  if step_name(config.optimizer) != "path_sgd":
    return
  if has_statistics or data.has_tokens:
    raise RunError("optimizer.name: path_sgd is for networks of images or vectors without normalisation")
  if method.head not in (models.SoftmaxHead, AttentionHead):
    raise RunError(
      f"optimizer.name: path_sgd needs a head that gives logits by affine layers alone, and the head of "
      f"method.name={config.method.name} does not"
    )

"""The meaning and the allowed values of each field of the configuration: the text of `--help`.

If a field is a parameter of a function, that function's docstring describes it. `DESCRIPTIONS` describes the
other fields; `*` in it stands for any name.
"""

import fnmatch
import functools
import inspect
import re
import textwrap
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jaxreg import adversarial, averaging, losses, models, penalties
from jaxreg.train.config import fields as config
from jaxreg.train.config.choices import BY_NAME, FIELDS, named_in
from jaxreg.train.config.fields import Config, flatten, relevant
from jaxreg.train.config.rows import parse_fields, parse_rows
from jaxreg.train.data.images import Decoding
from jaxreg.train.lookup import is_yours, short
from jaxreg.train.step import averages, schedule
from jaxreg.train.step.methods import GROUPINGS

WIDTH = 80

DESCRIPTIONS = {
  "job": "What to do.",
  "seed": "Determines the initial weights, the order of the data and all noise.",
  "batch_size": "Labelled examples in a batch, on all devices together.",
  "epochs": "Length of the run in passes over the training examples.",
  "steps": "Length of the run in steps instead of epochs; 0: `epochs` counts.",
  "eval_every": "Epochs between evaluations on the validation split.",
  "eval_batch_size": "Examples in a batch of an evaluation.",
  "parallel": "How a step runs on several devices.",
  "replicas": "Runs side by side, with seeds from `seed` on; results are means over them.",
  "ensemble": "Replicas in a row that predict together, by the mean of their probabilities.",
  "replicas_by": "How replicas run: vmap, one program for all; loop, one program, called for each.",
  "steps_per_dispatch": "Steps that one call of the compiled program makes; 0: 1 on a CPU, else 8.",
  "mesh.model": "Devices on the axis `model`; batches are split over the other axis, `data`.",
  "mesh.shard": (
    "How parameters are split: head (classes over `model`), fsdp (largest dimension over `data`), or "
    "'GLOB: DIMENSION=AXIS', as in 'head/*: -1=model' or '*: largest=data+model'. The first rule that "
    "matches a parameter counts."
  ),
  "mesh.min_size": "Rules with the dimension `largest` leave smaller parameters whole.",
  "accumulate": "Parts of a batch whose gradients are added up, if a batch does not fit into memory.",
  "precision": "Number format of the layers; parameters, losses and masks are float32.",
  "compilation_cache": "Keep compiled programs in ~/.cache/jaxreg, for the next start.",
  "stacks_after": (
    "If a step does not end within this many minutes, the stacks of all threads are written to "
    "stacks-<process>.txt in the work directory; 0: never."
  ),
  "log_every": "Steps between training records.",
  "watch.steps": "Warn after this many steps in a row without learning; 0: never.",
  "data.name": "Where the examples come from.",
  "data.limit": "Use only the first examples of each split, this many; 0: all.",
  "data.resident_gib": "Data sets larger than this, in GiB, stay on the host.",
  "data.subset.num_classes": "Classes to keep, drawn by the seed; 0: all.",
  "data.subset.per_class": "Training examples of each class to keep, drawn by the seed; 0: all.",
  "data.subset.seed": "Seed of the subset.",
  "data.flipped_labels.rate": "Fraction of the training labels that are replaced by another class.",
  "data.flipped_labels.seed": "Seed that draws the labels to replace, and their new classes.",
  "data.bootstrap": "Each run resamples its training set: as many examples, drawn with replacement.",
  "data.unlabelled.batch_size": "Examples outside the subset that join each batch, without their labels.",
  "augment.names": "Applied in this order to the stored inputs of training batches.",
  "augment.mean": "Value for each channel that is subtracted from all scaled inputs.",
  "augment.std": "Value for each channel that divides all scaled inputs, after the subtraction of the mean.",
  "model.name": "The network under the head.",
  "model.unbalance": (
    "At the start, rescales the hidden units of an MLP without changing its function; the logarithms of the "
    "factors have this standard deviation."
  ),
  "method.name": "The head, the loss and the prediction rule.",
  "regularizers.names": "Terms that are added to the loss.",
  "regularizers.mask": "Function of jaxreg.paths that selects the parameters of penalties.",
  "regularizers.dual_learning_rate": "Learning rate of the multipliers of penalties with a limit.",
  "regularizers.*.weight": "Factor of the term in the loss.",
  "regularizers.*.limit": (
    "Makes the penalty a constraint, at most this value; dual ascent finds its multiplier; 0: no limit."
  ),
  "regularizers.*.clip": "Bounds of the moved inputs, the least and the largest; (): no bounds.",
  "regularizers.fixmatch.num_ops": "RandAugment's operations for each strong view.",
  "regularizers.fixmatch.magnitude": "RandAugment's magnitude, in [0, 10].",
  "regularizers.fixmatch.cutout_size": "Side of the gray square of the strong view in pixels; 0: none.",
  "regularizers.fixmatch.threshold": "How sure the weak view's prediction must be, in [0, 1].",
  "average.name": (
    "The parameters that predict: none, the last ones; early_stopping, the ones with the best "
    "checkpoint.best; swa, their mean over the end of the run; ema, their exponential mean."
  ),
  "average.early_stopping.patience": "The run ends after this many evaluations without a better one.",
  "average.early_stopping.min_delta": "Smaller gains of the metric do not count.",
  "average.swa.start": "Fraction of the run after which the mean begins.",
  "average.swa.every": "Steps between the iterates of the mean; 0: an epoch.",
  "average.ema.decay": "Decay of the exponential mean, per step.",
  "noise.names": "Noise in training: on the scaled inputs, the labels or the parameters.",
  "noise.mask": "Function of jaxreg.paths that selects the parameters with noise.",
  "pretrained.workdir": "Fine-tuning: take the backbone of the run in this work directory.",
  "pretrained.checkpoint": "Which checkpoint of that run.",
  "pretrained.replica": "Which replica of that run.",
  "method.*.predict.num_samples": "Sampled masks that a prediction averages over; 0: none is drawn.",
  "method.group_softmax.predict.logit_scale": "Factor of the logits before the softmax of the prediction.",
  "method.logit_adjustment.loss.class_counts": "Training examples of each class.",
  "method.logit_adjustment.loss.strength": "Factor of the log-frequencies that are added to the logits.",
  "method.group_softmax.loss.form": "How the loss is computed; auto chooses by the sizes.",
  "method.group_softmax.loss.grouping": "The rule that assigns features to groups.",
  "method.group_softmax.loss.kind": (
    "The bound of the softmax loss: type I has the power G; type II, the larger bound, has the power 1."
  ),
  "method.group_softmax.loss.num_groups": "Groups of features, G.",
  "method.group_softmax.loss.power": "The power; None: the power of the kind.",
  "optimizer.name": "The optimizer, or a wrapper of another one.",
  "optimizer.learning_rate": "The largest learning rate of the schedule.",
  "optimizer.clip_norm": "Largest norm of the gradient; 0: no clipping.",
  "optimizer.*.inner": "The optimizer that the wrapper wraps.",
  "optimizer.*.nesterov": "Whether momentum is Nesterov's.",
  "optimizer.*.eta": "Variance of the gradient's noise at the first step.",
  "optimizer.*.gamma": "The noise's variance falls as (1 + step) to the power of minus this value.",
  "optimizer.mahalanobis.metric": "The metric of the steepest descent, as 'GLOB: NUMBER' entries.",
  "optimizer.reparameterize.coordinates": "The coordinates in which a step is made.",
  "optimizer.reparameterize.scale": "Scale of these coordinates.",
  "optimizer.constraints.names": "Constraints on the parameters, applied after each step in this order.",
  "optimizer.constraints.mask": "Function of jaxreg.paths that selects the parameters of constraints.",
  "optimizer.weight_decay.rate": "Strength of the weight decay; 0: none.",
  "optimizer.weight_decay.decoupled": "Decay after the optimizer's scaling (as AdamW), not in the gradient.",
  "optimizer.weight_decay.mask": "Function of jaxreg.paths that selects the parameters that decay.",
  "optimizer.schedule.name": "Shape of the learning rate after the warm-up.",
  "optimizer.schedule.warmup_epochs": "Epochs in which the learning rate rises linearly from 0.",
  "optimizer.schedule.step.boundaries": "Epochs at which the rate falls.",
  "optimizer.schedule.step.factor": "Factor of the rate at each boundary.",
  "optimizer.schedule.step.relative": "Boundaries are fractions of the run instead of epochs.",
  "optimizer.schedule.cosine.final": "The last rate, as a fraction of the largest.",
  "optimizer.schedule.noam.d_model": "Width of the transformer, which scales the rate.",
  "optimizer.schedule.noam.warmup_steps": "Steps of the linear warm-up.",
  "checkpoint.every": "Epochs between checkpoints.",
  "checkpoint.every_steps": "Steps between additional checkpoints; 0: none.",
  "checkpoint.every_minutes": "Minutes between additional checkpoints; 0: none.",
  "checkpoint.keep": "How many of the latest checkpoints are kept, beside the best one.",
  "checkpoint.best": "The metric of the best checkpoint.",
  "checkpoint.wait": "Block training until a checkpoint is on disk; else write it beside the training.",
  "evaluate.checkpoint": "Checkpoint to evaluate.",
  "evaluate.split": "Split to evaluate.",
  "evaluate.mc_samples": "A prediction is the mean over this many draws of the noise; 0: without noise.",
  "compare.rows": "Rows of the comparison: methods, or 'label: field=value ...'.",
  "compare.grid": (
    "Settings to search on the validation split: 'field=value,value,...', or 'label: field=value,...'."
  ),
  "compare.seeds": "Number of seeds of each row.",
  "compare.choose": "The metric that chooses among the settings of the grid.",
  "flatness.rows": "Networks to train and analyse: 'label: field=value ...'.",
  "flatness.workdir": "A trained run to analyse instead.",
  "flatness.checkpoint": "Checkpoint to analyse.",
  "flatness.replica": "Replica to analyse.",
  "flatness.analyses": "Analyses to run.",
  "flatness.where": "Names of the parameters to analyse.",
  "flatness.examples": "The loss is over the first training examples, this many; 0: all.",
  "flatness.seed": "Seed of the noise, of the isotropic control and of Lanczos' start.",
  "flatness.profile.directions": "Number of random directions.",
  "flatness.profile.points": "Points along each direction.",
  "flatness.profile.reach": "Distance of the last point, in norms of the parameters.",
  "flatness.profile.granularity": "The part of a direction that is scaled to the norm of its parameters.",
  "flatness.*.samples": "Number of points of the trajectory, and of gradients.",
  "flatness.variance_flatness.factors": "Factors by which the loss rises at the ends of an interval.",
  "flatness.variance_flatness.directions": "Principal components to measure, evenly spaced; 0: all.",
  "flatness.variance_flatness.tolerance": "Variances below this fraction of the largest do not count.",
  "flatness.projected_variance.eigenpairs": (
    "Number of the largest eigenpairs, by Lanczos; 0: all, from the dense Hessian."
  ),
  "flatness.projected_variance.tolerance": "Eigenvalues below this fraction of the largest do not count.",
  "flatness.alignment.noises": "Noise added for the analysis at every checkpoint: 'label: field=value ...'.",
  "flatness.alignment.num_masks": "Draws of the noise for each example.",
}

CHECKPOINTS = ("latest", "best")
MASKS = ("everything", "kernels_only", "no_branches")
CHOICES = {
  "job": config.JOBS,
  "parallel": ("jit", "pmap"),
  "replicas_by": ("auto", "vmap", "loop"),
  "precision": config.PRECISIONS,
  "checkpoint.best": config.BEST,
  "compare.choose": config.BEST,
  "evaluate.split": config.SPLITS,
  "evaluate.checkpoint": CHECKPOINTS,
  "pretrained.checkpoint": CHECKPOINTS,
  "flatness.checkpoint": CHECKPOINTS,
  "method.group_softmax.loss.form": ("auto", "dense", "scan", "gather"),
  "method.group_softmax.loss.grouping": GROUPINGS,
  "method.group_softmax.loss.kind": ("I", "II"),
  **dict.fromkeys(
    ("noise.mask", "regularizers.mask", "optimizer.constraints.mask", "optimizer.weight_decay.mask"), MASKS
  ),
  "average.name": averages.AVERAGES,
  "optimizer.schedule.name": schedule.SCHEDULES,
  "flatness.analyses": ("profile", "variance_flatness", "projected_variance", "alignment"),
}

# Groups that only the job of that name reads, and fields that are read if another field is not empty.
BY_JOB = ("compare", "flatness", "translate")
IF_GIVEN = {
  "data.flipped_labels.seed": "data.flipped_labels.rate",
  "mesh.min_size": "mesh.shard",
  "noise.mask": "noise.names",
  "optimizer.constraints.mask": "optimizer.constraints.names",
  "optimizer.weight_decay.decoupled": "optimizer.weight_decay.rate",
  "optimizer.weight_decay.mask": "optimizer.weight_decay.rate",
  "pretrained.checkpoint": "pretrained.workdir",
  "pretrained.replica": "pretrained.workdir",
  "regularizers.dual_learning_rate": "regularizers.names",
  "regularizers.mask": "regularizers.names",
}


def fields_read(chosen: Config) -> list[str]:
  """The fields that the job of a configuration reads, also in its rows if it has rows."""
  flat = flatten(chosen)
  variants = [flat]
  if chosen.job == "compare":
    variants = [flat | point | row.fields for row in parse_rows(chosen) for point in row.grid or [{}]]
  elif chosen.job == "flatness" and chosen.flatness.rows:
    variants = [flat | row for row in parse_fields(chosen, chosen.flatness.rows, "flatness.rows").values()]
  read = {field for variant in variants for field in relevant(variant) if _is_read(field, variant)}
  return [field for field in flat if field in read]


def _is_read(field: str, flat: Mapping[str, Any]) -> bool:
  group = field.partition(".")[0]
  if group in BY_JOB and group != flat["job"]:
    return False
  if group == "evaluate" and flat["job"] in ("compare", "flatness", "train"):
    return field == "evaluate.mc_samples"
  if field.startswith("data.stream."):
    name = flat["data.name"]
    return name == "image_folder" or bool(flat.get(f"data.{name}.stream"))
  if group == "flatness" and field.count(".") == 2:
    return field.split(".")[1] in flat["flatness.analyses"]
  return field not in IF_GIVEN or bool(flat[IF_GIVEN[field]])


def described(flat: Mapping[str, Any], fields: Iterable[str]) -> str:
  """The fields with their values, and below each its description and its allowed values."""
  lines = []
  for field in fields:
    lines.append(f"  --config.{field}={flat[field]}")
    values = allowed(field, flat)
    text = describe(field, flat) + (f" {' | '.join(values)}." if values else "")
    lines += textwrap.wrap(
      text, WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6, break_on_hyphens=False
    )
  return "\n".join(lines)


def describe(field: str, flat: Mapping[str, Any] = types.MappingProxyType({})) -> str:
  """The description of a field in one sentence, or ""; `flat` gives the names of choices from outside."""
  for pattern, text in DESCRIPTIONS.items():
    if fnmatch.fnmatchcase(field, pattern):
      return text
  for function, name in _origins(field, flat):
    if text := _parameters(function).get(name):
      return text
  return ""


def allowed(field: str, flat: Mapping[str, Any] = types.MappingProxyType({})) -> tuple[str, ...]:
  """The names that a field may have; none for a number, a path or a list of the user's."""
  if field in FIELDS:
    return (*BY_NAME[FIELDS[field]].table, "MODULE:NAME")
  if field in CHOICES:
    return CHOICES[field]
  for function, name in _origins(field, flat):
    annotation = _hints(function).get(name)
    if typing.get_origin(annotation) is typing.Literal:
      return tuple(map(str, typing.get_args(annotation)))
  return ()


def _origins(field: str, flat: Mapping[str, Any]) -> list[tuple[Callable[..., Any], str]]:
  """The functions that have a field as a parameter, each with the parameter's name."""
  group, *rest = field.split(".")
  if field.startswith("optimizer.constraints."):
    group, rest = "optimizer.constraints", rest[1:]
  if group == "translate":
    return [(models.beam_decode, rest[0])]
  if field.startswith("data.stream."):
    return [(Decoding, rest[1])]
  if group == "method" and len(rest) == 3:
    return [(getattr(thing, rest[1]), rest[2]) for thing in _things(group, rest[0], flat)]
  if len(rest) != 2:
    return []
  places = {"regularizers": (penalties, adversarial, losses), "average": (averages, averaging)}.get(group, ())
  found = [*_things(group, rest[0], flat), *(getattr(place, rest[0], None) for place in places)]
  return [(_inner(function), rest[1]) for function in found if callable(function)]


def _things(group: str, key: str, flat: Mapping[str, Any]) -> list[Any]:
  """The function or class whose options are `group.key`: one of ours, or one that `flat` names."""
  if group not in BY_NAME:
    return []
  names = [key] if key in BY_NAME[group].table else []
  names += [name for _, of, name in named_in(flat) if of == group and is_yours(name) and short(name) == key]
  return [BY_NAME[group].find(name) for name in names[:1]]


def _inner(function: Any) -> Any:
  return function.func if isinstance(function, functools.partial) else function


@functools.cache
def _parameters(function: Callable[..., Any]) -> dict[str, str]:
  """The first sentence on each parameter, from the section `Args` or `Attributes` of a docstring."""
  doc = inspect.getdoc(function) or ""
  section = re.search(r"^(?:Args|Attributes):\n((?: +.*\n?|\n)*)", doc, re.MULTILINE)
  found: dict[str, str] = {}
  for entry in re.split(r"\n(?=\S)", inspect.cleandoc(section[1])) if section else []:
    names, colon, text = entry.partition(":")
    for name in re.sub(r"\([^)]*\)|[`*]", "", names).split(",") if colon else []:
      found[name.strip()] = _sentence(" ".join(text.split()))
  return found


def _sentence(text: str) -> str:
  first = re.split(r"(?<=[a-z0-9)`\]])\. (?=[A-Z])", re.sub(r":\w+:`([^`]*)`", r"\1", text))[0].rstrip(".")
  return f"{first[:1].upper()}{first[1:]}." if first else ""


@functools.cache
def _hints(function: Callable[..., Any]) -> dict[str, Any]:
  try:
    return typing.get_type_hints(function)
  except (NameError, TypeError):  # a function from outside may have annotations that cannot be read
    return {}

"""The table of the fields: a class for each group, whose annotations are the types of its fields."""

import fnmatch
import functools
import typing
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Never, Self

from ml_collections import ConfigDict

from jaxreg.train.data.images import Decoding
from jaxreg.train.lookup import Fields, Options, is_yours, parameters

Flat = Options
Reads = Callable[[Flat], bool]

OPTION = object()  # the default of a field whose function has it in its signature

MOST_STEPS = "1e9"  # only a slip exceeds this and the other upper bounds, and a run would not survive it

Job = Literal["train", "evaluate", "compare", "report", "check_data"]
Best = Literal["auto", "val/error", "val/nll", "val/brier", "val/ece", "val/rmse", "val/mae", "val/nlpd"]
Structure = Literal["kfac", "ekfac", "diagonal", "dense"]
Checkpoints = Literal["latest", "best"]
Split = Literal["train", "val", "test"]
Mask = Literal["kernels_only", "no_branches", "everything"]
Fitted = Literal["temperature", "conformal", "aps", "conformal_risk", "thresholds", "laplace"]
Measure = Literal["mce", "adaptive_ece", "classwise_ece", "ranking", "f1", Fitted]
Checks = Literal["errors", "residuals", "calibration", "selective", "conformal"]
Section = Literal[Checks, "ood", "corruptions", "adversarial", "flatness", "noise"]
Rows = dict[str, Fields]  # {label: {field: value}}

JOBS: tuple[str, ...] = typing.get_args(Job)


class Field(NamedTuple):
  """A row of the table.

  The scope says who may give another value in the same work directory; without a scope, nobody. `call`:
  everybody, because it says what one call asks. `prediction` and `place`: an evaluation. `length`: a
  training, which continues with the new value.
  """

  default: object = OPTION
  help: str = ""  # where no docstring of a function has the meaning
  allowed: str | None = None  # the interval of the numbers, as "[0, inf)"
  # Whether a flat configuration reads it: a function, or the field, itself always read, that has to be given.
  read_when: Reads | str | None = None
  scope: Literal["call", "prediction", "place", "length"] | None = None
  kind: object = None  # the type; a `Literal` has the names that it may be
  function: Callable[..., object] | None = None  # whose parameter it is, with its default and its meaning


def field(*row, **named) -> Any:
  """A `Field`, which type checkers take for a value of the field's type."""
  return Field(*row, **named)


NOTHING = Field()


class Group(ConfigDict, Options):
  """A group of fields; `class Mesh(Group, scope="call")` gives an attribute to all fields that have none.

  The classes are the type of a configuration for type checkers; a configuration itself is a `ConfigDict`.
  """

  row = NOTHING

  def __init_subclass__(cls, **row: object):
    cls.row = field(**row)

  if TYPE_CHECKING:

    def __getattr__(self, attribute: Never) -> Never: ...  # there are no other fields
    def __getitem__(self, key: str) -> Any: ...
    def copy_and_resolve_references(self) -> Self: ...
    def lock(self) -> Self: ...
    def unlock(self) -> Self: ...


class Choice(Group):
  """A group that also has a group of options for each function that its field `name` or `names` can name."""

  if TYPE_CHECKING:

    def __getattr__(self, attribute: str) -> Any: ...


def always(flat: Flat) -> bool:
  del flat
  return True


def by_job(*jobs: str) -> Reads:
  return lambda flat: flat["job"] in jobs


evaluates = by_job("evaluate", "report")


def measured(flat: Flat) -> bool:
  return flat["job"] == "report" or (evaluates(flat) and bool(flat["evaluate.measures"]))


def by_laplace(flat: Flat) -> bool:
  return measured(flat) and "laplace" in flat["evaluate.measures"]


def reads_streams(flat: Flat) -> bool:
  """Whether the data are images that are decoded batch by batch, as `data.stream` says."""
  name = flat["data.name"]
  return name == "image_folder" or is_yours(name) or bool(flat.get(f"data.{name}.stream"))


class Mesh(Group, scope="call"):
  model: int = field(1, "Devices on the axis `model`; the other axis, `data`, splits batches.", "[1, inf)")
  shard: tuple[str | tuple[str | float, ...], ...] = field(
    (),
    "How parameters are split, by the first rule that fits: head (classes over `model`), fsdp (the largest "
    "dimension over `data`), (glob, dimension, axis), or as a flag 'head/*: -1=model', '*: largest=data'.",
  )
  min_size: int = field(16384, "`largest` leaves smaller parameters whole.", "[0, inf)", "mesh.shard")
  axes: Literal["auto", "explicit"] = field(
    "auto", "auto: JAX chooses how arrays are split; explicit: types say it, which some Linen layers refuse."
  )


class LogFields(Group, scope="call"):
  trackers: tuple[str, ...] = field(
    ("tensorboard",),
    "Where records and figures go, too: tensorboard, mlflow, wandb, or MODULE:NAME, a function of (step, "
    "metrics, figures).",
  )


class Watch(Group, scope="call"):
  steps: int = field(
    500, "Warn after this many steps without learning, or if the loss explodes; 0: never.", "[0, inf)"
  )


class Subset(Group, allowed="[0, inf)"):
  num_train: int = field(0, "Training examples to keep, the first ones of the source; 0: all.")
  num_classes: int = field(0, "Classes to keep, drawn by the seed; 0: all.")
  per_class: int = field(0, "Training examples of each class to keep, drawn by the seed; 0: all.")
  drawn: bool = field(
    True,
    "False: keep the first examples of each class; of idx files, those that follow are for validation.",
    read_when="data.subset.per_class",
  )
  limit: int = field(0, "Examples of each split to keep, the first ones, for a trial; 0: all.")
  seed: int = field(0, "Seed of the subset.")


class FlippedLabels(Group, read_when="data.flipped_labels.rate"):
  rate: float = field(0.0, "Fraction of the training labels that are replaced by another class.", "[0, 1]")


class Unlabelled(Group):
  batch_size: int = field(0, "Examples outside the subset that join each batch, unlabelled.", "[0, inf)")


class Stream(Group, function=Decoding, read_when=reads_streams):
  size: int = field(allowed="[1, 1e4]")
  sides: tuple[int, ...] = field()
  workers: int = field(allowed="[0, 1e4]", scope="call")


class Data(Choice):
  name: str = field("digits", "Where the examples come from.")
  validation_fraction: float = field(
    0.1,
    "Fraction of the training examples for validation, stratified, if the source has no examples for it.",
    "(0, 1)",
  )
  resident_gib: float = field(4.0, "Data sets larger than this, in GiB, stay on the host.", "[0, inf)")
  skip_unreadable: bool = field(
    False,
    "Read all images once before, and leave out broken ones.",
    read_when=reads_streams,
  )
  subset: Subset
  flipped_labels: FlippedLabels
  bootstrap: bool = field(False, "Each run resamples its training set, with replacement.")
  balanced: bool = field(False, "Batches draw all classes equally often: an epoch repeats rare classes.")
  unlabelled: Unlabelled
  stream: Stream


class Augment(Choice):
  names: tuple[str, ...] = field((), "Applied in this order to the stored inputs of training batches.")
  mean: tuple[float, ...] = field((), "Value for each channel that is subtracted from all scaled inputs.")
  std: tuple[float, ...] = field((), "Divisor of each channel, after subtraction of the mean.", "(0, inf)")


class Model(Choice):
  name: str = field("MLP", "The network under the head.")
  unbalance: float = field(
    0.0,
    "Standard deviation of the log factors that rescale an MLP's hidden units at the start.",
    "[0, inf)",
  )


class Method(Choice):
  name: str = field("dropmax", "The head, the loss and the prediction rule.")
  class_weights: Literal["none", "inverse", "sqrt", "effective"] = field(
    "none", "Weights of the training examples by their class, as losses.class_weights computes them."
  )
  class_weights_limit: float = field(
    0.0, "The largest ratio of two class weights; 0: any.", "[0, inf)", "method.class_weights"
  )
  chunk_size: int = field(
    0, "Labels whose logits are in memory at a time, for many classes; 0: all.", "[0, inf)", scope="call"
  )


class Regularizers(Choice, read_when="regularizers.names"):
  names: tuple[str, ...] = field((), "Terms that are added to the loss.")
  mask: Mask = field("kernels_only", "Function of jaxreg.paths that selects the parameters of penalties.")
  dual_learning_rate: float = field(0.01, "Learning rate of the multipliers of limits.", "(0, inf)")


class Average(Choice):
  name: str = field(
    "none",
    "The parameters that predict: none, the last; early_stopping, the best; swa, the mean over the end of a "
    "run; swag, draws from a Gaussian of the same iterates; ema, the exponential mean.",
  )


class Noise(Choice, read_when="noise.names"):
  names: tuple[str, ...] = field((), "Noise in training: on the scaled inputs, the labels or the parameters.")
  mask: Mask = field("kernels_only", "Function of jaxreg.paths that selects the parameters with noise.")


class Pretrained(Group, read_when="pretrained.workdir"):
  workdir: str = field("", "Fine-tuning: take the backbone of the run in this work directory.")
  file: str = field("", "Fine-tuning: a ResNet in safetensors, of torchvision or timm.", read_when=always)
  checkpoint: Checkpoints = field("best", "Which checkpoint of that run.")
  replica: int = field(0, "Which replica of that run.", "[0, inf)")


class Teacher(Group, read_when="teacher.workdir"):
  workdir: str = field("", "Distillation: learn from the predictions of the run in this work directory.")
  checkpoint: Checkpoints = field("best", "Which checkpoint of that run.")
  replica: int = field(0, "Which replica of that run.", "[0, inf)")


class Constraints(Choice, read_when="optimizer.constraints.names"):
  names: tuple[str, ...] = field((), "Constraints on the parameters, applied after each step in this order.")
  mask: Mask = field("kernels_only", "Function of jaxreg.paths that selects the parameters of constraints.")


class WeightDecay(Group, read_when="optimizer.weight_decay.rate"):
  rate: float = field(0.0, "Strength of the weight decay; 0: none.", "[0, inf)")
  decoupled: bool = field(False, "Decay after the optimizer's scaling (as AdamW), not in the gradient.")
  mask: Mask = field("kernels_only", "Function of jaxreg.paths that selects the parameters that decay.")


class Schedule(Choice):
  name: str = field("constant", "Shape of the learning rate after the warm-up.")
  warmup_epochs: float = field(0.0, "Epochs in which the learning rate rises linearly from 0.", "[0, inf)")


class Optimizer(Choice):
  name: str = field("adam", "The optimizer, or a wrapper of another one.")
  learning_rate: float = field(0.001, "The largest learning rate of the schedule.", "(0, inf)")
  clip_norm: float = field(0.0, "Largest norm of the gradient; 0: no clipping.", "[0, inf)")
  constraints: Constraints
  weight_decay: WeightDecay
  schedule: Schedule


class Checkpoint(Group):
  every: int = field(1, "Epochs between checkpoints.", "[1, inf)")
  every_steps: int = field(0, "Steps between further checkpoints; 0: none.", "[0, inf)")
  every_minutes: float = field(0.0, "Minutes between further checkpoints; 0: none.", "[0, inf)", scope="call")
  keep: int = field(2, "How many of the latest checkpoints are kept, beside the best one.", "[2, inf)")
  best: Best = field("auto", "Metric of the best checkpoint; auto: val/error, or val/rmse for numbers.")
  wait: bool = field(True, "Block training until a checkpoint is on disk.", scope="call")


class Evaluate(Group, read_when=by_job("evaluate"), scope="prediction"):
  checkpoint: Checkpoints = field("latest", "Checkpoint to evaluate.", read_when=evaluates, scope="call")
  split: Split = field("test", "Split to evaluate.", read_when=evaluates, scope="call")
  mc_samples: int = field(0, "Draws of the noise in a prediction's mean; 0: no noise.", "[0, 1e6]", always)
  combine: Literal["arithmetic", "geometric", "weight_scaling"] = field(
    "arithmetic", "The mean over the draws; weight_scaling: the noise's mean, no draws.", read_when=always
  )
  mirror: bool = field(False, "A prediction is the mean over an image and its mirror.", read_when=always)
  ood: tuple[Literal["rotated", "inverted", "noise", "digits"], ...] = field(
    (),
    "Images that the predictions are to tell from the split's: its own rotated by 90 degrees or inverted, "
    "noise, or digits. The energy leaves out evaluate.mirror.",
  )
  measures: tuple[Measure, ...] = field(
    (),
    "More measures: mce, adaptive_ece, classwise_ece; for labels that are no or yes ranking (AUROC, average "
    "precision) and f1; and, learnt from the validation split, temperature, conformal, aps, conformal_risk "
    "(sets of such labels), thresholds (F1 at one for each label), laplace (as laplace.over says).",
  )
  alpha: float = field(0.1, "How often a conformal set may miss a label.", "[0, 1]", measured)


class Report(Group, read_when=by_job("report"), scope="call"):
  against: tuple[str, ...] = field((), "Work directories to compare with; seeds of one model are put in one.")
  minutes: float = field(5.0, "Budget of a report card, which chooses examples and products.", "(0, 1e4]")
  sections: tuple[Section, ...] = field((), "Sections of the card; (): all.")


class Laplace(Group, read_when=by_laplace, scope="call"):
  over: Literal["last", "all"] = field("last", "Whose weights are random: the last layer's, or all layers'.")
  structure: Structure = field("kfac", "The Gauss-Newton matrix of all layers, as in ensembles.laplace.")
  samples: int = field(0, "Draws of all layers' weights to average over; 0: linearised network.", "[0, 1e4]")


class Compare(Group, read_when=by_job("compare"), scope="call"):
  rows: Rows = field(
    {name: {"method.name": name} for name in ("softmax", "dropmax")},
    "Rows of the comparison, {label: {field: value}}; as a flag: methods, or 'label: field=value ...'.",
  )
  grid: Fields = field(
    {},
    "Settings to search on the validation split: {field: values} for all rows, {label: {field: values}} "
    "for one; as a flag: 'field=value,value,...', or 'label: field=value,...'.",
  )
  seeds: int = field(5, "Number of seeds of each row.", "[1, 1e4]")
  choose: Best = field("auto", "The metric that chooses a setting of the grid; auto: as in checkpoint.best.")


class Config(Group):
  """All fields."""

  job: Job = field("train", "What to do.", scope="call")
  seed: int = field(0, "Determines the initial weights, the order of the data and all noise.")
  batch_size: int = field(64, "Labelled examples in a batch, on all devices together.", "[1, inf)")
  epochs: int = field(
    10, "Length of the run in passes over the training examples.", "[1, 1e9]", scope="length"
  )
  steps: int = field(0, "Length of the run in steps; 0: `epochs` counts.", "[0, 1e9]", scope="length")
  eval_every: int = field(1, "Epochs between evaluations on the validation split.", "[1, inf)")
  eval_batch_size: int = field(500, "Examples in a batch of an evaluation.", "[1, 1e6]", scope="prediction")
  parallel: Literal["jit", "pmap"] = field("jit", "How a step runs on several devices.", scope="length")
  replicas: int = field(1, "Runs side by side, with seeds from `seed` on; results are means.", "[1, 1e4]")
  ensemble: int = field(1, "Replicas in a row that predict together, by mean probabilities.", "[1, 1e4]")
  replicas_by: Literal["auto", "vmap", "loop"] = field(
    "auto", "How replicas run: vmap, one program for all; loop, one program, called for each."
  )
  steps_per_dispatch: int = field(0, "Steps of one call of the program; 0: 1 on a CPU, else 8.", "[0, 1e6]")
  mesh: Mesh
  accumulate: int = field(1, "Parts of a batch whose gradients are added up, to save memory.", "[1, inf)")
  precision: Literal["float32", "bfloat16"] = field(
    "float32", "Number format of the layers; parameters, losses and masks are float32."
  )
  compilation_cache: bool = field(True, "Keep compiled programs in ~/.cache/jaxreg.", scope="call")
  onednn: bool = field(
    False, "Convolutions on a CPU by oneDNN, with JAX 0.12: faster, but compiled at every start."
  )
  stacks_after: float = field(
    30.0,
    "Minutes of a step after which all stacks go to stacks-<process>.txt; 0: never.",
    "[0, inf)",
    scope="call",
  )
  log_every: int = field(50, "Steps between training records.", "[1, inf)")
  log: LogFields
  watch: Watch
  data: Data
  augment: Augment
  model: Model
  method: Method
  regularizers: Regularizers
  average: Average
  noise: Noise
  pretrained: Pretrained
  teacher: Teacher
  optimizer: Optimizer
  checkpoint: Checkpoint
  evaluate: Evaluate
  report: Report
  laplace: Laplace
  compare: Compare


# What no signature says of options: for the fields that a glob fits, the first row that has an attribute.
OPTIONS: dict[str, Field] = {
  "method.*.head.initializer": Field(help="How the layers start: glorot or tutorial."),
  "data.*.workers data.*.path data.csv.val data.csv.test data.*.data_dir data.*.manual_dir": Field(
    scope="place"
  ),
  "augment.*.rate noise.*.rate model.*_rate model.*_rates": Field(allowed="[0, 1]"),
  "model.*_noise_std model.*.embedding_noise_alpha noise.*.std": Field(allowed="[0, inf)"),
  "model.*.num_kept": Field(allowed="[0, 1e6]"),
  "model.*.depth model.*.num_*": Field(allowed="[1, 1e4]"),
  "model.*.width model.*.widths model.*.hidden model.*.block_size model.*.d_*": Field(allowed="[1, 1e6]"),
  "method.*.predict.num_samples": Field(
    help="Sampled masks that a prediction averages over; 0: none is drawn."
  ),
  "method.group_softmax.predict.logit_scale": Field(
    help="Factor of the logits before the softmax of the prediction."
  ),
  "method.logit_adjustment.loss.class_counts": Field(
    help="Training examples of each class.", allowed="(0, inf)"
  ),
  "method.multitask.loss.weight": Field(
    help="Weight of each further task, unless the head learns the weights."
  ),
  "method.focal.loss.gamma": Field(allowed="[0, 100]"),
  "method.*.num_* regularizers.*.num_*": Field(allowed="[0, 1e4]"),
  "method.*.loss.weight": Field(allowed="[0, 1e6]"),
  "method.*.predict.*": Field(scope="prediction"),
  "method.*": Field(allowed="[-1e6, 1e6]"),
  "regularizers.*.weight": Field(help="Factor of the term in the loss.", allowed="[0, inf)"),
  "regularizers.*.limit": Field(
    help="Makes the penalty a constraint, at most this value; dual ascent finds its multiplier; 0: no limit.",
    allowed="[0, inf)",
  ),
  "average.swag.rank": Field(allowed="[2, 1e4]"),
  "average.swag.samples": Field(allowed="[1, 1e6]"),
  "average.swag.scale regularizers.*.eps": Field(allowed="[0, inf)"),
  "optimizer.*.inner": Field(help="The optimizer that the wrapper wraps."),
  "optimizer.*.variance": Field(
    help="Variance of the gradient's noise at the first step.", allowed="[0, inf)"
  ),
  "optimizer.*.gamma": Field(
    help="The noise's variance falls as (1 + step) to the power of minus this value.", allowed="[0, inf)"
  ),
  "optimizer.exact_*.b[12] optimizer.exact_*.decay optimizer.adaptive.b[12]": Field(allowed="[0, 1]"),
  "optimizer.mahalanobis.metric": Field(
    help="The metric of the steepest descent: pairs of a glob and a number; as a flag, 'GLOB: NUMBER'."
  ),
  "optimizer.reparameterize.coordinates": Field(help="The coordinates in which a step is made."),
  "optimizer.reparameterize.scale": Field(help="Scale of these coordinates."),
  "optimizer.schedule.step.factor optimizer.schedule.step.boundaries": Field(allowed="[0, inf)"),
  "optimizer.schedule.cosine.final": Field(allowed="[0, 1]"),
  "optimizer.schedule.noam.*": Field(allowed="[1, inf)"),
}


def _filled(row: Field, outer: Field) -> Field:
  """The row, with the attributes of `outer` that it lacks."""
  return row._replace(
    **{name: value for name, value in outer._asdict().items() if getattr(row, name) == getattr(NOTHING, name)}
  )


def _rows(group: type[Group], prefix: str, outer: Field) -> Iterator[tuple[str, Field]]:
  """The fields of a group with their full names; what a row lacks, its group has, or the group around it."""
  for name, kind in group.__annotations__.items():
    if isinstance(kind, type) and issubclass(kind, Group):
      yield from _rows(kind, f"{prefix}{name}.", _filled(kind.row, outer))
    else:
      row = _filled(getattr(group, name), outer)._replace(kind=kind)
      if row.function:
        row = row._replace(default=parameters(row.function)[name].default)
      yield prefix + name, row


FIELDS: dict[str, Field] = dict(_rows(Config, "", NOTHING))


@functools.cache
def row_of(name: str) -> Field:
  """The row of a field; an option's is made of the rows of `OPTIONS` that fit it: earlier ones win."""
  if name in FIELDS:
    return FIELDS[name]
  fits = lambda globs: any(fnmatch.fnmatchcase(name, glob) for glob in globs.split())
  return functools.reduce(_filled, (row for globs, row in OPTIONS.items() if fits(globs)), NOTHING)


def is_read(name: str, flat: Flat) -> bool:
  """Whether the job of a flat configuration reads a field."""
  read_when = row_of(name).read_when
  if isinstance(read_when, str):
    return name == read_when or bool(flat[read_when])
  return read_when is None or read_when(flat)

"""The table of all fields: a class for each group, whose annotations are the types of its fields."""

import fnmatch
import functools
import typing
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Never, Self

from ml_collections import ConfigDict

from jaxreg.train.data.images import Decoding
from jaxreg.train.entries import Fields, Options, parameters
from jaxreg.train.user_modules import is_yours

Reads = Callable[[Options], bool]

FROM_SIGNATURE = object()  # the default of a field whose function has it in its signature

MOST_STEPS = "1e9"  # like the other upper bounds: only a typing error exceeds it, and would end the run

Platform = Literal["cpu", "cuda", "rocm", "tpu"]
Job = Literal["train", "evaluate", "predict", "compare", "report", "check_data", "export", "compile", "merge"]
OfClasses = Literal["val/error", "val/nll", "val/nll_refined", "val/brier", "val/ece"]
Best = Literal["auto", OfClasses, "val/rmse", "val/mae", "val/nlpd"]
Structure = Literal["kfac", "ekfac", "diagonal", "dense"]
CheckpointName = Literal["latest", "best"]
SplitName = Literal["train", "val", "test"]
DecayKind = Literal["coupled", "decoupled", "independent", "cautious", "corrected", "fixed_norm"]
MaskName = Literal["kernels_only", "no_branches", "everything"]
Sets = Literal["conformal", "conformal_by_class", "aps", "raps", "conformal_risk"]
Fitted = Literal["temperature", "vector", "matrix", "isotonic", Sets, "thresholds", "laplace"]
Alone = Literal[
  "mce", "adaptive_ece", "classwise_ece", "smooth_ece", "debiased_ece", "selective", "ranking", "f1"
]
Measure = Literal[Alone, Fitted]
Checks = Literal["errors", "residuals", "calibration", "selective", "conformal"]
Section = Literal[Checks, "ood", "corruptions", "adversarial", "flatness", "noise"]
Rows = dict[str, Fields]  # {label: {field: value}}

JOB_NAMES: tuple[str, ...] = typing.get_args(Job)


class Field(NamedTuple):
  """A row of the table.

  The scope says which calls on a work directory may change the value; without a scope, none. `call`: all, as
  the field belongs to one call. `prediction` and `place`: evaluations. `length`: a training, which continues
  with the new value.
  """

  default: object = FROM_SIGNATURE
  help: str = ""  # for fields that no function's docstring describes
  allowed: str | None = None  # the interval of its numbers, as "[0, 1e9]"
  # When a job reads it: a function of the flat configuration, or the name of a field that must not be empty
  # or 0. That field itself is always read.
  read_when: Reads | str | None = None
  scope: Literal["call", "prediction", "place", "length"] | None = None
  kind: object = None  # its type; a `Literal` has the allowed names
  function: Callable[..., object] | None = (
    None  # the function whose parameter it is, with default and docstring
  )


def field(*row, **named) -> Any:
  """Makes a `Field` that type checkers take for a value of the field's type."""
  return Field(*row, **named)


NO_ROW = Field()


class Group(ConfigDict, Options):
  """A group of fields; `class Mesh(Group, scope="call")` is the default for its fields.

  Type checkers take these classes for the type of a configuration, which is a `ConfigDict`.
  """

  row = NO_ROW

  def __init_subclass__(cls, **row: object):
    cls.row = field(**row)

  if TYPE_CHECKING:

    def __getattr__(self, attribute: Never) -> Never: ...  # there are no other fields
    def __getitem__(self, key: str) -> Any: ...
    def copy_and_resolve_references(self) -> Self: ...
    def lock(self) -> Self: ...
    def unlock(self) -> Self: ...


class Choice(Group):
  """A group with a subgroup of options for each function that its field `name` or `names` can name."""

  if TYPE_CHECKING:

    def __getattr__(self, attribute: str) -> Any: ...


def always(flat: Options) -> bool:
  del flat
  return True


def by_job(*jobs: str) -> Reads:
  """Builds the condition that the job is one of `jobs`."""

  def reads(flat: Options) -> bool:
    return flat["job"] in jobs

  return reads


evaluates = by_job("evaluate", "report")


def measured(flat: Options) -> bool:
  if flat["job"] == "predict":
    return flat["predict.conformal"]
  return flat["job"] in ("report", "export") or (evaluates(flat) and bool(flat["evaluate.measures"]))


def by_laplace(flat: Options) -> bool:
  return measured(flat) and "laplace" in flat["evaluate.measures"]


def holds_norms(flat: Options) -> bool:
  return bool(flat["optimizer.weight_decay.rate"]) and flat["optimizer.weight_decay.kind"] == "fixed_norm"


def reads_streams(flat: Options) -> bool:
  """Tells whether the data are images that are decoded batch by batch, as `data.stream` says."""
  name = flat["data.name"]
  return name == "image_folder" or is_yours(name) or bool(flat.get(f"data.{name}.stream"))


class Mesh(Group, scope="call"):
  model: int = field(
    1,
    "Number of devices on the mesh axis `model`; the axis `data` has the rest and splits batches.",
    "[1, 1e9]",
  )
  slices: int = field(
    1,
    "Number of TPU slices or GPU nodes: each splits parameters by itself, and they share each batch.",
    "[1, 1e6]",
  )
  shard: tuple[str | tuple[str | float, ...], ...] = field(
    (),
    "Rules that split parameters; the first match counts: head (classes over `model`), fsdp (the largest "
    "dimension over `data`) or (glob, dimension, axis); as a flag, 'head/*: -1=model' or '*: largest=data'.",
  )
  min_size: int = field(
    16384,
    "Rules for the largest dimension leave parameters with fewer elements whole.",
    "[0, 1e12]",
    "mesh.shard",
  )
  axes: Literal["auto", "explicit"] = field(
    "auto",
    "auto: JAX chooses how arrays are split; explicit: their types do, which some Linen layers refuse.",
  )


class LogFields(Group, scope="call"):
  trackers: tuple[str, ...] = field(
    ("tensorboard",),
    "Further places for records and figures: tensorboard, mlflow, wandb, or MODULE:NAME, a function of "
    "(step, metrics, figures).",
  )
  sharpness_every: int = field(
    0,
    "Steps between measurements of the sharpness along the update and of the gradient's noise; each costs "
    "some ten steps; 0: none.",
    "[0, 1e9]",
  )
  peak_teraflops: float = field(
    0.0,
    "Peak of one device in TFLOP/s, for the model FLOP utilisation (MFU); 0: the known peak of the device.",
    "[0, 1e6]",
  )


class ProfileFields(Group, read_when="profile.steps", scope="call"):
  start: int = field(20, "First step of the profile.", "[1, 1e9]")
  steps: int = field(
    0, "Number of steps to profile, into the folder `profile` of the work directory; 0: none.", "[0, 1e4]"
  )


class Watch(Group, scope="call"):
  steps: int = field(
    500, "Warn after this many steps without learning, or when the loss explodes; 0: never.", "[0, 1e9]"
  )


class Subset(Group, allowed="[0, 1e9]"):
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
  batch_size: int = field(0, "Examples outside the subset that join each batch, unlabelled.", "[0, 1e9]")


class Stream(Group, function=Decoding, read_when=reads_streams):
  size: int = field(allowed="[1, 1e4]")
  sides: tuple[int, ...] = field(allowed="[1, 1e4]")
  workers: int = field(allowed="[0, 1e4]", scope="call")


class Data(Choice):
  name: str = field("digits", "Where the examples come from.")
  validation_fraction: float = field(
    0.1,
    "Fraction of the training examples for validation, stratified, if the source has no examples for it.",
    "(0, 1)",
  )
  resident_gib: float = field(4.0, "Data sets larger than this, in GiB, stay on the host.", "[0, 1e9]")
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
  names: tuple[str, ...] = field((), "Augmentations of the stored inputs of training batches, in this order.")
  mean: tuple[float, ...] = field(
    (), "Mean of each channel, which is subtracted from the scaled inputs.", "[-1e6, 1e6]"
  )
  std: tuple[float, ...] = field(
    (),
    "Standard deviation of each channel, which divides the inputs after the mean is subtracted.",
    "(0, 1e6]",
  )


class Model(Choice):
  name: str = field("MLP", "The network under the head.")
  unbalance: float = field(
    0.0,
    "Standard deviation of the log factors that rescale an MLP's hidden units at initialisation.",
    "[0, 10]",
  )


class Method(Choice):
  name: str = field("dropmax", "The head, the loss and the prediction rule.")
  class_weights: Literal["none", "inverse", "sqrt", "effective"] = field(
    "none", "Weights of the training examples by their class, as losses.class_weights computes them."
  )
  class_weights_limit: float = field(
    0.0, "The largest ratio of two class weights; 0: any.", "[0, 1e9]", "method.class_weights"
  )
  chunk_size: int = field(
    0,
    "Number of labels whose logits are in memory at a time, for many classes; 0: all.",
    "[0, 1e9]",
    scope="call",
  )


class Regularizers(Choice, read_when="regularizers.names"):
  names: tuple[str, ...] = field((), "Terms that are added to the loss.")
  dual_learning_rate: float = field(
    0.01, "Learning rate of the Lagrange multipliers of penalties with a limit.", "(0, 1e6]"
  )


class Average(Choice):
  name: str = field(
    "none",
    "Parameters that predict: none, the last; early_stopping, the best; swa, the mean over the end of a run; "
    "swag, samples from a Gaussian fitted there; ema, the exponential moving average; power_ema, an average "
    "whose length an evaluation chooses.",
  )


class Noise(Choice, read_when="noise.names"):
  names: tuple[str, ...] = field((), "Noise in training, on the scaled inputs, the labels or the parameters.")


class Pretrained(Group, read_when="pretrained.workdir"):
  workdir: str = field("", "Fine-tuning: start from the backbone of the run in this work directory.")
  file: str = field(
    "", "Fine-tuning: start from this safetensors file of a torchvision or timm ResNet.", read_when=always
  )
  checkpoint: CheckpointName = field("best", "Checkpoint of that run.")


class Teacher(Group, read_when="teacher.workdir"):
  workdir: str = field("", "Distillation: learn from the best checkpoint of the run in this work directory.")


class Constraints(Choice, read_when="optimizer.constraints.names"):
  names: tuple[str, ...] = field((), "Constraints on the parameters, applied after each step in this order.")


class DecaySchedule(Choice, read_when="optimizer.weight_decay.rate"):
  name: str = field("constant", "Shape of the rate of the weight decay over the run.")


class WeightDecay(Group, read_when="optimizer.weight_decay.rate"):
  rate: float = field(0.0, "Rate of the weight decay; 0: none.", "[0, 1e6]")
  kind: DecayKind = field(
    "coupled",
    "Form of the decay, as in optim.decay: coupled, to the gradient; decoupled, to the weights, as in AdamW; "
    "independent of the learning rate; cautious; corrected; fixed_norm, where the rate is a factor of the "
    "learning rate.",
  )
  mask: MaskName = field(
    "kernels_only", "Name of the function in jaxreg.paths that selects the parameters that decay."
  )
  blocks: Literal["leaf", "unit"] = field(
    "leaf",
    "Weights that share a norm with fixed_norm: those of an array, or those into a unit.",
    read_when=holds_norms,
  )
  schedule: DecaySchedule


class Schedule(Choice):
  name: str = field("constant", "Shape of the learning rate after the warm-up.")
  warmup_epochs: float = field(0.0, "Epochs of linear warm-up from a learning rate of 0.", "[0, 1e9]")


class Optimizer(Choice):
  name: str = field("adam", "The optimizer, or a wrapper of another one.")
  learning_rate: float = field(0.001, "The largest learning rate of the schedule.", "(0, 1e30]")
  clip_norm: float = field(0.0, "Largest global norm of the gradient; 0: no clipping.", "[0, 1e9]")
  constraints: Constraints
  weight_decay: WeightDecay
  schedule: Schedule


class Checkpoint(Group):
  every: int = field(1, "Epochs between checkpoints.", "[1, 1e9]")
  every_steps: int = field(0, "Steps between further checkpoints; 0: none.", "[0, 1e9]")
  every_minutes: float = field(0.0, "Minutes between further checkpoints; 0: none.", "[0, 1e9]", scope="call")
  keep: int = field(2, "Number of latest checkpoints to keep, in addition to the best one.", "[2, 1e9]")
  best: Best = field(
    "auto",
    "Metric that chooses a checkpoint, and a setting of compare.grid; auto: val/error or val/rmse. "
    "val/nll_refined is the NLL at the temperature that suits the validation split best.",
  )
  wait: bool = field(True, "Block training until a checkpoint is on disk.", scope="call")


class Evaluate(Group, read_when=by_job("evaluate"), scope="prediction"):
  checkpoint: CheckpointName = field(
    "latest",
    "Checkpoint to evaluate.",
    read_when=by_job("evaluate", "predict", "export", "report", "merge"),
    scope="call",
  )
  split: SplitName = field("test", "Split to evaluate.", read_when=evaluates, scope="call")
  mc_samples: int = field(
    0, "Noise samples that a prediction averages over; 0: no noise.", "[0, 1e6]", always
  )
  combine: Literal["arithmetic", "geometric", "weight_scaling"] = field(
    "arithmetic", "How samples are averaged; weight_scaling replaces the noise by its mean.", read_when=always
  )
  mirror: bool = field(
    False, "Average each prediction over the image and its mirror image.", read_when=always
  )
  ood: tuple[Literal["rotated", "inverted", "noise", "digits"], ...] = field(
    (),
    "Out-of-distribution images to detect: the split's own rotated by 90 degrees or inverted, noise, or "
    "digits. The energy score ignores evaluate.mirror.",
  )
  measures: tuple[Measure, ...] = field(
    (),
    "Further measures: mce, adaptive_ece, classwise_ece, smooth_ece, debiased_ece, selective (AURC, AUGRC); "
    "for yes-or-no labels, ranking (AUROC, average precision) and f1; fitted on the validation split, "
    "temperature, vector, matrix, isotonic, conformal, aps, laplace, and for yes-or-no labels conformal_risk "
    "and thresholds (F1 with a threshold per label).",
  )
  alpha: float = field(0.1, "Share of labels that conformal sets and intervals may miss.", "[0, 1]", measured)


class Predict(Group, read_when=by_job("predict"), scope="call"):
  file: str = field("", "New examples: a CSV, Parquet or .npz file, an image or a folder of images.")
  out: str = field("", "CSV file that the predictions are written to.")
  conformal: bool = field(
    False,
    "Also write conformal sets or intervals, which miss a label as often as evaluate.alpha says and learn "
    "from the validation split.",
  )


class Export(Group, read_when=by_job("export"), scope="call"):
  platforms: tuple[Platform, ...] = field(
    ("cpu", "cuda", "tpu"), "Platforms that the exported prediction runs on."
  )


class Report(Group, read_when=by_job("report"), scope="call"):
  against: tuple[str, ...] = field(
    (), "Work directories of runs to compare with; the seeds of one model are joined."
  )
  minutes: float = field(
    5.0, "Time budget of a report card, which decides how many examples and products it uses.", "(0, 1e4]"
  )
  sections: tuple[Section, ...] = field((), "Sections of the card; (): all.")


class Compile(Group, read_when=by_job("compile"), scope="call"):
  topology: str = field(
    "", "Devices to compile for: a kind and the shape of a slice, as v5e:4x4, v6e:2x4, gpu:8, h200:8."
  )
  input_shape: tuple[int, ...] = field(
    (), "Shape of an example of data that are not here; (): the data are read.", "[1, 1e9]"
  )
  num_classes: int = field(0, "Classes of data that are not here.", "[0, 1e9]")
  num_examples: int = field(0, "Training examples of data that are not here.", "[0, 1e12]")


class Merge(Group, read_when=by_job("merge"), scope="call"):
  runs: tuple[str, ...] = field((), "Work directories of the runs to merge; each seed of a run counts.")
  recipe: Literal["greedy", "uniform"] = field(
    "greedy",
    "Which runs the mean takes: greedy, from the best one on those that do not make checkpoint.best worse; "
    "uniform, all.",
  )


class Laplace(Group, read_when=by_laplace, scope="call"):
  over: Literal["last", "all"] = field("last", "Layers with random weights: the last one, or all.")
  structure: Structure = field(
    "kfac", "Structure of the Gauss-Newton matrix of these weights, as in ensembles.laplace."
  )
  samples: int = field(0, "Samples of these weights to average over; 0: a linearised network.", "[0, 1e4]")


class Compare(Group, read_when=by_job("compare"), scope="call"):
  rows: Rows = field(
    {name: {"method.name": name} for name in ("softmax", "dropmax")},
    "Rows of the comparison, {label: {field: value}}; as a flag, methods or 'label: field=value ...'.",
  )
  grid: Fields = field(
    {},
    "Settings to search on the validation split: {field: values} for all rows, {label: {field: values}} "
    "for one; as a flag, 'field=value,value,...' or 'label: field=value,...'.",
  )
  seeds: int = field(5, "Number of seeds of each row.", "[1, 1e4]")


class Config(Group):
  """All fields."""

  job: Job = field("train", "What to do.", scope="call")
  seed: int = field(0, "Seed of the initial weights, the order of the data and all noise.", "[0, 4294967295]")
  batch_size: int = field(64, "Number of labelled examples in a batch, over all devices.", "[1, 1e9]")
  epochs: int = field(
    10, "Length of the run in passes over the training examples.", "[1, 1e9]", scope="length"
  )
  steps: int = field(0, "Length of the run in steps; 0: `epochs` counts.", "[0, 1e9]", scope="length")
  eval_every: int = field(1, "Epochs between evaluations on the validation split.", "[1, 1e9]")
  eval_batch_size: int = field(500, "Examples in a batch of an evaluation.", "[1, 1e6]", scope="prediction")
  parallel: Literal["jit", "pmap"] = field("jit", "How a step runs on several devices.", scope="length")
  replicas: int = field(
    1, "Number of runs side by side, with the seeds from `seed` on; results are their means.", "[1, 1e4]"
  )
  ensemble: int = field(
    1, "Number of consecutive replicas that predict together, by their mean probabilities.", "[1, 1e4]"
  )
  steps_per_dispatch: int = field(0, "Steps in one call of the program; 0: 1 on a CPU, else 8.", "[0, 1e6]")
  mesh: Mesh
  accumulate: int = field(
    1, "Number of microbatches whose gradients are accumulated, to save memory.", "[1, 1e9]"
  )
  precision: Literal["float32", "bfloat16"] = field(
    "float32", "Number format of the layers; parameters, losses and masks are float32."
  )
  onednn: bool = field(
    False, "With JAX 0.12, compute convolutions on a CPU by oneDNN: faster, but compiled at every start."
  )
  log_every: int = field(50, "Steps between training records.", "[1, 1e9]")
  log: LogFields
  profile: ProfileFields
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
  predict: Predict
  export: Export
  report: Report
  laplace: Laplace
  compare: Compare
  compile: Compile
  merge: Merge


# Attributes of options that no signature has: the first row whose glob matches, and that has it, counts.
OPTIONS: dict[str, Field] = {
  "method.*.head.initializer": Field(help="Initialiser of the layers: glorot or tutorial."),
  "data.*.workers data.*.path data.csv.val data.csv.test data.*.data_dir data.*.manual_dir": Field(
    scope="place"
  ),
  # The intervals of numbers; the first row that fits counts. Bounds that no source has keep float32 finite.
  "augment.color_jitter.hue": Field(allowed="[0, 0.5]"),
  "augment.color_jitter.* augment.*.area": Field(allowed="[0, 1]"),
  "augment.*.aspect": Field(allowed="(0, 1e4]"),
  "augment.*.max_aspect augment.*.max_factor": Field(allowed="[1, 1e4]"),
  "augment.*.max_degrees": Field(allowed="[0, 180]"),
  "augment.*.size augment.*.padding augment.*.max_shift regularizers.*.cutout_size": Field(
    allowed="[0, 1e6]"
  ),
  "augment.*mix.alpha augment.*mixup.alpha regularizers.*.alpha": Field(allowed="(0, 1e4]"),
  "augment.*.severity regularizers.*.severity": Field(allowed="[0.1, 10]"),
  "augment.*.magnitude regularizers.*.magnitude": Field(allowed="[0, 10]"),
  "augment.*.num_*": Field(allowed="[1, 100]"),
  "augment.*.fill": Field(allowed="[-1e6, 1e6]"),
  "augment.lighting.std": Field(allowed="[0, 1e6]"),
  "average.*.patience": Field(allowed="[1, 1e9]"),
  "average.*.every": Field(allowed="[0, 1e9]"),
  "average.ema.warmup": Field(allowed="(0, 1e9]"),
  "average.ema.power": Field(allowed="[0, 100]"),
  "average.power_ema.length": Field(allowed="(0, 0.288]", scope="prediction"),
  "average.power_ema.snapshots": Field(allowed="[2, 1e4]"),
  "average.early_stopping.min_delta": Field(allowed="[0, 1e6]"),
  "data.npz.scale": Field(allowed="(0, 1e9]"),
  "data.parallel_text.*_length": Field(allowed="[2, 1e9]"),
  "data.parallel_text.vocab_size": Field(allowed="[1, 1e9]"),
  "method.cosface.loss.margin": Field(allowed="[0, 2]"),
  "method.arcface.loss.margin": Field(allowed="[0, 3.15]"),
  "method.asymmetric.loss.margin": Field(allowed="[0, 1)"),
  "method.*.loss.scale method.*.logit_scale method.*.df model.Airbench.scale": Field(allowed="(0, 1e6]"),
  "method.bi_tempered.loss.t2": Field(allowed="[1, 100]"),
  "method.bi_tempered.loss.t1 method.binary_focal.loss.alpha method.gaussian_nll.loss.beta": Field(
    allowed="[0, 1]"
  ),
  "method.*poly_loss.loss.epsilon": Field(allowed="[-1, 1e6]"),
  "method.*.initial_rate method.pinball.loss.levels regularizers.kl_sparsity.target": Field(allowed="(0, 1)"),
  "method.group_softmax.loss.power": Field(allowed="(0, 100]"),
  "method.*.loss.rate": Field(allowed="[0, 1]"),
  "model.*.layer_scale": Field(allowed="[0, 1e6]"),
  "optimizer.constraints.max_norm.limit": Field(allowed="(0, 1e6]"),
  "optimizer.constraints.min_max_norm.rate optimizer.constraints.*.ratio": Field(allowed="[0, 1]"),
  "optimizer.constraints.min_max_norm.*": Field(allowed="[0, 1e6]"),
  "optimizer.exact_*.b[12] optimizer.adaptive.b[12]": Field(allowed="[0, 1]"),
  "optimizer.schedule_free.b1": Field(allowed="(0, 1)"),  # it divides by b1
  "optimizer.*.betas optimizer.*.beta3 optimizer.muon.beta optimizer.momo.beta": Field(allowed="[0, 1)"),
  "optimizer.sophia.gamma": Field(help="Factor of the Hessian's diagonal.", allowed="(0, 1e6]"),
  "optimizer.sophia.clip_threshold optimizer.muon.consistent_rms": Field(allowed="(0, 1e6]"),
  "optimizer.sophia.update_interval optimizer.muon.ns_steps": Field(allowed="[1, 1e6]"),
  # A part of the network whose gradient is 0 would be divided by eps = 0; these divide by more than eps.
  "optimizer.acprop.eps optimizer.ada[bgn]*.eps optimizer.asam.eps optimizer.dog.eps optimizer.lars.eps "
  "optimizer.novograd.eps optimizer.p*_sgd.eps optimizer.yogi.eps": Field(allowed="[0, 1e6]"),
  "optimizer.*.eps optimizer.*.estim_lr0": Field(allowed="(0, 1e6]"),
  "optimizer.radam.threshold": Field(allowed="[4, 1e6]"),  # below, the rectified rate is not a number
  "optimizer.*.estim_lr* optimizer.cocob.alpha optimizer.*.lower_bound": Field(allowed="[0, 1e6]"),
  "optimizer.*ademamix.alpha optimizer.*.weight_lr_power optimizer.*.init_*": Field(allowed="[0, 1e6]"),
  "optimizer.*.b[123] optimizer.*.momentum optimizer.signum.beta": Field(allowed="[0, 1)"),
  "optimizer.*.decay optimizer.*.decay_rate optimizer.*_decay": Field(allowed="[0, 1]"),
  "optimizer.adafactor.clipping_threshold optimizer.rprop.*_step_size": Field(allowed="(0, 1e6]"),
  "optimizer.adafactor.decay_offset optimizer.adafactor.min_dim_*": Field(allowed="[0, 1e9]"),
  "optimizer.optimistic_*.alpha optimizer.optimistic_*.beta optimizer.*.threshold": Field(allowed="[0, 1e6]"),
  "optimizer.*.initial_* optimizer.*.min_norm optimizer.*.trust_coefficient": Field(allowed="[0, 1e6]"),
  "optimizer.*.shrink optimizer.rprop.eta_minus": Field(allowed="(0, 1)"),
  "optimizer.rprop.eta_plus": Field(allowed="[1, 1e3]"),
  "optimizer.lbfgs.memory_size": Field(allowed="[1, 1e4]"),
  "optimizer.p_norm_sgd.p": Field(allowed="(1, 1e4]"),
  "optimizer.path_sgd.p": Field(allowed="[1, 100]"),
  "optimizer.polyak_sgd.f_min": Field(allowed="[-1e6, 1e6]"),
  "regularizers.*.ratio": Field(allowed="[0, 1]"),
  "regularizers.*.clip": Field(allowed="[-1e6, 1e6]"),
  "augment.*.rate noise.*.rate model.*_rate model.*_rates": Field(allowed="[0, 1]"),
  "model.*_noise_std model.*.embedding_noise_alpha noise.*.std": Field(allowed="[0, 1e6]"),
  "model.*.num_kept": Field(allowed="[0, 1e6]"),
  "model.*.depth model.*.unroll model.*.num_*": Field(allowed="[1, 1e4]"),
  "model.*.width model.*.widths model.*.hidden model.*.block_size model.*.patch_size model.*.d_*": Field(
    allowed="[1, 1e6]"
  ),
  "method.*.predict.num_samples": Field(
    help="Sampled masks that a prediction averages over; 0: no sampling."
  ),
  "method.group_softmax.predict.logit_scale": Field(
    help="Factor of the logits before the softmax of the prediction."
  ),
  "method.logit_adjustment.loss.class_counts": Field(
    help="Training examples of each class.", allowed="(0, 1e9]"
  ),
  "method.multitask.loss.weight": Field(
    help="Weight of each additional task, unless the head learns the weights."
  ),
  "method.*.gamma*": Field(allowed="[0, 100]"),
  "method.*.num_* regularizers.*.num_*": Field(allowed="[0, 1e4]"),
  # Numbers that have one sense in all groups: strengths, widths and fractions.
  "method.*weight method.*.temperature regularizers.*.temperature optimizer.*.temperature": Field(
    allowed="[0, 1e6]"
  ),
  "method.*.delta regularizers.*.length_scale": Field(allowed="(0, 1e6]"),
  "method.*.smoothing average.*.start average.ema.decay regularizers.*.threshold": Field(allowed="[0, 1]"),
  "optimizer.*weight optimizer.*.rho optimizer.*.eps_root": Field(allowed="[0, 1e6]"),
  "regularizers.*.step_size regularizers.activity_variance.target": Field(allowed="[0, 1e6]"),
  "method.*.predict.*": Field(scope="prediction"),
  "method.*": Field(allowed="[-1e6, 1e6]"),
  "regularizers.*.weight": Field(help="Factor of the term in the loss.", allowed="[0, 1e6]"),
  "regularizers.*.limit": Field(
    help="Bounds the penalty by this value, with a multiplier found by dual ascent; 0: no bound.",
    allowed="[0, 1e9]",
  ),
  "average.swag.rank": Field(allowed="[2, 1e4]"),
  "average.swag.samples": Field(allowed="[1, 1e6]"),
  "average.swag.scale regularizers.*.eps": Field(allowed="[0, 1e6]"),
  "optimizer.*.inner": Field(help="Optimizer inside the wrapper."),
  "optimizer.*.variance": Field(
    help="Variance of the gradient's noise at the first step.", allowed="[0, 1e6]"
  ),
  "optimizer.*.gamma": Field(
    help="The noise's variance falls as (1 + step) to the power of minus this value.", allowed="[0, 1e6]"
  ),
  "optimizer.mahalanobis.metric": Field(
    help="Metric of the steepest descent: pairs of a glob and a number; as a flag, 'GLOB: NUMBER'."
  ),
  "optimizer.reparameterize.coordinates": Field(help="Coordinates in which a step is made."),
  "optimizer.reparameterize.scale": Field(help="Scale of these coordinates.", allowed="(0, 1e6]"),
  "optimizer.schedule.step.factor optimizer.schedule.step.boundaries": Field(allowed="[0, 1e9]"),
  "optimizer.schedule.cosine.final": Field(allowed="[0, 1]"),
  "optimizer.weight_decay.schedule.*": Field(allowed="[0, 1e9]"),
  "optimizer.schedule.noam.*": Field(allowed="[1, 1e9]"),
}


def _filled(row: Field, outer: Field) -> Field:
  """Fills the attributes that a row lacks from the row of its group."""
  return row._replace(
    **{name: value for name, value in outer._asdict().items() if getattr(row, name) == getattr(NO_ROW, name)}
  )


def _rows(group: type[Group], prefix: str, outer: Field) -> Iterator[tuple[str, Field]]:
  """Yields the fields of a group with their full names; a row inherits from its group and the outer ones."""
  for name, kind in group.__annotations__.items():
    if isinstance(kind, type) and issubclass(kind, Group):
      yield from _rows(kind, f"{prefix}{name}.", _filled(kind.row, outer))
    else:
      row = _filled(getattr(group, name), outer)._replace(kind=kind)
      if row.function:
        row = row._replace(default=parameters(row.function)[name].default)
      yield prefix + name, row


FIELDS: dict[str, Field] = dict(_rows(Config, "", NO_ROW))


@functools.cache
def row_of(name: str) -> Field:
  """Returns the row of a field; an option's row comes from the rows of `OPTIONS` that match, in order."""
  if name in FIELDS:
    return FIELDS[name]
  rows = (
    row for globs, row in OPTIONS.items() if any(fnmatch.fnmatchcase(name, glob) for glob in globs.split())
  )
  return functools.reduce(_filled, rows, NO_ROW)


def is_read(name: str, flat: Options) -> bool:
  """Tells whether the job of a flat configuration reads a field."""
  read_when = row_of(name).read_when
  if isinstance(read_when, str):
    return name == read_when or bool(flat[read_when])
  return read_when is None or read_when(flat)

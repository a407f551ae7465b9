"""The table of the fields: the one place that names a field of the configuration."""

import fnmatch
import functools
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

Flat = Mapping[str, Any]

OPTION = object()  # the default of an option, which the signature of its function has
TEXTS = "texts"  # allowed: a tuple of texts

MOST_STEPS = "1e9"  # only a slip exceeds this and the other upper bounds, and a run would not survive it

JOBS = ("train", "evaluate", "compare", "flatness", "translate", "check_data")
BEST = ("val/error", "val/nll", "val/brier", "val/ece")
CHECKPOINTS = ("latest", "best")
MASKS = ("kernels_only", "no_branches", "everything")


class Field(NamedTuple):
  """A field, or with `*` in its name a rule for several; of each attribute the first row that has it counts.

  Attributes:
    default: the value.
    help: the meaning, where no docstring of a function has it.
    allowed: the names, `TEXTS`, or the interval of the numbers, as "[0, inf)".
    read_when: whether a run with this flat configuration reads the field.
    scope: who may give another value in the same work directory. Without a scope, nobody. `call`: everybody,
      because it says what one call asks. `prediction` and `place`: an evaluation. `length`: a training, which
      continues with the new value.
  """

  default: Any = OPTION
  help: str = ""
  allowed: tuple[str, ...] | str | None = None
  read_when: Callable[[Flat], bool] | None = None
  scope: Literal["call", "prediction", "place", "length"] | None = None


def given(field: str) -> Callable[[Flat], bool]:
  return lambda flat: bool(flat[field])


def by_job(*jobs: str) -> Callable[[Flat], bool]:
  return lambda flat: flat["job"] in jobs


def analysis(name: str) -> Callable[[Flat], bool]:
  return lambda flat: flat["job"] == "flatness" and name in flat["flatness.analyses"]


def measured(flat: Flat) -> bool:
  return flat["job"] in ("evaluate", "translate") and bool(flat["evaluate.measures"])


def reads_streams(flat: Flat) -> bool:
  """Whether the data are images that are decoded batch by batch, as `data.stream` says."""
  name = flat["data.name"]
  return name == "image_folder" or bool(flat.get(f"data.{name}.stream"))


FIELDS: dict[str, Field] = {
  "job": Field("train", "What to do.", JOBS, scope="call"),
  "seed": Field(0, "Determines the initial weights, the order of the data and all noise."),
  "batch_size": Field(64, "Labelled examples in a batch, on all devices together.", "[1, inf)"),
  "epochs": Field(10, "Length of the run in passes over the training examples.", "[1, 1e9]", scope="length"),
  "steps": Field(
    0, "Length of the run in steps instead of epochs; 0: `epochs` counts.", "[0, 1e9]", scope="length"
  ),
  "eval_every": Field(1, "Epochs between evaluations on the validation split.", "[1, inf)"),
  "eval_batch_size": Field(500, "Examples in a batch of an evaluation.", "[1, 1e6]", scope="prediction"),
  "parallel": Field("jit", "How a step runs on several devices.", ("jit", "pmap"), scope="length"),
  "replicas": Field(
    1, "Runs side by side, with seeds from `seed` on; results are means over them.", "[1, 1e4]"
  ),
  "ensemble": Field(
    1, "Replicas in a row that predict together, by the mean of their probabilities.", "[1, 1e4]"
  ),
  "replicas_by": Field(
    "auto",
    "How replicas run: vmap, one program for all; loop, one program, called for each.",
    ("auto", "vmap", "loop"),
  ),
  "steps_per_dispatch": Field(
    0, "Steps that one call of the compiled program makes; 0: 1 on a CPU, else 8.", "[0, 1e6]"
  ),
  "mesh.model": Field(
    1, "Devices on the axis `model`; batches are split over the other axis, `data`.", "[1, inf)"
  ),
  "mesh.shard": Field(
    (),
    (
      "How parameters are split: head (classes over `model`), fsdp (largest dimension over `data`), or "
      "(glob, dimension, axis), as a flag 'head/*: -1=model' or '*: largest=data+model'. The first rule "
      "that matches a parameter counts."
    ),
  ),
  "mesh.min_size": Field(
    16384,
    "Rules with the dimension `largest` leave smaller parameters whole.",
    "[0, inf)",
    read_when=given("mesh.shard"),
  ),
  "accumulate": Field(
    1, "Parts of a batch whose gradients are added up, if a batch does not fit into memory.", "[1, inf)"
  ),
  "precision": Field(
    "float32",
    "Number format of the layers; parameters, losses and masks are float32.",
    ("float32", "bfloat16"),
  ),
  "compilation_cache": Field(
    True, "Keep compiled programs in ~/.cache/jaxreg, for the next start.", scope="call"
  ),
  "stacks_after": Field(
    30.0,
    (
      "If a step does not end within this many minutes, the stacks of all threads are written to "
      "stacks-<process>.txt in the work directory; 0: never."
    ),
    "[0, inf)",
    scope="call",
  ),
  "log_every": Field(50, "Steps between training records.", "[1, inf)"),
  "watch.steps": Field(
    500,
    "Warn after this many steps in a row without learning, and when the validation loss explodes; 0: never.",
    "[0, inf)",
  ),
  "mesh.*": Field(scope="call"),
  "watch.*": Field(scope="call"),
  "data.name": Field("digits", "Where the examples come from."),
  "data.limit": Field(0, "Examples of each split to use, the first ones; 0: all.", "[0, inf)"),
  "data.resident_gib": Field(4.0, "Data sets larger than this, in GiB, stay on the host.", "[0, inf)"),
  "data.skip_unreadable": Field(
    False,
    (
      "Leave out images that cannot be decoded: all are read once before the training, and those left "
      "out are counted."
    ),
    read_when=reads_streams,
  ),
  "data.subset.num_classes": Field(0, "Classes to keep, drawn by the seed; 0: all.", "[0, inf)"),
  "data.subset.per_class": Field(
    0, "Training examples of each class to keep, drawn by the seed; 0: all.", "[0, inf)"
  ),
  "data.subset.seed": Field(0, "Seed of the subset.", "[0, inf)"),
  "data.flipped_labels.rate": Field(
    0.0, "Fraction of the training labels that are replaced by another class.", "[0, 1]"
  ),
  "data.flipped_labels.seed": Field(
    0,
    "Seed that draws the labels to replace, and their new classes.",
    "[0, inf)",
    read_when=given("data.flipped_labels.rate"),
  ),
  "data.bootstrap": Field(
    False, "Each run resamples its training set: as many examples, drawn with replacement."
  ),
  "data.unlabelled.batch_size": Field(
    0, "Examples outside the subset that join each batch, without their labels.", "[0, inf)"
  ),
  "data.stream.size": Field(allowed="[1, 1e4]"),
  "data.stream.resize": Field(allowed="[1, 1e4]"),
  "data.stream.workers": Field(allowed="[0, 1e4]", scope="call"),
  "data.stream.*": Field(read_when=reads_streams),
  "data.*.num_*": Field(allowed="[0, inf)"),
  "data.idx.per_class": Field(allowed="[0, inf)"),
  "data.*.validation_fraction": Field(allowed="(0, 1)"),
  "data.*.workers": Field(scope="place"),
  "data.*.path": Field(scope="place"),
  "data.*.data_dir": Field(scope="place"),
  "data.*.manual_dir": Field(scope="place"),
  "augment.names": Field((), "Applied in this order to the stored inputs of training batches.", TEXTS),
  "augment.mean": Field((), "Value for each channel that is subtracted from all scaled inputs."),
  "augment.std": Field(
    (), "Value for each channel that divides all scaled inputs, after the subtraction of the mean."
  ),
  "augment.*.rate": Field(allowed="[0, 1]"),
  "augment.*.operations": Field(allowed=TEXTS),
  "augment.*.layers": Field(allowed=TEXTS),
  "augment.auto_augment.policy": Field(allowed=("cifar10", "imagenet", "svhn")),
  "model.name": Field("MLP", "The network under the head."),
  "model.unbalance": Field(
    0.0,
    (
      "At the start, rescales the hidden units of an MLP without changing its function; the logarithms "
      "of the factors have this standard deviation."
    ),
    "[0, inf)",
  ),
  "model.*_rate": Field(allowed="[0, 1]"),
  "model.*.weight_noise_std": Field(allowed="[0, inf)"),
  "model.*.hidden_noise_std": Field(allowed="[0, inf)"),
  "model.*.embedding_noise_alpha": Field(allowed="[0, inf)"),
  "model.*.num_kept": Field(allowed="[0, 1e6]"),
  "model.*.depth": Field(allowed="[1, 1e4]"),
  "model.*.num_*": Field(allowed="[1, 1e4]"),
  "model.*.width": Field(allowed="[1, 1e6]"),
  "model.*.widths": Field(allowed="[1, 1e6]"),
  "model.*.hidden": Field(allowed="[1, 1e6]"),
  "model.*.block_size": Field(allowed="[1, 1e6]"),
  "model.*.d_*": Field(allowed="[1, 1e6]"),
  "model.RNN.weight_noise_kind": Field(allowed=("additive", "multiplicative")),
  "method.name": Field("dropmax", "The head, the loss and the prediction rule."),
  "method.*.predict.num_samples": Field(
    help="Sampled masks that a prediction averages over; 0: none is drawn."
  ),
  "method.group_softmax.predict.logit_scale": Field(
    help="Factor of the logits before the softmax of the prediction."
  ),
  "method.logit_adjustment.loss.class_counts": Field(
    help="Training examples of each class.", allowed="(0, inf)"
  ),
  "method.logit_adjustment.loss.weight": Field(
    help="Factor of the log-frequencies that are added to the logits."
  ),
  "method.multitask.loss.weight": Field(
    help="Weight of each further task, unless the head learns the weights."
  ),
  "method.group_softmax.loss.form": Field(
    help="How the loss is computed; auto chooses by the sizes.", allowed=("auto", "dense", "scan", "gather")
  ),
  "method.group_softmax.loss.grouping": Field(
    help="The rule that assigns features to groups.",
    allowed=("discriminative", "random", "fixed", "interleaved", "posterior", "rival"),
  ),
  "method.group_softmax.loss.kind": Field(
    help="The bound of the softmax loss: type I has the power G; type II, the larger bound, has the power 1.",
    allowed=("I", "II"),
  ),
  "method.group_softmax.loss.num_groups": Field(help="Groups of features, G."),
  "method.group_softmax.loss.power": Field(help="The power; None: the power of the kind."),
  "method.focal.loss.gamma": Field(allowed="[0, 100]"),
  "method.*.num_*": Field(allowed="[0, 1e4]"),
  "method.*.loss.weight": Field(allowed="[0, 1e6]"),
  "method.*.predict.*": Field(scope="prediction"),
  "method.*": Field(allowed="[-1e6, 1e6]"),
  "regularizers.names": Field((), "Terms that are added to the loss.", TEXTS),
  "regularizers.mask": Field(
    "kernels_only",
    "Function of jaxreg.paths that selects the parameters of penalties.",
    MASKS,
    read_when=given("regularizers.names"),
  ),
  "regularizers.dual_learning_rate": Field(
    0.01,
    "Learning rate of the multipliers of penalties with a limit.",
    "(0, inf)",
    read_when=given("regularizers.names"),
  ),
  "regularizers.*.weight": Field(help="Factor of the term in the loss.", allowed="[0, inf)"),
  "regularizers.*.limit": Field(
    help="Makes the penalty a constraint, at most this value; dual ascent finds its multiplier; 0: no limit.",
    allowed="[0, inf)",
  ),
  "regularizers.*.clip": Field(help="Bounds of the moved inputs, the least and the largest; (): no bounds."),
  "regularizers.*.eps": Field(allowed="[0, inf)"),
  "regularizers.*.num_*": Field(allowed="[0, 1e4]"),
  "average.name": Field(
    "none",
    (
      "The parameters that predict: none, the last ones; early_stopping, the ones with the best "
      "checkpoint.best; swa, their mean over the end of the run; swag, draws from a Gaussian of the "
      "same iterates; ema, their exponential mean."
    ),
  ),
  "average.swag.rank": Field(allowed="[2, 1e4]"),
  "average.swag.samples": Field(allowed="[1, 1e6]"),
  "average.swag.scale": Field(allowed="[0, inf)"),
  "noise.names": Field((), "Noise in training: on the scaled inputs, the labels or the parameters.", TEXTS),
  "noise.mask": Field(
    "kernels_only",
    "Function of jaxreg.paths that selects the parameters with noise.",
    MASKS,
    read_when=given("noise.names"),
  ),
  "noise.*.std": Field(allowed="[0, inf)"),
  "noise.*.rate": Field(allowed="[0, 1]"),
  "pretrained.workdir": Field("", "Fine-tuning: take the backbone of the run in this work directory."),
  "pretrained.checkpoint": Field(
    "best", "Which checkpoint of that run.", CHECKPOINTS, read_when=given("pretrained.workdir")
  ),
  "pretrained.replica": Field(
    0, "Which replica of that run.", "[0, inf)", read_when=given("pretrained.workdir")
  ),
  "teacher.workdir": Field("", "Distillation: learn from the predictions of the run in this work directory."),
  "teacher.checkpoint": Field(
    "best", "Which checkpoint of that run.", CHECKPOINTS, read_when=given("teacher.workdir")
  ),
  "teacher.replica": Field(0, "Which replica of that run.", "[0, inf)", read_when=given("teacher.workdir")),
  "optimizer.name": Field("adam", "The optimizer, or a wrapper of another one."),
  "optimizer.learning_rate": Field(0.001, "The largest learning rate of the schedule.", "(0, inf)"),
  "optimizer.clip_norm": Field(0.0, "Largest norm of the gradient; 0: no clipping.", "[0, inf)"),
  "optimizer.*.inner": Field(help="The optimizer that the wrapper wraps."),
  "optimizer.*.nesterov": Field(help="Whether momentum is Nesterov's."),
  "optimizer.asam.eps": Field(help="Added to the sizes of the weights, so that weights near 0 move, too."),
  "optimizer.*.variance": Field(
    help="Variance of the gradient's noise at the first step.", allowed="[0, inf)"
  ),
  "optimizer.*.gamma": Field(
    help="The noise's variance falls as (1 + step) to the power of minus this value.", allowed="[0, inf)"
  ),
  "optimizer.exact_*.b[12]": Field(allowed="[0, 1]"),
  "optimizer.exact_*.decay": Field(allowed="[0, 1]"),
  "optimizer.adaptive.b[12]": Field(allowed="[0, 1]"),
  "optimizer.trust_region.*decay": Field(allowed="[0, 1]"),
  "optimizer.layer_decay.layers": Field(
    help="Names of the parameters of each layer, from the input to the output.",
    allowed=TEXTS,
  ),
  "optimizer.mahalanobis.metric": Field(
    help="The metric of the steepest descent: pairs of a glob and a number; as a flag, 'GLOB: NUMBER'.",
  ),
  "optimizer.reparameterize.coordinates": Field(help="The coordinates in which a step is made."),
  "optimizer.reparameterize.scale": Field(help="Scale of these coordinates."),
  "optimizer.constraints.names": Field(
    (), "Constraints on the parameters, applied after each step in this order.", TEXTS
  ),
  "optimizer.constraints.mask": Field(
    "kernels_only",
    "Function of jaxreg.paths that selects the parameters of constraints.",
    MASKS,
    read_when=given("optimizer.constraints.names"),
  ),
  "optimizer.weight_decay.rate": Field(0.0, "Strength of the weight decay; 0: none.", "[0, inf)"),
  "optimizer.weight_decay.decoupled": Field(
    False,
    "Decay after the optimizer's scaling (as AdamW), not in the gradient.",
    read_when=given("optimizer.weight_decay.rate"),
  ),
  "optimizer.weight_decay.mask": Field(
    "kernels_only",
    "Function of jaxreg.paths that selects the parameters that decay.",
    MASKS,
    read_when=given("optimizer.weight_decay.rate"),
  ),
  "optimizer.schedule.name": Field("constant", "Shape of the learning rate after the warm-up."),
  "optimizer.schedule.warmup_epochs": Field(
    0.0, "Epochs in which the learning rate rises linearly from 0.", "[0, inf)"
  ),
  "optimizer.schedule.step.factor": Field(allowed="[0, inf)"),
  "optimizer.schedule.cosine.final": Field(allowed="[0, 1]"),
  "optimizer.schedule.noam.*": Field(allowed="[1, inf)"),
  "checkpoint.every": Field(1, "Epochs between checkpoints.", "[1, inf)"),
  "checkpoint.every_steps": Field(0, "Steps between additional checkpoints; 0: none.", "[0, inf)"),
  "checkpoint.every_minutes": Field(
    0.0, "Minutes between additional checkpoints; 0: none.", "[0, inf)", scope="call"
  ),
  "checkpoint.keep": Field(
    2, "How many of the latest checkpoints are kept, beside the best one.", "[2, inf)"
  ),
  "checkpoint.best": Field("val/error", "The metric of the best checkpoint.", BEST),
  "checkpoint.wait": Field(
    True, "Block training until a checkpoint is on disk; else write it beside the training.", scope="call"
  ),
  "checkpoint.every_*": Field(allowed="[0, inf)"),
  "evaluate.checkpoint": Field("latest", "Checkpoint to evaluate.", CHECKPOINTS, scope="call"),
  "evaluate.split": Field("test", "Split to evaluate.", ("train", "val", "test"), scope="call"),
  "evaluate.mc_samples": Field(
    0,
    "A prediction is the mean over this many draws of the noise; 0: without noise.",
    "[0, 1e6]",
    read_when=by_job(*JOBS),
  ),
  "evaluate.combine": Field(
    "arithmetic",
    "The mean over the draws of the noise; weight_scaling: no draws, and the noise's mean.",
    ("arithmetic", "geometric", "weight_scaling"),
    read_when=by_job(*JOBS),
  ),
  "evaluate.mirror": Field(
    False,
    "A prediction is the mean of the probabilities of an image and of its mirror image.",
    read_when=by_job(*JOBS),
  ),
  "evaluate.ood": Field(
    (),
    (
      "Images from elsewhere that the predictions are to tell from the split's, as ('rotated', "
      "'noise'): the split's rotated by 90 degrees or inverted, noise, or scikit-learn's digits. The "
      "energy is that of the image alone, even with evaluate.mirror."
    ),
    ("rotated", "inverted", "noise", "digits"),
  ),
  "evaluate.measures": Field(
    (),
    (
      "More measures, as ('mce', 'temperature', 'conformal'): mce, adaptive_ece or classwise_ece; "
      "temperature, conformal, aps or laplace (of the last layer), which learn from the validation "
      "split."
    ),
    ("mce", "adaptive_ece", "classwise_ece", "temperature", "conformal", "aps", "laplace"),
  ),
  "evaluate.alpha": Field(
    0.1, "How often a conformal prediction set may miss the label.", "[0, 1]", read_when=measured
  ),
  "evaluate.*": Field(read_when=by_job("evaluate", "translate"), scope="prediction"),
  "translate.beam_size": Field(allowed="[1, 1e4]"),
  "translate.length_penalty": Field(allowed="[0, inf)"),
  "translate.*": Field(read_when=by_job("translate"), scope="call"),
  "compare.rows": Field(
    {name: {"method.name": name} for name in ("softmax", "dropmax")},
    "Rows of the comparison, {label: {field: value}}; as a flag: methods, or 'label: field=value ...'.",
  ),
  "compare.grid": Field(
    {},
    (
      "Settings to search on the validation split: {field: values} for all rows, {label: {field: values}} "
      "for one; as a flag: 'field=value,value,...', or 'label: field=value,...'."
    ),
  ),
  "compare.seeds": Field(5, "Number of seeds of each row.", "[1, 1e4]"),
  "compare.choose": Field("val/error", "The metric that chooses among the settings of the grid.", BEST),
  "compare.*": Field(read_when=by_job("compare"), scope="call"),
  "flatness.rows": Field({}, "Networks to train and analyse, as in `compare.rows`."),
  "flatness.workdir": Field("", "A trained run to analyse instead."),
  "flatness.checkpoint": Field("latest", "Checkpoint to analyse.", CHECKPOINTS),
  "flatness.replica": Field(0, "Replica to analyse.", "[0, inf)"),
  "flatness.analyses": Field(
    ("profile",), "Analyses to run.", ("profile", "variance_flatness", "projected_variance", "alignment")
  ),
  "flatness.mask": Field(("*",), "Names of the parameters to analyse.", TEXTS),
  "flatness.examples": Field(
    0, "Training examples that the loss is over, the first ones; 0: all.", "[0, inf)"
  ),
  "flatness.parts": Field(
    1,
    (
      "Parts of the examples with noise and BatchNorm's moments of their own, from which gradient "
      "samples are made; 1: samples are of the whole gradient."
    ),
    "[1, 1e6]",
  ),
  "flatness.seed": Field(0, "Seed of the noise, of the isotropic control and of Lanczos' start.", "[0, inf)"),
  "flatness.profile.directions": Field(5, "Number of random directions.", "[1, 1e6]"),
  "flatness.profile.points": Field(51, "Points along each direction.", "[3, 1e6]"),
  "flatness.profile.reach": Field(1.0, "Distance of the last point, in norms of the parameters.", "(0, inf)"),
  "flatness.profile.granularity": Field(
    "layer", "The part of a direction that is scaled to the norm of its parameters.", ("layer", "filter")
  ),
  "flatness.*.samples": Field(
    help="Number of points of the trajectory, and of gradients.", allowed="[2, 1e9]"
  ),
  "flatness.variance_flatness.factors": Field(
    (2.0,), "Factors by which the loss rises at the ends of an interval."
  ),
  "flatness.variance_flatness.directions": Field(
    0, "Principal components to measure, evenly spaced; 0: all.", "[0, inf)"
  ),
  "flatness.variance_flatness.tol": Field(
    1e-09, "Variances below this fraction of the largest do not count.", "[0, inf)"
  ),
  "flatness.projected_variance.eigenpairs": Field(
    0, "Number of the largest eigenpairs, by Lanczos; 0: all, from the dense Hessian.", "[0, inf)"
  ),
  "flatness.projected_variance.tol": Field(
    1e-06, "Eigenvalues below this fraction of the largest do not count.", "[0, inf)"
  ),
  "flatness.alignment.noises": Field(
    {}, "Noise added for the analysis at every checkpoint, as in `compare.rows`."
  ),
  "flatness.alignment.num_samples": Field(8, "Draws of the noise for each example.", "[1, 1e6]"),
  "flatness.projected_variance.samples": Field(1000, "", "[2, 1e9]"),
  "flatness.variance_flatness.samples": Field(3000, "", "[2, 1e9]"),
  "flatness.*.tol": Field(allowed="[0, inf)"),
  "flatness.profile.*": Field(read_when=analysis("profile")),
  "flatness.variance_flatness.*": Field(read_when=analysis("variance_flatness")),
  "flatness.projected_variance.*": Field(read_when=analysis("projected_variance")),
  "flatness.alignment.*": Field(read_when=analysis("alignment")),
  "flatness.*": Field(read_when=by_job("flatness"), scope="call"),
  "*.replica": Field(allowed="[0, inf)"),
}


@functools.cache
def attribute(field: str, name: str) -> Any:
  """An attribute of a field, of the first row whose name fits and which has it."""
  empty = getattr(Field(), name)
  rows = (row for pattern, row in FIELDS.items() if fnmatch.fnmatchcase(field, pattern))
  return next((value for row in rows if (value := getattr(row, name)) != empty), empty)


def is_read(field: str, flat: Flat) -> bool:
  """Whether the job of a flat configuration reads a field."""
  read_when = attribute(field, "read_when")
  return read_when is None or read_when(flat)

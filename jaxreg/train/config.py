"""The configuration: its fields with their defaults."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from ml_collections import ConfigDict, config_dict

from jaxreg import augment, constraints, models, noise, penalties
from jaxreg.train import averages, optimizer, schedule, sources, terms, toolbox
from jaxreg.train.images import Decoding
from jaxreg.train.methods import METHODS

# A ConfigDict, whose fields no type checker can know.
Config = Any

BACKBONES = ("MLP", "RNN", "LeNet", "TutorialCNN", "CifarResNet", "ResNet", "VGG", "VGG9", "Transformer")
AUGMENTATIONS = (
  *("pad_crop", "flip", "translate", "rotate", "scale", "cutout", "random_erasing"),
  *("rand_augment", "mixup", "cutmix"),
)
JOBS = ("train", "evaluate", "compare", "dropmax_figures", "flatness", "translate")
SPLITS = ("train", "val", "test")
PRECISIONS = ("float32", "bfloat16")
BEST = ("val/error", "val/nll", "val/brier", "val/ece")


def options(function: Callable[..., Any], skip: tuple[str, ...] = ()) -> Config:
  """The parameters of `function` that have plain defaults, as a sub-configuration."""
  fields: Config = ConfigDict()
  for name, parameter in inspect.signature(function).parameters.items():
    default = parameter.default
    if name in skip or default is inspect.Parameter.empty:
      continue
    if isinstance(default, bool | int | float | str) or type(default) is tuple:
      fields[name] = default
    elif default is None:
      fields[name] = config_dict.placeholder(float)
  return fields


def _named(module: Any, table: Mapping[str, Mapping[str, Any]], **shared: Any) -> Config:
  """Which functions of `module`, none at first, on which parameters, and the options of each."""
  fields: Config = ConfigDict({"names": (), "mask": "kernels_only"})
  for name, needed in table.items():
    known = options(getattr(module, name), skip=("axis", "step", "shared_axes", "num_classes"))
    fields[name] = ConfigDict({**shared, **known, **needed})
  return fields


def base_config() -> Config:
  """Every field with its default; configs change what is theirs."""
  config: Config = ConfigDict()
  config.job = "train"  # train | evaluate | compare | dropmax_figures | flatness | translate
  config.seed = 0  # determines initialisation, data order and noise
  config.batch_size = 64
  config.epochs = 10
  config.steps = 0  # if not 0, the length of the run in steps instead of epochs
  config.eval_every = 1  # epochs between evaluations on the validation split
  config.eval_batch_size = 500
  config.parallel = "jit"  # jit | pmap
  config.replicas = 1  # so many runs side by side, with seeds from `seed` on; results are their means
  config.ensemble = 1  # so many of the replicas in a row predict together, by the mean of their probabilities
  config.replicas_by = "auto"  # auto | vmap (one program for all) | loop (one program, called for each)
  config.steps_per_dispatch = 0  # steps that one call of the compiled program makes; 0: 1 on a CPU, else 8
  # Devices in two axes: batches are split over `data`; over `model`, of so many devices, what `shard` says.
  # shard: head (the classes of the head over `model`), fsdp (the largest dimension of each parameter over
  # `data`), or "GLOB: DIMENSION=AXIS" on paths, as in "head/*: -1=model" or "*: largest=data+model"; of
  # several for one parameter the first. min_size: smaller ones stay whole where the dimension is `largest`.
  config.mesh = ConfigDict({"model": 1, "shard": (), "min_size": 2**14})
  config.accumulate = 1  # parts of a batch whose gradients are added up, for batches that do not fit
  config.precision = "float32"  # float32 | bfloat16: of the layers; parameters, losses and masks are float32
  config.compilation_cache = True  # keep compiled programs in the work directory, for the next start
  # Minutes after which a step that does not end writes the stacks of all threads to stacks-<process>.txt in
  # the work directory; 0: never.
  config.stacks_after = 30.0
  config.log_every = 50  # steps between training records

  config.data = _data()
  # names: applied in this order to the stored inputs of training batches; mean and std, a value per channel,
  # to all inputs once they are scaled.
  config.augment = ConfigDict({"names": (), "mean": (), "std": ()})
  for name in AUGMENTATIONS:
    config.augment[name] = options(getattr(augment, name), skip=("num_classes", "value_range"))

  # A row of BACKBONES. unbalance: of an MLP, hidden units are rescaled at the start, its function staying the
  # same, by factors whose logarithms have this standard deviation.
  config.model = ConfigDict({"name": "MLP", "unbalance": 0.0})
  for name in BACKBONES:
    config.model[name] = options(getattr(models, name), skip=("parent", "name", "axis_name"))

  # names: what is added to the loss with its weight. Penalties are on the parameters that `mask` selects, a
  # function of jaxreg.paths; one with a limit has a multiplier instead, found by dual ascent.
  config.regularizers = _named(penalties, toolbox.REGULARIZERS, weight=1e-4, limit=0.0)
  config.regularizers.dual_learning_rate = 1e-2
  for name in terms.TERMS:
    config.regularizers[name] = ConfigDict({"weight": 1.0, **options(getattr(terms, name))})
  # What is predicted with: none, the parameters of the last step; early_stopping, those of the best
  # checkpoint.best, and the run ends after `patience` evaluations without a better; swa, their mean from the
  # fraction `start` of the run on, one in `every` steps (0: an epoch); ema, their exponential mean.
  config.average = ConfigDict({"name": "none"})
  for name in averages.AVERAGES[1:]:
    config.average[name] = options(getattr(averages, name))
  # names: in training, on the scaled inputs (gaussian_noise), on the labels (label_noise), or on the
  # parameters that `mask` selects.
  config.noise = _named(noise, toolbox.NOISES)

  # Fine-tuning: the backbone of a run in that work directory, instead of random weights; the head is new.
  config.pretrained = ConfigDict({"workdir": "", "checkpoint": "best", "replica": 0})  # latest | best

  config.method = ConfigDict({"name": "dropmax"})  # a row of METHODS
  for name, method in METHODS.items():
    config.method[name] = ConfigDict(
      {
        "head": options(method.head, skip=("parent", "name")),
        "loss": options(method.loss, skip=("posterior_logits",)),
        "predict": options(method.predict),
      }
    )

  config.optimizer = _optimizer()
  # A save is due every so many epochs (every), steps and minutes, the last two if not 0. keep: so many of the
  # latest, and the best by this metric. wait: the next step does, so that a kill costs no more steps than lie
  # between two; else they are written beside the training.
  config.checkpoint = ConfigDict(
    {"every": 1, "every_steps": 0, "every_minutes": 0.0, "keep": 2, "best": "val/error", "wait": True}
  )
  # latest | best; train | val | test; mc_samples: predictions are means over so many draws of the noise.
  config.evaluate = ConfigDict({"checkpoint": "latest", "split": "test", "mc_samples": 0})
  # Of the checkpoint and split above; length_penalty 0: the most probable hypothesis.
  config.translate = options(models.beam_decode, skip=("begin", "end", "pad"))
  # rows: methods, or "label: field=value ..."; grid: "field=value,value,..." or "label: field=value,...":
  # searched from one seed by `choose` on the validation split before all `seeds` are trained.
  config.compare = ConfigDict({"rows": ("softmax", "dropmax"), "grid": (), "seeds": 5, "choose": "val/error"})
  config.flatness = _flatness()
  return config.lock()


def _data() -> Config:
  fields: Config = ConfigDict(
    # digits | idx | npz | tfds | image_folder | parallel_text; limit: per split, 0: all; larger sets than
    # resident_gib stay on the host
    {"name": "digits", "limit": 0, "resident_gib": 4.0}
  )
  # Of num_classes classes per_class training examples each, drawn by seed; 0: all.
  fields.subset = ConfigDict({"num_classes": 0, "per_class": 0, "seed": 0})
  # So many of the training labels are replaced by another class, drawn by seed.
  fields.flipped_labels = ConfigDict({"rate": 0.0, "seed": 0})
  # Each run trains on as many examples as there are, drawn with replacement by its seed.
  fields.bootstrap = False
  # So many of the training examples that are left over join each batch, without their labels.
  fields.unlabelled = ConfigDict({"batch_size": 0})
  # Of image_folder, and of tfds with stream=True, whose images are decoded batch by batch: crops of size, in
  # training of an area and aspect within bounds and maybe flipped, else the centre once the shorter side is
  # resize; by so many workers, which are processes, or 0 for threads.
  fields.stream = options(Decoding)
  for name in sources.SOURCES:
    fields[name] = options(getattr(sources, name))
  return fields


def _optimizer() -> Config:
  # clip_norm 0: none.
  fields: Config = ConfigDict({"name": "adam", "learning_rate": 1e-3, "clip_norm": 0.0})
  for name, function in optimizer.OPTIMIZERS.items():
    # What has a field above the choices, or none but a function can be.
    skip = (
      *(
        "learning_rate",
        "max_learning_rate",
        "scaling",
        "weight_decay",
        "weight_decay_rate",
        "key",
        "num_examples",
      ),
      *("mask", "weight_decay_mask", "trust_ratio_mask", "mu_dtype", "accumulator_dtype"),
      *(("alpha",) if name == "p_norm_sgd" else ()),
    )
    fields[name] = options(function, skip=skip)
    if name in optimizer.WRAPPERS:
      fields[name].inner = "sgd"
  # names: what comes last in the chain, in this order, on the parameters that `mask` selects.
  fields.constraints = _named(constraints, toolbox.CONSTRAINTS)
  fields.weight_decay = ConfigDict({"rate": 0.0, "decoupled": False, "mask": "kernels_only"})
  # constant | step | cosine | noam; boundaries in epochs, or with `relative` as fractions of the run.
  fields.schedule = ConfigDict({"name": "constant", "warmup_epochs": 0.0})
  fields.schedule.step = ConfigDict({"boundaries": (), "factor": 0.1, "relative": False})
  fields.schedule.cosine = ConfigDict({"final": 0.0})
  fields.schedule.noam = ConfigDict({"d_model": 50, "warmup_steps": 4000})
  return fields


def _flatness() -> Config:
  # rows: "label: field=value ...", each trained and looked at; workdir: or a run that is there already.
  # where: names of parameters; examples: so many of the first training examples, 0 for all.
  fields: Config = ConfigDict(
    {
      "rows": (),
      "workdir": "",
      "checkpoint": "latest",
      "replica": 0,
      "analyses": ("profile",),  # profile | variance_flatness | projected_variance | alignment
      "where": ("*",),
      "examples": 0,
      "seed": 0,
    }
  )
  fields.profile = ConfigDict({"directions": 5, "points": 51, "reach": 1.0, "granularity": "layer"})
  # directions: so many of the components, 0 for all; tolerance: smaller parts of the largest do not count.
  fields.variance_flatness = ConfigDict(
    {"samples": 3000, "factors": (2.0,), "directions": 0, "tolerance": 1e-9}
  )
  fields.projected_variance = ConfigDict({"samples": 1000, "eigenpairs": 0, "tolerance": 1e-6})
  # noises: "label: field=value ...", added for a moment to a training without them, at every checkpoint.
  fields.alignment = ConfigDict({"noises": (), "num_masks": 8})
  return fields


def flatten(config: Config, prefix: str = "") -> dict[str, Any]:
  """`{"optimizer.name": "adam", ...}`."""
  flat = {}
  for name, value in config.items():
    if isinstance(value, ConfigDict | dict):
      flat |= flatten(value, f"{prefix}{name}.")
    else:
      flat[prefix + name] = list(value) if isinstance(value, tuple) else value
  return flat


def relevant(flat: Mapping[str, Any]) -> dict[str, Any]:
  """A flat configuration without the options of what is not chosen, which nothing reads."""
  return {field: value for field, value in flat.items() if chooser(field, flat) is None}


def chooser(field: str, flat: Mapping[str, Any]) -> str | None:
  """The field whose choice leaves this option of a flat configuration unread; None if it is read."""
  for group, known in ONE_OF.items():
    name = _option_of(field, group)
    inner = flat.get(f"{group}.{flat.get(f'{group}.name')}.inner")
    if name in known and name not in (flat.get(f"{group}.name"), inner):
      return f"{group}.name"
  for group, known in SOME_OF.items():
    name = _option_of(field, group)
    if name in known and name not in flat.get(f"{group}.names", ()):
      return f"{group}.names"
  return None


ONE_OF = {
  "data": sources.SOURCES,
  "model": BACKBONES,
  "method": tuple(METHODS),
  "optimizer": tuple(optimizer.OPTIMIZERS),
  "optimizer.schedule": schedule.SCHEDULES,
  "average": averages.AVERAGES,
}
SOME_OF = {"augment": AUGMENTATIONS, **toolbox.CHOSEN}


def _option_of(field: str, group: str) -> str | None:
  """Of `group.name.option`, the name."""
  name, dot, _ = field.removeprefix(f"{group}.").partition(".")
  return name if dot and field.startswith(f"{group}.") else None

"""The configuration: its fields with their defaults; what they mean is told in `describe.py`."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from ml_collections import ConfigDict, config_dict

from jaxreg import augment, constraints, models, noise, penalties
from jaxreg.train.data import sources
from jaxreg.train.data.images import Decoding
from jaxreg.train.step import averages, optimizer, schedule
from jaxreg.train.step import example_terms as terms
from jaxreg.train.step import named as toolbox
from jaxreg.train.step.methods import METHODS

# A ConfigDict, whose fields no type checker can know.
Config = Any

BACKBONES = ("MLP", "RNN", "LeNet", "TutorialCNN", "CifarResNet", "ResNet", "VGG", "VGG9", "Transformer")
AUGMENTATIONS = (
  *("pad_crop", "flip", "translate", "rotate", "scale", "cutout", "random_erasing"),
  *("lighting", "rand_augment", "mixup", "cutmix"),
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
  config.job = "train"
  config.seed = 0
  config.batch_size = 64
  config.epochs = 10
  config.steps = 0
  config.eval_every = 1
  config.eval_batch_size = 500
  config.parallel = "jit"
  config.replicas = 1
  config.ensemble = 1
  config.replicas_by = "auto"
  config.steps_per_dispatch = 0
  config.mesh = ConfigDict({"model": 1, "shard": (), "min_size": 2**14})
  config.accumulate = 1
  config.precision = "float32"
  config.compilation_cache = True
  config.stacks_after = 30.0
  config.log_every = 50
  config.watch = ConfigDict({"steps": 500})

  config.data = _data()
  config.augment = ConfigDict({"names": (), "mean": (), "std": ()})
  for name in AUGMENTATIONS:
    skip = ("num_classes", "value_range", "channel_axis")
    config.augment[name] = options(getattr(augment, name), skip=skip)

  config.model = ConfigDict({"name": "MLP", "unbalance": 0.0})
  for name in BACKBONES:
    config.model[name] = options(getattr(models, name), skip=("parent", "name", "axis_name"))

  config.regularizers = _named(penalties, toolbox.REGULARIZERS, weight=1e-4, limit=0.0)
  config.regularizers.dual_learning_rate = 1e-2
  for name in terms.TERMS:
    config.regularizers[name] = ConfigDict({"weight": 1.0, **options(getattr(terms, name))})
  config.average = ConfigDict({"name": "none"})
  for name in averages.AVERAGES[1:]:
    config.average[name] = options(getattr(averages, name))
  config.noise = _named(noise, toolbox.NOISES)

  config.pretrained = ConfigDict({"workdir": "", "checkpoint": "best", "replica": 0})

  config.method = ConfigDict({"name": "dropmax"})
  for name, method in METHODS.items():
    config.method[name] = ConfigDict(
      {
        "head": options(method.head, skip=("parent", "name")),
        "loss": options(method.loss, skip=("posterior_logits",)),
        "predict": options(method.predict),
      }
    )

  config.optimizer = _optimizer()
  config.checkpoint = ConfigDict(
    {"every": 1, "every_steps": 0, "every_minutes": 0.0, "keep": 2, "best": "val/error", "wait": True}
  )
  config.evaluate = ConfigDict({"checkpoint": "latest", "split": "test", "mc_samples": 0})
  config.translate = options(models.beam_decode, skip=("begin", "end", "pad"))
  config.compare = ConfigDict({"rows": ("softmax", "dropmax"), "grid": (), "seeds": 5, "choose": "val/error"})
  config.flatness = _flatness()
  return config.lock()


def _data() -> Config:
  fields: Config = ConfigDict({"name": "digits", "limit": 0, "resident_gib": 4.0})
  fields.subset = ConfigDict({"num_classes": 0, "per_class": 0, "seed": 0})
  fields.flipped_labels = ConfigDict({"rate": 0.0, "seed": 0})
  fields.bootstrap = False
  fields.unlabelled = ConfigDict({"batch_size": 0})
  fields.stream = options(Decoding)
  for name in sources.SOURCES:
    fields[name] = options(getattr(sources, name))
  return fields


def _optimizer() -> Config:
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
  fields.constraints = _named(constraints, toolbox.CONSTRAINTS)
  fields.weight_decay = ConfigDict({"rate": 0.0, "decoupled": False, "mask": "kernels_only"})
  fields.schedule = ConfigDict({"name": "constant", "warmup_epochs": 0.0})
  fields.schedule.step = ConfigDict({"boundaries": (), "factor": 0.1, "relative": False})
  fields.schedule.cosine = ConfigDict({"final": 0.0})
  fields.schedule.noam = ConfigDict({"d_model": 50, "warmup_steps": 4000})
  return fields


def _flatness() -> Config:
  fields: Config = ConfigDict(
    {
      "rows": (),
      "workdir": "",
      "checkpoint": "latest",
      "replica": 0,
      "analyses": ("profile",),
      "where": ("*",),
      "examples": 0,
      "seed": 0,
    }
  )
  fields.profile = ConfigDict({"directions": 5, "points": 51, "reach": 1.0, "granularity": "layer"})
  fields.variance_flatness = ConfigDict(
    {"samples": 3000, "factors": (2.0,), "directions": 0, "tolerance": 1e-9}
  )
  fields.projected_variance = ConfigDict({"samples": 1000, "eigenpairs": 0, "tolerance": 1e-6})
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

"""The configuration: its fields with their defaults. `describe.py` tells what each field means."""

from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from jaxreg import models
from jaxreg.train.config.choices import add_options
from jaxreg.train.config.defaults import options
from jaxreg.train.config.flat import chooser as chooser
from jaxreg.train.config.flat import flatten as flatten
from jaxreg.train.config.flat import relevant as relevant
from jaxreg.train.data.images import Decoding
from jaxreg.train.step import averages

# A ConfigDict; no type checker can know its fields.
Config = Any

JOBS = ("train", "evaluate", "compare", "dropmax_figures", "flatness", "translate")
SPLITS = ("train", "val", "test")
PRECISIONS = ("float32", "bfloat16")
OOD = ("rotated", "inverted", "noise", "digits")
MEASURES = ("mce", "adaptive_ece", "classwise_ece", "temperature", "conformal", "aps", "laplace")
BEST = ("val/error", "val/nll", "val/brier", "val/ece")


def base_config() -> Config:
  """Every field with its default; a config file changes the fields that differ."""
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
  config.model = ConfigDict({"name": "MLP", "unbalance": 0.0})
  config.regularizers = ConfigDict({"names": (), "mask": "kernels_only", "dual_learning_rate": 1e-2})
  config.average = ConfigDict({"name": "none"})
  for name in averages.AVERAGES[1:]:
    config.average[name] = options(getattr(averages, name))
  config.noise = ConfigDict({"names": (), "mask": "kernels_only"})
  config.pretrained = ConfigDict({"workdir": "", "checkpoint": "best", "replica": 0})
  config.teacher = ConfigDict({"workdir": "", "checkpoint": "best", "replica": 0})

  config.method = ConfigDict({"name": "dropmax"})
  config.optimizer = _optimizer()
  config.checkpoint = ConfigDict(
    {"every": 1, "every_steps": 0, "every_minutes": 0.0, "keep": 2, "best": "val/error", "wait": True}
  )
  config.evaluate = ConfigDict(
    {
      "checkpoint": "latest",
      "split": "test",
      "mc_samples": 0,
      "combine": "arithmetic",
      "mirror": False,
      "ood": (),
      "measures": (),
      "alpha": 0.1,
    }
  )
  config.translate = options(models.beam_decode, skip=("begin", "end", "pad"))
  config.compare = ConfigDict({"rows": ("softmax", "dropmax"), "grid": (), "seeds": 5, "choose": "val/error"})
  config.flatness = _flatness()
  return add_options(config).lock()


def default_config(flat: Mapping[str, Any]) -> Config:
  """`base_config()` with the options of the choices in a flat configuration.

  Raises:
    RunError: if a name is wrong.
  """
  return add_options(base_config(), flat)


def _data() -> Config:
  fields: Config = ConfigDict({"name": "digits", "limit": 0, "resident_gib": 4.0})
  fields.subset = ConfigDict({"num_classes": 0, "per_class": 0, "seed": 0})
  fields.flipped_labels = ConfigDict({"rate": 0.0, "seed": 0})
  fields.bootstrap = False
  fields.unlabelled = ConfigDict({"batch_size": 0})
  fields.stream = options(Decoding)
  return fields


def _optimizer() -> Config:
  fields: Config = ConfigDict({"name": "adam", "learning_rate": 1e-3, "clip_norm": 0.0})
  fields.constraints = ConfigDict({"names": (), "mask": "kernels_only"})
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
      "parts": 1,
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

"""Broken flags, configurations, data files and work directories, drawn by a seed: for `test_fuzz.py`.

A kind is a function `(random, folder) -> arguments` that may write into `folder`; `folder / "run"` is, for
those in `OF_RUNS`, a finished run of `runs.TINY`, to be changed. Every case is to be refused.
"""

import gzip
import json
import shutil
import string
from collections.abc import Callable
from pathlib import Path

import numpy as np
import runs
import toy_text

from jaxreg import train
from jaxreg.train.config import fields as configs
from jaxreg.train.data import sources
from jaxreg.train.files import sealed
from jaxreg.train.run.manifest import good_steps
from jaxreg.train.step import named as toolbox
from jaxreg.train.step.averages import AVERAGES
from jaxreg.train.step.methods import METHODS
from jaxreg.train.step.network import BACKBONES
from jaxreg.train.step.optimizer import MASKS, OPTIMIZERS
from jaxreg.train.step.schedule import SCHEDULES

Random = np.random.Generator
Arguments = list[str]
KINDS: dict[str, Callable[[Random, Path], Arguments]] = {}
OF_RUNS: set[str] = set()

CONFIG = str(runs.ROOT / "configs" / "softmax_digits.py")
FIELDS = train.flatten(train.base_config())
STEP = 6 * runs.STEPS_PER_EPOCH


def kind(function):
  KINDS[function.__name__] = function
  return function


def kind_of_run(function):
  KINDS[function.__name__] = lambda random, folder: function(random, folder, folder / "run")
  OF_RUNS.add(function.__name__)
  return function


def pick(random: Random, options):
  options = list(options)
  return options[int(random.integers(len(options)))]


def misspelt(random: Random, name: str, known) -> str:
  """A name one or two slips away from `name`, and no other that is known."""
  known = {other.lower() for other in known}
  while True:
    at, letter = int(random.integers(len(name))), pick(random, string.ascii_lowercase)
    slip = pick(random, ("leave out", "put in", "replace", "double"))
    other = {
      "leave out": name[:at] + name[at + 1 :],
      "put in": name[:at] + letter + name[at:],
      "replace": name[:at] + letter + name[at + 1 :],
      "double": name[:at] + name[at] + name[at:],
    }[slip]
    if other and other.lower() not in known and not other.startswith((".", "-")) and ".." not in other:
      return other


def flag(field: str, value) -> str:
  return f"--config.{field}={value}"


def tiny(**fields) -> Arguments:
  """The flags of `runs.TINY`, with the default configuration of every other field."""
  return [flag(field, value) for field, value in {**runs.TINY, **fields}.items()]


def again(run: Path, *more: str) -> Arguments:
  """The command that made the run, once more."""
  return ["--config", write_config(run.parent / "again.py"), *tiny(), "--workdir", str(run), *more]


def evaluate(run: Path, *more: str) -> Arguments:
  return ["--config.job=evaluate", "--workdir", str(run), *more]


def write_config(file: Path) -> str:
  file.write_text("from jaxreg.train import base_config\n\n\ndef get_config():\n  return base_config()\n")
  return str(file)


# Flags.


@kind
def misspelt_fields(random, folder):
  return [flag(misspelt(random, pick(random, FIELDS), FIELDS), 1)]


@kind
def groups_instead_of_fields(random, folder):
  parts = pick(random, [field for field in FIELDS if "." in field]).split(".")
  return [flag(".".join(parts[: int(random.integers(1, len(parts)))]), pick(random, ("1", "sgd", "{}", "")))]


@kind
def wrong_types(random, folder):
  bad = {
    bool: ("maybe", "2", "None", "1.0", "[]"),
    int: ("ten", "1.5", "None", "[1]", "", "1e3", "True", "1_0.", "nan"),
    float: ("fast", "(1, 2)", "None", "", "1,5", "0.1.2", "[]"),
    list: ("wide", "(", "{", "1 +", "(1, 2"),
    type(None): ("fast", "(1,)", "1,5"),
  }
  # A word is a list of one name: those of jobs that are not asked for are not read.
  unread = lambda field: (
    type(FIELDS[field]) is list and field.split(".")[0] not in ("augment", "noise", "regularizers")
  )
  field = pick(random, [field for field, value in FIELDS.items() if type(value) in bad and not unread(field)])
  return [flag(field, pick(random, bad[type(FIELDS[field])]))]


@kind
def unknown_flags(random, folder):
  return pick(
    random,
    (
      [f"--{misspelt(random, name, ('workdir', 'config', 'list', 'help'))}=x"]
      for name in (
        "workdir",
        "coordinator",
        "num_processes",
        "process_id",
        "distributed",
        "peer_timeout",
        "start_timeout",
      )
    ),
  )


@kind
def arguments_that_are_no_flags(random, folder):
  word = pick(random, ("train", "configs/softmax_digits.py", "epochs=3", "x", "-", "run.py", "digits", ""))
  place = int(random.integers(2))
  return [word, "--config.epochs=1"] if place else ["--config.epochs=1", word]


@kind
def flags_without_values(random, folder):
  names = ("--workdir", "--config.epochs", "--config.method.name", "--config", "--num_processes", "--config=")
  return ["--config.seed=1", pick(random, names)]


@kind
def coordinators(random, folder):
  number = str(int(random.integers(-5, 0)))
  good = {"--coordinator": "localhost:1234", "--num_processes": "2", "--process_id": "0"}
  bad = {
    "--coordinator": (
      "localhost",
      ":1234",
      "localhost:",
      "localhost:x",
      "localhost:-1",
      "localhost:99999",
      " ",
    ),
    "--num_processes": ("0", number, "two", "1.5", ""),
    "--process_id": ("2", number, "first", "7", ""),
    "--peer_timeout": ("0", number, "soon"),
    "--start_timeout": ("0", number, "soon"),
  }
  name = pick(random, bad)
  given = {**good, name: pick(random, bad[name])}
  if random.integers(3) == 0:
    given = dict(good)
    for left_out in random.permutation(list(good))[: int(random.integers(1, 3))]:
      del given[left_out]
  return [f"{name}={value}" for name, value in given.items()]


# Config files.


@kind
def config_files_that_are_none(random, folder):
  (folder / "text.txt").write_text("hello\n")
  (folder / "empty.py").write_text("")
  (folder / "bytes.py").write_bytes(random.bytes(64))
  (folder / "folder.py").mkdir()
  name = pick(random, ("text.txt", "empty.py", "bytes.py", "folder.py", ".", "missing.py", "configs/x.py"))
  return ["--config", f"{folder}/{name}" + pick(random, ("", ":", ":l2"))]


@kind
def config_files_that_fail(random, folder):
  body = pick(
    random,
    (
      "def get_config(:",
      "def get_config():\nreturn 1",
      "import nothing_of_this_name",
      "from jaxreg.train import nothing_of_this_name",
      "x = 1",
      "get_config = 3",
      "def get_config(a, b): pass",
      "def get_config(): raise RuntimeError('first\\nsecond')",
      "def get_config(): raise RuntimeError",
      "def get_config(): return get_config()",
      "def get_config(): raise SystemExit('no')",
      "import sys\nsys.exit(0)",
      "exit()",
      "def get_config(): 1 / 0",
      "def get_config(): assert False",
      "def get_config(): return open('/nowhere/at/all')",
      "\tx = 1\n  y = 2",
      "x = '\u2028",
    ),
  )
  (folder / "mine.py").write_text(body)
  return ["--config", f"{folder}/mine.py", *pick(random, ([], ["--config.epochs=1"], ["--help"]))]


@kind
def configs_of_another_shape(random, folder):
  field = pick(random, [field for field in FIELDS if not field.startswith(("compare.", "flatness."))])
  new = misspelt(random, field.split(".")[-1], FIELDS)
  wrong = {bool: "'yes'", int: "'ten'", float: "'fast'", str: "3", list: "'wide'", type(None): "'x'"}
  change = pick(
    random,
    (
      "config = None",
      "config = 3",
      "config = {}",
      "config = {'job': 'train'}",
      "config = ConfigDict()",
      "config = ConfigDict({'job': 'train', 'epochs': 1})",
      f"config.unlock(); del config.{field}",
      f"config.unlock(); del config.{field.split('.')[0]}",
      f"config.{new} = 1",
      f"config.unlock(); config.{'.'.join([*field.split('.')[:-1], new])} = 1",
      f"config.{field} = {wrong[type(FIELDS[field])]}",
      f"config.unlock(); config.{field} = object()",
      "config.unlock(); config.optimizer = 'adam'",
      "config.unlock(); config.model.name = None",
      "config.unlock(); config.augment.names = 'flip'",
      "config.unlock(); config.epochs = ConfigDict({'a': 1})",
      "config.epochs = 0",
      "config.method.name = 'dropmx'",
    ),
  )
  (folder / "mine.py").write_text(
    "from ml_collections import ConfigDict\nfrom jaxreg.train import base_config\n\n\n"
    f"def get_config():\n  config = base_config()\n  {change}\n  return config\n"
  )
  return ["--config", f"{folder}/mine.py"]


@kind
def arguments_of_configs(random, folder):
  name = pick(
    random, ("toolbox_digits", "dropmax_mnist", "optimizers_digits", "softmax_digits", "flatness_fnn_mnist")
  )
  return ["--config", f"{runs.ROOT}/configs/{name}.py:{misspelt(random, 'something', ())}"]


# Names and numbers.


@kind
def unknown_names(random, folder):
  choices = {
    "job": configs.JOBS,
    "parallel": ("jit", "pmap"),
    "replicas_by": ("auto", "vmap", "loop"),
    "precision": configs.PRECISIONS,
    "data.name": sources.SOURCES,
    "model.name": tuple(BACKBONES),
    "method.name": tuple(METHODS),
    "optimizer.name": OPTIMIZERS,
    "optimizer.schedule.name": SCHEDULES,
    "optimizer.weight_decay.mask": MASKS,
    "regularizers.mask": MASKS,
    "noise.mask": MASKS,
    "optimizer.constraints.mask": MASKS,
    "average.name": AVERAGES,
    "checkpoint.best": configs.BEST,
    "compare.choose": configs.BEST,
    "evaluate.checkpoint": ("latest", "best"),
    "evaluate.split": configs.SPLITS,
    "pretrained.checkpoint": ("latest", "best"),
    "flatness.checkpoint": ("latest", "best"),
    "flatness.profile.granularity": ("layer", "filter"),
    "model.MLP.dropout": ("dropout", "gaussian_dropout"),
  }
  field = pick(random, choices)
  job = ["--config.job=flatness"] if field.startswith("flatness.") else []
  return [*job, flag(field, misspelt(random, pick(random, choices[field]), choices[field]))]


@kind
def unknown_names_in_lists(random, folder):
  choices = {
    "augment.names": tuple(toolbox.AUGMENTATIONS),
    **{f"{group}.names": tuple(known) for group, known in toolbox.CHOSEN.items()},
  }
  field = pick(random, choices)
  bad = pick(random, (misspelt(random, pick(random, choices[field]), choices[field]), "", "None"))
  value = pick(
    random, (f"('{bad}',)", f"('{pick(random, choices[field])}', '{bad}')", "(1,)", "(None,)", "((),)")
  )
  return [flag(field, value)]


# Fields with numbers that they must refuse, and what has to be chosen for them to be read.
NUMBERS = {
  "batch_size": (0, -1, 1079, 20, 10**9),
  "epochs": (0, -1, 3 * 10**12),
  "steps": (-1, 3 * 10**12),
  "eval_every": (0, -2),
  "eval_batch_size": (0, -2),
  "log_every": (0, -1),
  "replicas": (0, -1),
  "ensemble": (0, -1, 3),
  "accumulate": (0, -1, 3),
  "steps_per_dispatch": (-1,),
  "seed": (-1, 2**32, 2**64),
  "checkpoint.every": (0, -1),
  "checkpoint.keep": (1, 0, -1),
  "evaluate.mc_samples": (-1,),
  "compare.seeds": (0, -1),
  "data.limit": (-1, 8),
  "data.resident_gib": (-1.0, "nan", "inf"),
  "data.subset.num_classes": (1, 11, -1),
  "data.subset.per_class": (-1, 1000),
  "data.subset.seed": (-1,),
  "data.flipped_labels.rate": (-0.1, 1.5, "nan"),
  "data.flipped_labels.seed": (-1,),
  "data.unlabelled.batch_size": (-1, 8),
  "translate.beam_size": (0, -1),
  "translate.length_penalty": (-1.0, "nan"),
  "optimizer.learning_rate": (0.0, -0.1, "nan", "inf"),
  "optimizer.clip_norm": (-1.0, "nan", "inf"),
  "optimizer.weight_decay.rate": (-1.0, "nan", "inf"),
  "optimizer.schedule.warmup_epochs": (-1.0, "nan", "inf"),
  "optimizer.schedule.step.factor": ("nan", "inf", -0.1),
  "optimizer.schedule.cosine.final": ("nan", -0.5, 2.0),
  "optimizer.schedule.noam.warmup_steps": (0, -1),
  "optimizer.schedule.noam.d_model": (0, -1),
  "optimizer.schedule.step.boundaries": ("(-1,)", "('a',)", "(nan,)"),
  "optimizer.adam.b1": (1.0, -0.1, "nan", 1.5),
  "optimizer.adam.b2": (1.0, -0.1, "nan", 1.5),
  "optimizer.adam.eps": ("nan", -1e-8, 1e38),
  "model.MLP.widths": ("(1000000000000,)", "(0,)", "(-1,)", "(1.5,)", "('a',)", "(None,)"),
  "model.MLP.dropout_rate": (-0.1, 1.5, "nan"),
  "model.MLP.dropout_rates": ("(0.1,)", "(0.1, 2.0)", "('a', 'b')"),
  "model.unbalance": (-1.0, "nan"),
  "regularizers.dual_learning_rate": (0.0, -1.0, "nan"),
  "augment.mean": ("(0.1, 0.2)", "('a',)", "(nan,)"),
  "augment.std": ("(0.0,)", "(-1.0,)", "(1.0, 1.0)"),
}


@kind
def numbers_out_of_range(random, folder):
  field = pick(random, NUMBERS)
  return ["--config", CONFIG, flag(field, pick(random, NUMBERS[field]))]


# By what has to be chosen: options that must be refused.
OPTIONS = {
  "augment.names=('pad_crop',)": {"augment.pad_crop.padding": (-1,)},
  "augment.names=('flip',)": {"augment.flip.rate": (-0.5, 2.0, "nan")},
  "augment.names=('translate',)": {"augment.translate.max_shift": (-1,)},
  "augment.names=('rotate',)": {"augment.rotate.max_degrees": (-1.0, "nan")},
  "augment.names=('cutout',)": {"augment.cutout.size": (-1,)},
  "augment.names=('scale',)": {"augment.scale.max_factor": (-1.0, 0.5, "nan")},
  "augment.names=('random_erasing',)": {
    "augment.random_erasing.area": ("(0.5, 0.1)", "(-1.0, 0.1)", "(0.1,)", "('a', 'b')"),
    "augment.random_erasing.rate": (-0.1, 1.5, "nan"),
    "augment.random_erasing.max_aspect": (0.5, "nan"),
  },
  "augment.names=('mixup',)": {"augment.mixup.alpha": (-1.0, "nan")},
  "augment.names=('cutmix',)": {"augment.cutmix.alpha": (-1.0, "nan")},
  "augment.names=('rand_augment',)": {
    "augment.rand_augment.magnitude": (-1.0, "nan", 1e9),
    "augment.rand_augment.num_ops": (-1,),
    "augment.rand_augment.operations": ("()", "('rotat',)", "(1,)"),
  },
  "noise.names=('gaussian_noise',)": {"noise.gaussian_noise.std": (-1.0, "nan", "inf")},
  "noise.names=('weight_noise',)": {"noise.weight_noise.std": (-1.0, "nan", "inf")},
  "noise.names=('dropconnect_params',)": {"noise.dropconnect_params.rate": (-0.1, 1.1, "nan")},
  "noise.names=('label_noise',)": {"noise.label_noise.rate": (-0.1, 1.1, "nan")},
  "regularizers.names=('l2',)": {
    "regularizers.l2.weight": (-1.0, "nan", "inf"),
    "regularizers.l2.limit": (-1.0, "nan"),
  },
  "regularizers.names=('elastic_net',)": {"regularizers.elastic_net.ratio": (-0.1, 1.5, "nan")},
  "regularizers.names=('gaussian_prior',)": {"regularizers.gaussian_prior.precision": (0.0, -1.0, "nan")},
  "regularizers.names=('laplace_prior',)": {"regularizers.laplace_prior.rate": (0.0, -1.0, "nan")},
  "regularizers.names=('tying',)": {
    "regularizers.tying.pairs": ("()", "(('a', 'b'),)", "('a',)", "(1,)", "(('*kernel', '*bias'),)")
  },
  "regularizers.names=('fgsm',)": {
    "regularizers.fgsm.eps": (-1.0, "nan"),
    "regularizers.fgsm.clip": ("(1.0,)", "(1.0, 0.0)", "('a', 'b')"),
  },
  "regularizers.names=('pgd',)": {
    "regularizers.pgd.num_steps": (-1,),
    "regularizers.pgd.norm": ("l3", "linff"),
    "regularizers.pgd.step_size": (-1.0, "nan"),
  },
  "regularizers.names=('virtual_adversarial',)": {
    "regularizers.virtual_adversarial.num_iters": (-1,),
    "regularizers.virtual_adversarial.eps": (-1.0, "nan"),
  },
  "regularizers.names=('pseudo_label',)": {"regularizers.pseudo_label.threshold": (-0.1, 1.5, "nan")},
  "regularizers.names=('fixmatch',)": {
    "regularizers.fixmatch.threshold": (-0.1, 1.5, "nan"),
    "regularizers.fixmatch.num_ops": (0, -1),
    "regularizers.fixmatch.magnitude": (-1.0, 11.0, "nan"),
    "regularizers.fixmatch.cutout_size": (-1,),
  },
  "regularizers.names=('kl_sparsity',)": {"regularizers.kl_sparsity.target": (-0.1, 1.0, 0.0, "nan")},
  "regularizers.names=('jacobian_penalty',)": {"regularizers.jacobian_penalty.num_projections": (0, -1)},
  "regularizers.names=('mean_teacher',)": {"average.name": ("none", "swa", "early_stopping")},
  "optimizer.constraints.names=('max_norm',)": {"optimizer.constraints.max_norm.limit": (-1.0, "nan", 0.0)},
  "optimizer.constraints.names=('min_max_norm',)": {
    "optimizer.constraints.min_max_norm.low": (-1.0, 9.0, "nan"),
    "optimizer.constraints.min_max_norm.high": (-1.0, 0.1, "nan"),
  },
  "optimizer.constraints.names=('prox_l1',)": {"optimizer.constraints.prox_l1.weight": (-1.0, "nan")},
  "optimizer.constraints.names=('prox_elastic_net',)": {
    "optimizer.constraints.prox_elastic_net.ratio": (-1.0, 1.5, "nan")
  },
  "average.name=early_stopping": {
    "average.early_stopping.patience": (0, -1),
    "average.early_stopping.min_delta": (-1.0, "nan"),
  },
  "average.name=swa": {"average.swa.start": (-0.1, 1.0, "nan"), "average.swa.every": (-1,)},
  "average.name=ema": {"average.ema.decay": (-0.1, 1.5, "nan")},
  "optimizer.name=sgd": {"optimizer.sgd.momentum": ("nan", "inf", "fast", -0.5, 1.5)},
  "optimizer.name=adamw": {"optimizer.adamw.b1": (1.0, -0.1), "optimizer.weight_decay.rate": (0.1,)},
  "optimizer.name=rmsprop": {"optimizer.rmsprop.decay": (1.0, -0.1), "optimizer.rmsprop.eps": ("nan",)},
  "optimizer.name=exact_adam": {"optimizer.exact_adam.b1": (1.0, -0.1, "nan")},
  "optimizer.name=p_norm_sgd": {"optimizer.p_norm_sgd.p": (0.5, "nan", -1.0)},
  "optimizer.name=sgld": {"optimizer.sgld.temperature": (-1.0, "nan")},
  "optimizer.name=path_sgd": {"optimizer.path_sgd.p": (0.5, "nan", -1.0)},
  "optimizer.name=trust_region": {
    "optimizer.trust_region.blocks": ("x", "globl"),
    "optimizer.trust_region.norm": ("l3", "x"),
    "optimizer.trust_region.numerator_decay": (-0.1, 1.5, "nan"),
  },
  "optimizer.name=adagrad": {"optimizer.adagrad.initial_accumulator_value": (-1.0, "nan")},
  "model.name=RNN": {
    "model.RNN.cell": ("lstmm", "x"),
    "model.RNN.width": (0, -1, 10**12),
    "model.RNN.weight_noise_per": ("stpe", "example"),
    "model.RNN.dropout_rate": (-0.1, 1.5, "nan"),
  },
  "model.name=MLP": {
    "model.MLP.initializer": ("glorott",),
    "model.MLP.input_dropout_rate": (-0.1, 1.5, "nan"),
    "model.MLP.dropout": ("dropuot",),
  },
  "model.name=CifarResNet": {"model.CifarResNet.depth": (0, 31, -1), "model.CifarResNet.width": (0, -1)},
  "optimizer.name=lion": {"optimizer.lion.b1": (-0.1, 1.5, "nan")},
  "optimizer.name=lars": {"optimizer.lars.trust_coefficient": (-1.0, 0.0, "nan")},
  "optimizer.name=adafactor": {"optimizer.adafactor.clipping_threshold": (-1.0, 0.0, "nan")},
  "optimizer.name=rprop": {"optimizer.rprop.min_step_size": (60.0, -1.0, "nan")},
}

assert {field for fields in (NUMBERS, *OPTIONS.values()) for field in fields} <= FIELDS.keys()


@kind
def options_out_of_range(random, folder):
  chosen = pick(random, OPTIONS)
  field = pick(random, OPTIONS[chosen])
  return ["--config", CONFIG, f"--config.{chosen}", flag(field, pick(random, OPTIONS[chosen][field]))]


METHOD_OPTIONS = {
  "dropmax": {
    "loss.temperature": (0.0, -1.0, "nan"),
    "loss.kl_weight": ("nan", "inf"),
    "loss.num_samples": (0, -1),
    "loss.class_reduction": ("summ", "max"),
    "head.stop_gradient": ("activation", "x"),
    "head.initializer": ("glorott", "x"),
    "predict.num_samples": (-1,),
  },
  "dropmax_qp": {"loss.temperature": (0.0, "nan"), "loss.num_samples": (0,)},
  "random_dropmax": {"loss.keep_prob": (-0.1, 1.5, "nan")},
  "sampled_softmax": {"loss.fraction": (0.0, -0.1, 1.5, "nan")},
  "label_smoothing": {"loss.smoothing": (-0.1, 1.5, "nan"), "loss.over": ("al", "x")},
  "focal": {"loss.gamma": (-1.0, 1e38, "nan", "inf")},
  "large_margin": {"loss.weight": (-1.0, "nan")},
  "group_softmax": {
    "loss.num_groups": (0, -1),
    "loss.kind": ("III", "1"),
    "loss.grouping": ("randm", "x"),
    "loss.form": ("x",),
    "predict.logit_scale": (0.0, "nan"),
  },
  "bi_tempered": {"loss.t1": (1.5, "nan", -1.0), "loss.t2": (0.5, "nan")},
  "cosface": {"loss.scale": (0.0, -1.0, "nan"), "loss.margin": (-1.0, "nan")},
  "arcface": {"loss.scale": (0.0, -1.0, "nan"), "loss.margin": (-1.0, "nan")},
  "confidence_penalty": {"loss.weight": (-1.0, "nan")},
  "logit_adjustment": {
    "loss.class_counts": ("()", "(1, 2)", "('a',)", "(0, 1, 1, 1, 1, 1, 1, 1, 1, 1)", "(nan,)"),
    "loss.strength": ("nan", -1.0),
  },
}
assert {
  f"method.{name}.{field}" for name, fields in METHOD_OPTIONS.items() for field in fields
} <= FIELDS.keys()


@kind
def method_options_out_of_range(random, folder):
  name = pick(random, METHOD_OPTIONS)
  field = pick(random, METHOD_OPTIONS[name])
  value = pick(random, METHOD_OPTIONS[name][field])
  return ["--config", CONFIG, flag("method.name", name), flag(f"method.{name}.{field}", value)]


COMBINATIONS = (
  ["model.name=Transformer"],
  ["parallel=pmap", "replicas_by=vmap"],
  ["parallel=pmap", "steps_per_dispatch=2"],
  ["data.unlabelled.batch_size=64"],
  ["data.subset.per_class=10", "data.unlabelled.batch_size=60", "batch_size=48"],
  ["data.subset.per_class=10", "data.unlabelled.batch_size=64", "batch_size=48", "accumulate=2"],
  ["data.subset.per_class=10", "data.unlabelled.batch_size=64", "batch_size=48", "augment.names=('mixup',)"],
  ["ensemble=2", "replicas=3"],
  ["ensemble=2", "replicas=2", "average.name=early_stopping"],
  ["model.name=LeNet", "model.unbalance=1.0"],
  ["model.unbalance=1.0", "model.MLP.widths=()"],
  ["model.unbalance=1.0", "method.name=arcface"],
  ["optimizer.schedule.name=noam", "optimizer.schedule.warmup_epochs=1.0"],
  ["optimizer.name=path_sgd", "method.name=dropmax"],
  ["optimizer.name=path_sgd", "model.name=CifarResNet"],
  ["model.name=CifarResNet", "average.name=ema"],
  ["batch_size=12"],
  ["batch_size=64", "accumulate=5"],
  ["job=dropmax_figures"],
  ["job=translate"],
  ["job=flatness", "flatness.workdir=x", "flatness.rows=('a: seed=1',)"],
  ["optimizer.name=adamw", "optimizer.weight_decay.rate=0.1"],
)


@kind
def combinations(random, folder):
  return ["--config", CONFIG, *(f"--config.{each}" for each in pick(random, COMBINATIONS))]


# Data files.


def write_idx(folder: Path, arrays=None, *, zipped=True) -> None:
  """Four idx files, whole."""
  for part, n in (("train", 40), ("t10k", 20)):
    for name, array in (
      ("images-idx3", np.zeros((n, 16, 16), np.uint8)),
      ("labels-idx1", (np.arange(n) % 4).astype(np.uint8)),
    ):
      array = (arrays or {}).get(f"{part}-{name}", array)
      content = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()
      file = folder / f"{part}-{name}-ubyte{'.gz' if zipped else ''}"
      file.write_bytes(gzip.compress(content, mtime=0) if zipped else content)


IDX = [
  "--config",
  CONFIG,
  "--config.data.name=idx",
  "--config.data.idx.num_validation=8",
  "--config.batch_size=8",
]


@kind
def idx_files(random, folder):
  zipped = bool(random.integers(2))
  label = (np.arange(40) % 4).astype(np.uint8)
  label[int(random.integers(40))] = random.integers(5, 256)
  strange = {
    "train-images-idx3": pick(random, (np.zeros((39, 16, 16), np.uint8), np.zeros((40, 8, 8), np.uint8))),
    "train-labels-idx1": pick(random, (label, np.zeros(0, np.uint8), np.zeros(41, np.uint8))),
    "t10k-images-idx3": pick(random, (np.zeros((19, 16, 16), np.uint8), np.zeros((20, 16, 15), np.uint8))),
    "t10k-labels-idx1": pick(random, (np.full(20, 4, np.uint8), np.zeros(21, np.uint8))),
  }
  wrong = pick(random, strange)
  damage = pick(random, ("another array", "flipped", "cut", "empty", "missing", "folder", "text", "longer"))
  write_idx(folder, {wrong: strange[wrong]} if damage == "another array" else None, zipped=zipped)
  file = folder / f"{wrong}-ubyte{'.gz' if zipped else ''}"
  content = file.read_bytes()
  if damage == "flipped":  # the header of the file, or the checksum at the end of gzip's
    at = len(content) - 8 + int(random.integers(4)) if zipped else int(random.integers(8))
    runs.flip(file, at, bit=int(random.integers(8)))
  elif damage == "cut":
    file.write_bytes(content[: int(random.integers(1, len(content)))])
  elif damage in ("empty", "text", "longer"):
    file.write_bytes({"empty": b"", "text": b"no data\n", "longer": content + b"\1"}[damage])
  elif damage in ("missing", "folder"):
    file.unlink()
    if damage == "folder":
      file.mkdir()
  return [*IDX, f"--config.data.idx.path={folder}"]


@kind
def idx_options(random, folder):
  write_idx(folder)
  option = pick(
    random,
    (
      *("num_validation=0", "num_validation=40", "num_validation=-1", "num_validation=1000"),
      *("num_train=-1", "num_train=33", "per_class=-1", "per_class=6", "path=/nowhere"),
    ),
  )
  return [*IDX, f"--config.data.idx.path={folder}", f"--config.data.idx.{option}"]


@kind
def npz_files(random, folder):
  n, m = 40, 16
  x, y = random.normal(size=(n, 3)).astype(np.float32), np.arange(n) % 4
  arrays = {"x_train": x, "y_train": y, "x_test": x[:m], "y_test": y[:m]}
  part = pick(random, ("train", "test"))
  old_x, old_y = arrays[f"x_{part}"], arrays[f"y_{part}"]
  at = int(random.integers(len(old_x)))
  spoilt = old_x.copy()
  spoilt[at, 1] = pick(random, (np.nan, np.inf, -np.inf))
  out = old_y.copy()
  out[at] = pick(random, (-1, 7, 10**6))
  arrays |= pick(
    random,
    (
      {f"x_{part}": spoilt},
      {f"y_{part}": out},
      {f"y_{part}": old_y.astype(np.float32)},
      {f"y_{part}": old_y[:, None]},
      {f"y_{part}": old_y[:-1]},
      {f"y_{part}": old_y.astype(str)},
      {f"y_{part}": old_y > 1} if part == "train" else {f"y_{part}": old_y.astype(np.complex64)},
      {f"x_{part}": old_x[:-1]},
      {f"x_{part}": old_x[:, 0]},
      {f"x_{part}": old_x[:, :0]},
      {f"x_{part}": old_x.astype(str)},
      {f"x_{part}": old_x.astype(np.complex64)},
      {f"x_{part}": old_x.astype(object)},
      {f"x_{part}": np.float32(3)},
      {f"x_{part}": np.zeros((len(old_x), 3), np.uint8)},
      {f"x_{part}": np.full(old_x.shape, 1e300)},
      {f"x_{part}": old_x[:0], f"y_{part}": old_y[:0]},
      {f"x_{part}": np.zeros((len(old_x), 4), np.float32)},
      {"x_val": x},
      {"y_val": y},
      {"x_val": x[:, :2], "y_val": y},
    ),
  )
  if random.integers(8) == 0:
    del arrays[pick(random, [name for name in arrays if not name.endswith("val")])]
  np.savez(folder / "mine.npz", **arrays)
  return ["--config", CONFIG, "--config.data.name=npz", f"--config.data.npz.path={folder}/mine.npz", *small()]


def small() -> Arguments:
  return ["--config.batch_size=8"]


@kind
def npz_damaged(random, folder):
  x, y = random.normal(size=(40, 3)).astype(np.float32), np.arange(40) % 4
  file = folder / "mine.npz"
  pick(random, (np.savez, np.savez_compressed))(file, x_train=x, y_train=y, x_test=-x, y_test=y)
  content = file.read_bytes()
  damage = pick(random, ("cut", "flipped", "empty", "text", "folder", "one array", "pickle", "options"))
  option = []
  if damage == "cut":
    file.write_bytes(content[: int(random.integers(1, len(content)))])
  elif damage == "flipped":  # within the data of the first array: beyond its header, before the next one's
    runs.flip(file, 200 + int(random.integers(64)), bit=int(random.integers(8)))
  elif damage in ("empty", "text"):
    file.write_bytes({"empty": b"", "text": b"x,y\n1,2\n"}[damage])
  elif damage == "folder":
    file.unlink()
    file.mkdir()
  elif damage == "one array":
    with open(file, "wb") as stream:
      np.save(stream, x)
  elif damage == "pickle":
    file.write_bytes(b"\x80\x04K\x03.")
  else:
    options = (
      "scale=0.0",
      "scale=-1.0",
      "scale=nan",
      "validation_fraction=0.0",
      "validation_fraction=1.5",
      "path=",
    )
    option = [f"--config.data.npz.{pick(random, options)}"]
  return ["--config", CONFIG, "--config.data.name=npz", f"--config.data.npz.path={file}", *option, *small()]


@kind
def tfds_sets(random, folder):
  name = pick(random, ("nothing_of_this_name", "mnist/x", "mnist:9.9.9", "", "../x", "a b"))
  (folder / "mnist" / "3.0.1").mkdir(parents=True)
  (folder / "mnist" / "3.0.1" / "dataset_info.json").write_text(pick(random, ("", "{", "[]", "{}")))
  return [
    "--config",
    CONFIG,
    "--config.data.name=tfds",
    f"--config.data.tfds.name={name}",
    f"--config.data.tfds.data_dir={folder}",
  ]


@kind
def parallel_texts(random, folder):
  toy_text.write(folder)
  file = folder / pick(random, [f"{name}.{language}" for name in toy_text.SIZES for language in ("en", "de")])
  lines = file.read_bytes().splitlines(keepends=True)
  options = []
  damage = pick(random, ("missing", "empty", "cut", "no text", "gzip", "folder", *["options"] * 4))
  if damage == "missing":
    file.unlink()
  elif damage == "empty":
    file.write_bytes(b"")
  elif damage == "cut":
    file.write_bytes(b"".join(lines[:-1]))
  elif damage == "no text":
    file.write_bytes(b"\xff\xfe" + b"".join(lines))
  elif damage == "gzip":
    file.rename(f"{file}.gz")
  elif damage == "folder":
    file.unlink()
    file.mkdir()
  else:
    parallel, transformer = "data.parallel_text", "model.Transformer"
    options = pick(
      random,
      (
        *([f"{parallel}.vocab_size={value}"] for value in (-1, 0, 3, 5)),
        *([f"{parallel}.source_length={value}"] for value in (-1, 0, 1, 2)),
        *([f"{parallel}.target_length={value}"] for value in (-1, 0, 1, 2)),
        *([f"{parallel}.num_examples={value}"] for value in (-1, 41)),
        *([f"{parallel}.{side}=fr"] for side in ("source", "target")),
        [f"{parallel}.source=de"],
        [f"{parallel}.path=/nowhere"],
        ["augment.names=('flip',)"],
        ["augment.mean=(0.5,)", "augment.std=(1.0,)"],
        ["noise.names=('gaussian_noise',)"],
        ["data.subset.per_class=1"],
        ["data.flipped_labels.rate=0.5"],
        ["model.name=LeNet"],
        [f"{transformer}.num_heads=0"],
        [f"{transformer}.num_layers=-1"],
        [f"{transformer}.d_model=7"],
        [f"{transformer}.d_model=0"],
        [f"{transformer}.dropout_rate=1.5"],
        ["optimizer.name=path_sgd"],
        ["regularizers.names=('fgsm',)"],
        ["job=dropmax_figures"],
      ),
    )
  fields = {**toy_text.TINY, "data.parallel_text.path": folder}
  return [
    *("--config", write_config(folder / "again.py")),
    *(flag(field, value) for field, value in fields.items()),
    *(f"--config.{option}" for option in options),
  ]


# Work directories.


def one_checkpoint(run: Path) -> Path:
  """Leaves the latest checkpoint only; its folder."""
  for step in good_steps(run):
    if step != STEP:
      shutil.rmtree(run / "checkpoints" / str(step))
      (run / "manifests" / f"{step}.json").unlink()
  return run / "checkpoints" / str(STEP)


def damage_file(random: Random, file: Path) -> None:
  how = pick(random, ("flipped", "cut", "missing", "longer", "folder"))
  content = file.read_bytes()
  if how == "flipped" and content:
    runs.flip(file, int(random.integers(len(content))), bit=int(random.integers(8)))
  elif how == "cut" and content:
    file.write_bytes(content[: int(random.integers(len(content)))])
  elif how == "longer" or (how in ("flipped", "cut") and not content):
    file.write_bytes(content + b"\0")
  else:
    file.unlink()
    if how == "folder":
      file.mkdir()


@kind_of_run
def damaged_checkpoints(random, folder, run):
  damage_file(random, pick(random, (f for f in sorted(one_checkpoint(run).rglob("*")) if f.is_file())))
  return pick(random, (evaluate(run), evaluate(run, "--config.evaluate.checkpoint=best")))


@kind_of_run
def damaged_manifests(random, folder, run):
  one_checkpoint(run)
  file = run / "manifests" / f"{STEP}.json"
  odd = json.dumps(sealed({"files": 3, "metrics": None})).encode()
  content = random.bytes(20), b"", b"{}", b"[]", b"3", b'{"files": 3, "metrics": null}', b"\xff\xfe", odd
  file.write_bytes(pick(random, content))
  if random.integers(4) == 0:
    file.unlink()
  return evaluate(run)


@kind_of_run
def half_written_checkpoints(random, folder, run):
  step = one_checkpoint(run)
  (run / "manifests" / f"{STEP}.json").unlink()
  for file in [f for f in sorted(step.rglob("*")) if f.is_file()]:
    if random.integers(2):
      file.unlink()
  if random.integers(2):
    step.rename(step.with_name(f"{STEP}.orbax-checkpoint-tmp-{int(random.integers(10**6))}"))
  return evaluate(run)


@kind_of_run
def damaged_files_of_the_run(random, folder, run):
  name = pick(random, ("config.json", "data.json", "results.json"))
  file = run / name
  content = file.read_bytes()
  whole = runs.table(file)
  how = pick(random, ("cut", "no table", "no text", "fields", "digit", "folder"))
  if how == "cut":
    file.write_bytes(content[: int(random.integers(len(content) - 2))])
  elif how == "no table":
    file.write_text(pick(random, ("[]", "3", "null", '"x"', "{]", "nan", "[" * 10**5)))
  elif how == "digit":
    positions = [i for i, byte in enumerate(content) if byte in b"12345678"]
    runs.flip(file, pick(random, positions))
  elif how == "no text":
    file.write_bytes(b"\xff\xfe" + content)
  elif how == "folder":
    file.unlink()
    file.mkdir()
  elif name == "config.json":
    field = pick(
      random, [field for field, value in whole.items() if field.split(".")[0] in ("optimizer", "seed")]
    )
    whole[pick(random, (field, "nothing.of_this_name", "optimizer.x", "model"))] = pick(
      random, ({"a": 1}, "x", None, -5)
    )
    file.write_text(json.dumps(whole))
    return evaluate(run)
  else:
    # What is left is a table, but not the one that was written.
    file.write_text(json.dumps({name: None for name in whole} if name == "data.json" else {}))
  return again(run) if name == "results.json" or random.integers(2) else evaluate(run)


@kind
def wrong_work_directories(random, folder):
  (folder / "file").write_text("")
  (folder / "dangling").symlink_to(folder / "nowhere" / "at" / "all")
  (folder / "loop").symlink_to(folder / "loop")
  other = folder / "other"
  (other / "checkpoints").mkdir(parents=True)
  (folder / "results" / "results.json").mkdir(parents=True)
  wheres = (
    "file",
    "file/sub",
    "dangling",
    "loop",
    "x" * 300,
    "other",
    "results",
    "missing",
    "loop/x",
  )
  where = pick(random, wheres)
  if where in ("missing", "dangling") or random.integers(3) == 0:
    return evaluate(folder / where)
  return ["--config", CONFIG, "--workdir", str(folder / where)]


OTHER_VALUES = {
  "seed": (1, 7),
  "batch_size": (16, 64),
  "eval_every": (2, 3),
  "eval_batch_size": (32, 128),
  "log_every": (2, 5),
  "replicas": (2, 3),
  "steps_per_dispatch": (2, 4),
  "accumulate": (2, 4),
  "precision": ("bfloat16",),
  "parallel": ("pmap",),
  "data.limit": (64, 127),
  "data.flipped_labels.rate": (0.1, 0.5),
  "data.bootstrap": (True,),
  "data.resident_gib": (0.0, 1.0),
  "model.MLP.widths": ("(9,)", "(8, 8)"),
  "model.MLP.dropout_rate": (0.3, 0.0),
  "method.name": ("softmax", "focal"),
  "method.dropmax.loss.kl_weight": (0.5, 2.0),
  "optimizer.name": ("sgd", "rmsprop"),
  "optimizer.learning_rate": (0.02, 0.001),
  "optimizer.adam.b1": (0.8, 0.5),
  "optimizer.clip_norm": (1.0, 5.0),
  "optimizer.schedule.name": ("cosine",),
  "optimizer.weight_decay.rate": (1e-3,),
  "regularizers.names": ("('l2',)", "('r_drop',)"),
  "noise.names": ("('gaussian_noise',)",),
  "average.name": ("swa", "ema"),
  "checkpoint.keep": (3, 5),
  "checkpoint.every": (2, 3),
  "checkpoint.best": ("val/nll",),
  "evaluate.mc_samples": (2,),
  "epochs": (1, 3, 5),
}


@kind_of_run
def fields_changed_on_resume(random, folder, run):
  field = pick(random, OTHER_VALUES)
  value = flag(field, pick(random, OTHER_VALUES[field]))
  train_on = field == "epochs" or random.integers(2)
  if not train_on and field in ("eval_batch_size",):  # an evaluation may have another
    train_on = True
  return again(run, value) if train_on else [*again(run, value), "--config.job=evaluate"]


@kind_of_run
def pretrained_backbones(random, folder, run):
  damage = pick(random, ("other", "missing", "file", "replica", "checkpoint", "damaged", "data", "config"))
  fields = {"pretrained.workdir": str(run)}
  if damage == "other":
    fields["model.MLP.widths"] = pick(random, ("(9,)", "(8, 8)", "()"))
  elif damage == "missing":
    fields["pretrained.workdir"] = str(folder / "nowhere")
  elif damage == "file":
    (folder / "file").write_text("")
    fields["pretrained.workdir"] = str(folder / "file")
  elif damage == "replica":
    fields["pretrained.replica"] = pick(random, (-1, 1, 100))
  elif damage == "checkpoint":
    fields["pretrained.checkpoint"] = pick(random, ("newest", "24", ""))
  elif damage == "damaged":
    damage_file(random, pick(random, (f for f in sorted(one_checkpoint(run).rglob("*")) if f.is_file())))
  else:
    (run / f"{damage}.json").write_text(pick(random, ("", "{", "{}", "[]")))
  return ["--config", write_config(folder / "again.py"), *tiny(**fields), "--workdir", str(folder / "new")]


@kind
def comparisons(random, folder):
  name = pick(random, METHODS)
  wrong = misspelt(random, name, METHODS)
  rows = (
    *(f"('{wrong}',)", f"('{name}', '{name}')", "()", "('',)", "(1,)", "('a/b: seed=1',)", "(': seed=1',)"),
    *("('a: seed',)", "('a: seed=',)", "('a: =1',)", "('a: sed=1',)", "('a: seed=x',)", "('a: seed=1.5',)"),
    *("('a: seed=-1',)", "('a: batch_size=7',)", "('a: optimizer.name=adm',)", "('a: model.MLP.widths=8',)"),
    *("('a: seed=1', 'a: seed=2')", "('a: data.limit=4',)", "('a: job=evaluate epochs=0',)", "(('a',),)"),
  )
  grids = (
    *(
      "('seed',)",
      "('seed=',)",
      "('sed=1',)",
      "('b: seed=1,2',)",
      "('optimizer.learning_rate=fast',)",
      "(1,)",
    ),
    *("('optimizer.learning_rate=0.1,-1',)", "('batch_size=32,7',)", "('=1',)", "('seed=1,,2',)", "('',)"),
  )
  which = (flag("compare.rows", pick(random, rows)), flag("compare.grid", pick(random, grids)))
  return ["--config", CONFIG, "--config.job=compare", "--workdir", str(folder / "new"), pick(random, which)]


@kind_of_run
def flatness_fields(random, folder, run):
  options = (
    *(["analyses=('profil',)"], ["analyses=(1,)"], ["analyses=('alignment',)"], ["where=('nothing',)"]),
    *(
      ["rows=('a: sed=1',)"],
      ["rows=('a',)"],
      ["rows=('a: seed=1', 'a: seed=2')"],
      ["rows=('a: epochs=0',)"],
    ),
    *(["workdir=/nowhere"], [f"workdir={run}", "rows=('a: seed=1',)"], [f"workdir={run}", "replica=1"]),
    *(
      [f"workdir={run}", "replica=-1"],
      [f"workdir={run}", "checkpoint=newest"],
      ["examples=-1"],
      ["seed=-1"],
    ),
    *(["profile.points=0"], ["profile.points=-3"], ["profile.directions=0"], ["profile.directions=-1"]),
    *(["profile.reach=nan"], ["profile.reach=-1.0"], ["profile.granularity=lyer"]),
    *(["analyses=('variance_flatness',)", "variance_flatness.samples=0"],),
    *(["analyses=('variance_flatness',)", "variance_flatness.factors=(0.5,)"],),
    *(["analyses=('variance_flatness',)", "variance_flatness.factors=('a',)"],),
    *(["analyses=('variance_flatness',)", "variance_flatness.tolerance=nan"],),
    *(["analyses=('variance_flatness',)", "variance_flatness.directions=-1"],),
    *(["analyses=('projected_variance',)", "projected_variance.samples=-1"],),
    *(["analyses=('projected_variance',)", "projected_variance.eigenpairs=-1"],),
    *(["analyses=('alignment',)", "alignment.noises=('a: sed=1',)"],),
    *(["analyses=('alignment',)", "alignment.noises=('a: seed=1',)", "alignment.num_masks=0"],),
  )
  chosen = pick(random, options)
  return [
    *("--config", write_config(folder / "again.py"), *tiny(), "--config.job=flatness"),
    *("--workdir", str(folder / "new")),
    *(f"--config.flatness.{option}" for option in chosen),
  ]

"""Softmax, random DropMax and DropMax on the whole of CIFAR-10: the recipe of `dropmax_cifar10`, shortened.

Command: python run.py --config configs/compare_dropmax_cifar10.py
         (`:small` and `:remedies` are for a set of 4000 images, see below)
Source: Lee et al., `DropMax: Adaptive Variational Softmax`, 2018, its CIFAR-10 column, whose figures are not
confirmed; appendix C but for the network, the length and the clipping.

All rows have the same network, schedule, clipping and seeds, and differences are taken seed by seed. The
validation split chooses; the test split is measured once, after the last epoch.

Without an argument: ResNet-8, 30 epochs with the drops of the rate at the appendix's fractions of the run.
  9 runs of 10 500 steps, 40 minutes each on one core.
`small`: ResNet-20, 20 epochs (560 steps) on 3600 images, 400 for validation; give a set of 4000 images, or
  --config.data.tfds.train='train[:8%]'. --config.epochs=60 brings the methods nearer to their ends.
`remedies`: on the same, DropMax alone, with each remedy for the collapse of its first steps.
"""

from configs.dropmax_cifar10 import get_config as dropmax_cifar10
from jaxreg.train import Config
from jaxreg.train.errors import unknown

VARIANTS = ("whole", "small", "remedies")
WARMUP = {"optimizer.schedule.warmup_epochs": 1.0}
REMEDIES = {
  "none": {"optimizer.clip_norm": 0.0},
  "clip_norm 0.3": {"optimizer.clip_norm": 0.3},
  "clip_norm 1": {"optimizer.clip_norm": 1.0},
  "clip_norm 3": {"optimizer.clip_norm": 3.0},
  "clip_norm 1, warm-up over 1 epoch": {"optimizer.clip_norm": 1.0, **WARMUP},
  "warm-up over 1 epoch": {"optimizer.clip_norm": 0.0, **WARMUP},
}


def get_config(variant: str = "whole") -> Config:
  if variant not in VARIANTS:
    raise unknown("argument", variant, VARIANTS)
  config = dropmax_cifar10()
  config.job = "compare"
  config.compare.seeds = 3
  methods = ("softmax", "dropmax") if variant == "small" else ("softmax", "random_dropmax", "dropmax")
  config.compare.rows = {name: {"method.name": name} for name in methods}
  config.model.CifarResNet.depth = 8
  config.epochs = 30
  config.optimizer.schedule.step.boundaries = (0.4, 0.6, 0.8)
  config.optimizer.schedule.step.relative = True
  if variant != "whole":
    config.model.CifarResNet.depth = 20
    config.epochs = 20
    config.eval_every = config.checkpoint.every = 10
  if variant == "remedies":
    config.compare.rows = REMEDIES
  return config

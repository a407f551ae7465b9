"""Eight regularizers beside none on the fast CIFAR-10 recipe, three seeds each.

Command: python run.py --config configs/compare_fast_cifar10.py
Source: Jordan, `94% on CIFAR-10 in 3.29 Seconds on a Single GPU`, 2024, for the bed (see `fast_cifar10`);
the rows and their strengths are ours, and not searched.

Differences are taken seed by seed. Pad-and-crop and flips are in every row. There are 27 runs, each as
long as a run of `fast_cifar10`; SAM's steps take twice as long. Only the first steps of each row were run.
`small`: 3600 images for training and 400 for validation, 20 epochs; give a set of 4000 images, or
  --config.data.tfds.train='train[:8%]'.
"""

from configs.fast_cifar10 import get_config as fast_cifar10
from jaxreg.train import Config
from jaxreg.train.errors import unknown

VARIANTS = ("whole", "small")
ROWS = {
  "none": {},
  "label smoothing": {"method.name": "label_smoothing", "method.label_smoothing.loss.smoothing": 0.1},
  "confidence penalty": {"method.name": "confidence_penalty"},
  "dropout of maps": {"model.Airbench.dropout": "spatial_dropout", "model.Airbench.dropout_rate": 0.1},
  "DropBlock": {"model.Airbench.dropout": "drop_block", "model.Airbench.dropout_rate": 0.1},
  "cutout": {"augment.names": ("pad_crop", "flip", "cutout"), "augment.cutout.size": 8},
  "mixup": {"augment.names": ("pad_crop", "flip", "mixup"), "augment.mixup.alpha": 0.2},
  "SAM": {"optimizer.name": "sam", "optimizer.sam.rho": 0.05},
  "DropMax": {"method.name": "dropmax", "optimizer.clip_norm": 1.0},
}


def get_config(variant: str = "whole") -> Config:
  if variant not in VARIANTS:
    raise unknown("argument", variant, VARIANTS)
  config = fast_cifar10()
  config.job = "compare"
  config.method.name = "softmax"
  config.data.validation_fraction = 0.1
  config.compare.seeds = 3
  config.compare.rows = ROWS
  if variant == "small":
    config.epochs = 20
    config.eval_every = config.checkpoint.every = 10
  return config

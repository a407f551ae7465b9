"""Softmax and group softmax on subsets of MNIST, by classes and images per class: an MLP, five seeds.

Command: python run.py --config configs/compare_group_softmax_subsets.py:classes2 --config.data.idx.path=DIR
         (classes2, classes5, classes10: so many classes with 100 training images each;
         images10, images30, images100, images300: ten classes with so many)
Source: Kobayashi, `Group Softmax Loss with Discriminative Feature Grouping`, 2021, supplement, Table B.2,
in small: there subsets of ImageNet, and 15.4, 14.6 and 13.0 % error (softmax, type I, type II) with 100
classes, 23.5, 23.3 and 24.1 % with 1000; 49.3, 47.6 and 46.8 % with 100 images a class.

2000 steps of 50 images for all (in whole epochs: 1980 for `images300`, 1998 for `images30`), 8 groups, no
search; type II predicts with its logits divided by 8. DIR has the four idx files. Two minutes on one core.
"""

from configs.compare_group_softmax import row
from jaxreg.train import Config, base_config
from jaxreg.train.errors import unknown

CLASSES = {"classes2": 2, "classes5": 5, "classes10": 10}
IMAGES = {"images10": 10, "images30": 30, "images100": 100, "images300": 300}
VARIANTS = (*CLASSES, *IMAGES)


def get_config(variant: str = "classes10") -> Config:
  if variant not in {**CLASSES, **IMAGES}:
    raise unknown("argument", variant, {**CLASSES, **IMAGES})
  config = base_config()
  config.data.name = "idx"
  config.data.subset.num_classes = CLASSES.get(variant, 10)
  config.data.subset.per_class = IMAGES.get(variant, 100)
  config.model.name = "MLP"
  config.model.MLP.widths = (256, 256)
  config.method.name = "group_softmax"
  config.optimizer.name = "adam"
  config.optimizer.learning_rate = 1e-3
  config.optimizer.schedule.name = "cosine"
  config.optimizer.weight_decay.rate = 1e-4
  config.batch_size = 50
  steps_per_epoch = config.data.subset.num_classes * config.data.subset.per_class // config.batch_size
  config.epochs = 2000 // steps_per_epoch
  config.eval_every = config.checkpoint.every = max(config.epochs // 5, 1)
  config.job = "compare"
  config.compare.seeds = 5
  config.compare.rows = {
    "softmax": {"method.name": "softmax"},
    **row("I", "discriminative", 8),
    **row("II", "discriminative", 8),
  }
  return config

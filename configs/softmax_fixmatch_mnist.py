"""FixMatch on MNIST with 100 labels: a weakly moved image teaches its strongly changed view.

Command: python run.py --config configs/softmax_fixmatch_mnist.py --config.data.idx.path=DIR
         python run.py --config configs/softmax_fixmatch_mnist.py:labels_only --config.data.idx.path=DIR
Source: Sohn et al., `FixMatch: Simplifying Semi-Supervised Learning with Consistency and Confidence`, 2020.

Ten images of each class have their label, and 128 of the other images join each batch without. The network is
LeNet, and the steps are 2,000: far fewer than the source's, which has no MNIST.
"""

from configs.softmax_digits import get_config as softmax_digits
from jaxreg.train import Config
from jaxreg.train.errors import unknown

VARIANTS = ("fixmatch", "labels_only")


def get_config(name: str = "fixmatch") -> Config:
  if name not in VARIANTS:
    raise unknown("argument", name, VARIANTS)
  config = softmax_digits()
  config.data.name = "idx"
  config.data.subset.num_classes = config.data.subset.per_class = 10
  config.model.name = "LeNet"
  config.optimizer.weight_decay.rate = 5e-4
  config.optimizer.schedule.name = "cosine"
  config.augment.names = ("translate",)
  config.augment.translate.max_shift = 2
  config.batch_size = 50
  config.epochs = 1000
  config.eval_every = config.checkpoint.every = 100
  if name == "fixmatch":
    config.data.unlabelled.batch_size = 128
    config.regularizers.names = ("fixmatch",)
    config.regularizers.fixmatch.magnitude = 6.0
    config.regularizers.fixmatch.cutout_size = 8
  return config

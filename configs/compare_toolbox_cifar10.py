"""Nineteen regularizers side by side on 4000 images of CIFAR-10, three seeds, at equal cost.

Command: python run.py --config configs/compare_toolbox_cifar10.py
         with --config.data.tfds.train='train[:8%]' --config.data.tfds.test='test[:2000]'
Source: ours; the rows and their strengths are those of `compare_toolbox_mnist1k`, but for the last.

An MLP (256, 256), Adam, 30 epochs of 3600 training images, 400 for validation. Each strength is chosen among
three, if there is one, from one seed, by the error on the validation split; then three seeds are trained in
one program. A step of R-Drop or SAM passes twice through the network, so they have 15 epochs.
"""

from configs.compare_toolbox_mnist1k import PASSES, ROWS
from configs.dropmax_cifar10 import get_config as dropmax_cifar10
from jaxreg.train import Config

CHOSEN = (
  *("none", "L2", "decoupled weight decay", "cautious weight decay", "fixed norm", "orthogonality"),
  *("dropout", "R-Drop", "label smoothing", "confidence penalty", "large margin", "z-loss"),
  *("group softmax", "DropMax", "covariance of the activities", "mixup", "CutMix", "SAM", "EMA"),
)


def get_config() -> Config:
  config = dropmax_cifar10()
  config.job = "compare"
  config.compare.seeds = 3
  config.method.name = "softmax"
  config.model.name = "MLP"
  config.model.MLP.widths = (256, 256)
  config.augment.names = ()
  config.optimizer.name = "adam"
  config.optimizer.learning_rate = 1e-3
  config.optimizer.clip_norm = 0.0
  config.optimizer.schedule.name = "cosine"
  config.optimizer.weight_decay.rate = 0.0
  config.epochs = 30
  config.eval_every = config.checkpoint.every = 15
  config.compare.rows = {label: dict(ROWS[label][0]) for label in CHOSEN}
  config.compare.grid = {label: ROWS[label][1] for label in CHOSEN if ROWS[label][1]}
  config.compare.rows["flips and shifts"] = {"augment.names": ("pad_crop", "flip")}
  for label in PASSES.keys() & config.compare.rows.keys():
    config.compare.rows[label]["epochs"] = config.epochs // PASSES[label]
  return config

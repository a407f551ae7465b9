"""Softmax and DropMax on the whole of CIFAR-100: the comparison of `compare_dropmax_cifar10`, halved.

Command: python run.py --config configs/compare_dropmax_cifar100.py
Source: Lee et al., `DropMax: Adaptive Variational Softmax`, 2018, its CIFAR-100 column (softmax 30.60 %,
DropMax 29.87 %, with a network that it does not state); appendix C but for the network, the length and the
clipping.

ResNet-8, 15 epochs with the drops of the rate at the appendix's fractions of the run; three seeds, an hour
each row on one core. The third row is ours: with 100 classes the entropy and the auxiliary loss, sums over
the classes, outweigh the likelihood; it takes their means.
"""

from configs.compare_dropmax_cifar10 import get_config as compare_dropmax_cifar10
from jaxreg.train import Config


def get_config() -> Config:
  config = compare_dropmax_cifar10()
  config.data.tfds.name = "cifar100"
  config.augment.mean = (0.5071, 0.4865, 0.4409)
  config.augment.std = (0.2673, 0.2564, 0.2762)
  config.epochs = 15
  config.compare.rows = {
    "softmax": {"method.name": "softmax"},
    "dropmax": {"method.name": "dropmax"},
    "dropmax, means": {"method.name": "dropmax", "method.dropmax.loss.class_reduction": "mean"},
    "random_dropmax": {"method.name": "random_dropmax"},
  }
  return config

"""DropMax on CIFAR-100: the set-up of `dropmax_cifar10`.

Command: python run.py --config configs/dropmax_cifar100.py
         (the softmax baseline: --config.method.name=softmax; ResNet-34: --config.model.name=ResNet)
Source: Lee et al., `DropMax: Adaptive Variational Softmax`, 2018, appendix C.

The paper's test error (confirmed by its poster): softmax 30.60 %, DropMax 29.87 %, with a network, an
augmentation and a preprocessing that it does not state. The clipping is ours, as there: without it the first
steps collapse with 100 classes too.
"""

from configs.dropmax_cifar10 import get_config as dropmax_cifar10
from jaxreg.train import Config


def get_config() -> Config:
  config = dropmax_cifar10()
  config.data.tfds.name = "cifar100"
  config.augment.mean = (0.5071, 0.4865, 0.4409)
  config.augment.std = (0.2673, 0.2564, 0.2762)
  return config

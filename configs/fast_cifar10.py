"""CIFAR-10 in minutes on a CPU: a bed for experiments, with a small network that pools early.

Command: python run.py --config configs/fast_cifar10.py
         (any regularizer by its flag: --config.regularizers.names="('z_loss',)")
Source: Jordan, `94% on CIFAR-10 in 3.29 Seconds on a Single GPU`, 2024, in its spirit: its network and start
(half as wide in the second block), shifts by 2 and flips, Nesterov momentum, a strong weight decay, and a
learning rate that rises and falls.

Ours is plainer: batches of 128, a cosine instead of two lines, weight decay on the kernels only, and none of
the source's label smoothing, averaging and test-time crops, so that the effect of a regularizer can be seen.
`compare_fast_cifar10` compares eight.

One run on 45 000 images, stored as JPEG of quality 75 with halved colours: 87.3 % test accuracy (training
accuracy 91.7 %), at 250 images a second on one core, which makes 36 minutes. The source's recipe reaches 94 %
on the images as published.
"""

from jaxreg.train import Config, base_config


def get_config() -> Config:
  config = base_config()
  config.data.name = "tfds"
  config.data.tfds.name = "cifar10"
  config.augment.names = ("pad_crop", "flip")
  config.augment.pad_crop.padding = 2
  config.augment.mean = (0.4914, 0.4822, 0.4465)
  config.augment.std = (0.2470, 0.2435, 0.2616)
  config.model.name = "Airbench"
  config.model.Airbench.widths = (64, 128, 256)
  config.model.Airbench.whitened = True
  config.method.name = "softmax"
  config.optimizer.name = "sgd"
  config.optimizer.sgd.momentum = 0.9
  config.optimizer.sgd.nesterov = True
  config.optimizer.learning_rate = 0.1
  config.optimizer.schedule.name = "cosine"
  config.optimizer.schedule.warmup_epochs = 2.0
  config.optimizer.weight_decay.rate = 2e-3
  config.batch_size = 128
  config.epochs = 12
  return config

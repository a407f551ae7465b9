"""ResNet-20 on CIFAR-100 with dropout, of the paper on dropout's noise and flat minima.

Command: python run.py --config configs/flatness_resnet20_cifar100.py
Figures: python -m papers.flatness resnet20_cifar100
         and with --cifar10
         trains it with dropout and without, and draws figures 1c, 2 and 3
Source: Zhang, Zhou and Xu, `Dropout in training neural networks: flatness of solution and noise structure`,
2021, appendix A: gradient descent on all 50000 images for 1200 epochs, learning rate 0.01, units kept with
probability 0.8 after the convolutions. The position of dropout, before BatchNorm, is ours: the source does
not say.

The whole set is one batch, computed in 50 parts with summed gradients: BatchNorm's moments are per part.
Meant for an accelerator, and not run yet.
`cifar10`: the first 4000 images of CIFAR-10, mini-batches of 125 and momentum, 40 epochs. For a CPU: 2 CPU
hours with its figures.
"""

from jaxreg.train import Config, base_config

VARIANTS = ("paper", "cifar10")


def get_config(variant: str = "paper") -> Config:
  if variant not in VARIANTS:
    raise ValueError(f"argument must be {' or '.join(VARIANTS)}, got {variant!r}")
  config = base_config()
  config.data.name = "tfds"
  config.data.tfds.name = "cifar100" if variant == "paper" else "cifar10"
  config.data.tfds.order = "id"
  config.data.tfds.val = "test"  # all training images are for training
  config.model.name = "CifarResNet"
  config.model.CifarResNet.depth = 20
  config.model.CifarResNet.dropout_rate = 0.2
  config.method.name = "softmax"
  config.optimizer.name = "sgd"
  if variant == "paper":
    config.batch_size, config.accumulate, config.epochs = 50000, 50, 1200
    config.optimizer.learning_rate = 0.01
    config.eval_every = config.checkpoint.every = 100
  else:
    config.data.subset.num_train = 4000
    config.batch_size, config.epochs = 125, 40
    config.optimizer.learning_rate = 0.05
    config.optimizer.sgd.momentum = 0.9
    config.eval_every = config.checkpoint.every = 320
  return config

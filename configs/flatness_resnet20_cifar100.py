"""Figures 1c, 2 and 3 of the paper on flat minima: ResNet-20, with dropout and without.

Command: python run.py --config configs/flatness_resnet20_cifar100.py
Source: Zhang, Zhou and Xu, `Dropout in training neural networks: flatness of solution and noise structure`,
2021, appendix A: gradient descent on all 50000 images for 1200 epochs, learning rate 0.01, units kept with
probability 0.8 after the convolutions; variance and curvature in the first convolution of the first block.

The whole set is one batch, computed in 50 parts with summed gradients: BatchNorm's moments are per part.
Meant for an accelerator, and not run yet. The analyses are smaller than the source's: profiles, intervals and
eigenpairs belong to the first 2000 training images, and figure 3 has the 50 largest of 2304 eigenpairs, by
Lanczos. For all of them set `flatness.examples=0` and `flatness.projected_variance.eigenpairs=0`.
`cifar10`: figures 1c, 2 and 3 on the first 4000 images of CIFAR-10, a real set of ours where the source has
CIFAR-100. The training has mini-batches of 125 and momentum; 40 epochs. Figure 3 has all 2304 eigenpairs of
the Hessian over the 4000 images, and the source's 1000 samples: of the trajectory by mini-batches, and of the
mean gradient of 32 parts of 125 images. Figure 2 has 30 components. For a CPU: 2 CPU hours; figures in
docs/flatness.md.
`small_cifar10`: the first 100 images of CIFAR-10, 150 steps of gradient descent with
momentum, 100 samples of each kind, 50 eigenpairs by Lanczos, for a CPU. The position of dropout, before
BatchNorm, is ours: the source does not say.
"""

from jaxreg.train import Config, base_config

VARIANTS = ("paper", "cifar10", "small_cifar10")


def get_config(variant: str = "paper") -> Config:
  if variant not in VARIANTS:
    raise ValueError(f"argument must be {', '.join(VARIANTS)}, got {variant!r}")
  config = base_config()
  config.job = "flatness"
  config.data.name = "tfds"
  config.data.tfds.name = "cifar100" if variant == "paper" else "cifar10"
  config.data.tfds.order = "id"
  config.model.name = "CifarResNet"
  config.model.CifarResNet.depth = 20
  config.method.name = "softmax"
  config.optimizer.name = "sgd"
  config.flatness.mask = ("backbone/stage0_block0/Conv_0/kernel",)
  config.flatness.profile.granularity = "filter"
  if variant == "paper":
    config.data.tfds.val = "test"  # all training images are for training
    config.batch_size, config.accumulate, config.epochs = 50000, 50, 1200
    config.optimizer.learning_rate = 0.01
    config.eval_every = config.checkpoint.every = 100
    config.flatness.examples = 2000
    config.flatness.parts = 2  # of 1000 images, as in the training
  elif variant == "cifar10":
    config.data.tfds.num_train, config.data.tfds.val = 4000, "test"
    config.batch_size, config.epochs = 125, 40
    config.optimizer.learning_rate = 0.05
    config.optimizer.sgd.momentum = 0.9
    config.eval_every = config.checkpoint.every = 320
    config.flatness.parts = 32
    config.flatness.profile.points = 17
    config.flatness.variance_flatness.samples = 1000
    config.flatness.variance_flatness.directions = 30
  else:
    config.data.tfds.num_train = 100
    config.batch_size, config.epochs = 100, 150
    config.optimizer.learning_rate = 0.05
    config.optimizer.sgd.momentum = 0.9
    config.eval_every = config.checkpoint.every = 150
    config.flatness.variance_flatness.samples = 100
    config.flatness.variance_flatness.directions = 20
    config.flatness.projected_variance.samples = 100
  if variant != "cifar10":
    config.flatness.projected_variance.eigenpairs = 50
  both = {"flatness.analyses": ("profile", "variance_flatness", "projected_variance")}
  config.flatness.rows = {"no dropout": {}, "keep 0.8": {"model.CifarResNet.dropout_rate": 0.2, **both}}
  return config

"""VGG-9 on the first 2048 images of CIFAR-10, of the paper on dropout's noise and flat minima.

Command: python run.py --config configs/flatness_vgg9_cifar10.py
Figures: python -m papers.flatness vgg9_cifar10
         trains it with dropout and without, and draws figure 1b
Source: Zhang, Zhou and Xu, `Dropout in training neural networks: flatness of solution and noise structure`,
2021, appendix A: gradient descent with Nesterov momentum, 300 epochs, learning rate 0.1 divided by 10 at
epochs 150, 225 and 275, units kept with probability 0.8 after each pooling layer.

As in the source, every step uses all 2048 images, and so do BatchNorm's moments. Momentum 0.9, VGG-9's layout
with its BatchNorm (see `models.VGG9`) and the warm-up over 50 epochs are ours: with a rate of 0.1 from the
first step the loss explodes.
On 2 cores a step takes 20 s, or 10 s with 64 devices of 32 images each:
JAX_NUM_CPU_DEVICES=64 MALLOC_ARENA_TEST=8 before the command. Without the second a step takes 7 s, but the
memory that the run keeps grows to 24 GB.
"""

from jaxreg.train import Config, base_config


def get_config() -> Config:
  config = base_config()
  config.data.name = "tfds"
  config.data.tfds.name = "cifar10"
  config.data.tfds.order = "id"
  config.data.subset.num_train = 2048
  config.model.name = "VGG9"
  config.model.VGG9.dropout_rate = 0.2
  config.method.name = "softmax"
  config.optimizer.name = "sgd"
  config.optimizer.sgd.momentum = 0.9
  config.optimizer.sgd.nesterov = True
  config.optimizer.learning_rate = 0.1
  config.optimizer.schedule.name = "step"
  config.optimizer.schedule.step.relative = True
  config.optimizer.schedule.step.boundaries = (150 / 300, 225 / 300, 275 / 300)
  config.optimizer.schedule.warmup_epochs = 50.0
  config.batch_size, config.epochs = 2048, 300
  config.eval_every = config.checkpoint.every = 60
  return config

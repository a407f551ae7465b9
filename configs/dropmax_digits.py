"""DropMax on scikit-learn's 8x8 digits, with an MLP: the default, no files needed.

Command: python run.py
Source: Lee et al., `DropMax: Adaptive Variational Softmax`, 2018; the data set and the network are ours.
Ours: `compare_dropmax_digits`, in papers/dropmax. Half a minute on 2 cores.
"""

from jaxreg.train import Config, base_config


def get_config() -> Config:
  config = base_config()
  config.data.name = "digits"
  config.model.name = "MLP"
  config.model.MLP.widths = (256, 256)
  config.method.name = "dropmax"
  config.optimizer.name = "adam"
  config.optimizer.learning_rate = 1e-3
  config.optimizer.schedule.name = "cosine"
  config.optimizer.weight_decay.rate = 1e-4
  config.optimizer.weight_decay.mask = "no_branches"
  config.batch_size = 64
  config.epochs = 100
  config.checkpoint.every = 10  # an epoch takes less time than a save
  return config

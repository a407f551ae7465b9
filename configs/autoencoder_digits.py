"""An autoencoder of scikit-learn's digits, whose features a linear classifier reads.

Command: python run.py --config configs/autoencoder_digits.py:denoising
Source: Vincent et al., `Extracting and Composing Robust Features with Denoising Autoencoders`, 2008.

`plain` and `denoising` (Gaussian noise of 0.3 on the inputs) learn to reconstruct the clean inputs alone: the
classifier's gradient stops at the features. `semi_supervised` learns both from ten labelled images a class,
and to reconstruct from all others.

A run takes well under a minute.
"""

from configs.softmax_digits import get_config as softmax_digits
from jaxreg.train import Config
from jaxreg.train.errors import unknown

VARIANTS = ("denoising", "plain", "semi_supervised")


def get_config(name: str = "denoising") -> Config:
  if name not in VARIANTS:
    raise unknown("argument", name, VARIANTS)
  config = softmax_digits()
  config.method.name = "autoencoder"
  config.model.MLP.widths = (64,)
  config.model.MLP.dropout_rate = 0.0
  config.optimizer.weight_decay.rate = 0.0
  config.epochs = 150
  config.eval_every = config.checkpoint.every = 10
  config.optimizer.learning_rate = 3e-3
  config.regularizers.names = ("reconstruction",)
  if name == "denoising":
    config.noise.names = ("gaussian_noise",)
    config.noise.gaussian_noise.std = 0.3
  if name != "semi_supervised":
    config.method.autoencoder.head.probe = True
    return config
  config.regularizers.reconstruction.weight = 0.1
  config.data.subset.per_class = 10
  config.data.unlabelled.batch_size = 64
  config.batch_size = 48
  config.epochs = 300
  config.eval_every = config.checkpoint.every = 100
  return config

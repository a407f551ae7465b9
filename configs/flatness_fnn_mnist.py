"""The fully connected network on MNIST of the paper on dropout's noise and flat minima.

Command: python run.py --config configs/flatness_fnn_mnist.py --config.data.idx.path=DIR
Figures: python -m papers.flatness fnn_mnist --config.data.idx.path=DIR
         and with --profile, --one-setting, --first-steps or --alignment
         trains it with other dropout rates, learning rates and seeds, and draws figures 1a, 2, 3 and 4
Source: Zhang, Zhou and Xu, `Dropout in training neural networks: flatness of solution and noise structure`,
2021, appendix A. Its "dropout rate" is the probability of keeping a unit.

784-50-50-10 on the first 10000 training images, gradient descent on all of them, dropout after the second
hidden layer. The learning rates and the numbers of steps are ours: the source has them only in the legends of
its figures, which are lost.

`profile`: 784-1024-1024-10 with Adam at 1e-4 on mini-batches of 100 instead of the full batch, which would
take days on a CPU.
"""

from jaxreg.train import Config, base_config

VARIANTS = ("noise", "profile")


def get_config(variant: str = "noise") -> Config:
  if variant not in VARIANTS:
    raise ValueError(f"argument must be {' or '.join(VARIANTS)}, got {variant!r}")
  config = base_config()
  config.data.name = "idx"
  config.model.name = "MLP"
  config.method.name = "softmax"
  if variant == "noise":
    config.data.subset.num_train = 10000
    config.model.MLP.widths = (50, 50)
    config.model.MLP.dropout_rates = (0.0, 0.1)
    config.optimizer.name = "sgd"
    config.optimizer.learning_rate = 0.5
    config.batch_size, config.eval_batch_size, config.epochs = 10000, 5000, 2000
    config.log_every = 100
    config.eval_every = config.checkpoint.every = 2000
  else:
    config.model.MLP.widths = (1024, 1024)
    config.model.MLP.dropout_rates = (0.2, 0.5)
    config.optimizer.name = "adam"
    config.optimizer.learning_rate = 1e-4
    config.batch_size, config.epochs = 100, 30
    config.eval_every = config.checkpoint.every = 5
  return config

"""Optimizers on 5000 MNIST images from balanced and unbalanced starts, three seeds each.

Command: python run.py --config configs/compare_optimizers_mnist5k.py --config.data.idx.path=DIR
Source: lecture 8 of Deep Learning (BEV033DLE), Czech Technical University in Prague; unbalanced starts after
Neyshabur, Salakhutdinov and Srebro, `Path-SGD: Path-Normalized Optimization in Deep Neural Networks`, 2015.
The comparison is ours.

5000 training images and the next 5000 for validation; an MLP (1024, 1024) without any regularizer, batches of
100, 10 epochs at a constant rate. An unbalanced start is the balanced one with its hidden units rescaled by
log-normal factors: the same function. Each learning rate is chosen among three, from one seed, by the error
on the validation split; then three seeds are trained. DIR has the idx files.
"""

from configs.dropmax_mnist import get_config as dropmax_mnist
from jaxreg.train import Config

UNBALANCED = "model.unbalance=1.5"
# Fields that choose an optimizer, and the learning rates to search from a balanced and an unbalanced start.
ROWS = {
  "SGD": ("optimizer.name=sgd", "0.03,0.1,0.3", "0.001,0.003,0.01"),
  "momentum": ("optimizer.name=sgd optimizer.sgd.momentum=0.9", "0.01,0.03,0.1", "0.0001,0.0003,0.001"),
  "Adam": ("optimizer.name=adam", "1e-4,3e-4,1e-3", "1e-4,3e-4,1e-3"),
  "exact Adagrad": ("optimizer.name=exact_adagrad", "3e-3,1e-2,3e-2", "3e-3,1e-2,3e-2"),
  "exact RMSProp": ("optimizer.name=exact_rmsprop", "1e-4,3e-4,1e-3", "1e-4,3e-4,1e-3"),
  "exact Adam": ("optimizer.name=exact_adam", "1e-4,3e-4,1e-3", "1e-4,3e-4,1e-3"),
  "normalised": ("optimizer.name=trust_region", "0.03,0.1,0.3", "0.03,0.1,0.3"),
  "normalised leaves": (
    "optimizer.name=trust_region optimizer.trust_region.blocks=leaf",
    "0.01,0.03,0.1",
    "0.01,0.03,0.1",
  ),
  "sign": (
    "optimizer.name=trust_region optimizer.trust_region.blocks=element",
    "3e-5,1e-4,3e-4",
    "3e-5,1e-4,3e-4",
  ),
  "3-norm": ("optimizer.name=p_norm_sgd optimizer.p_norm_sgd.p=3.0", "3e-3,1e-2,3e-2", "1e-3,3e-3,1e-2"),
  "Path-SGD": ("optimizer.name=path_sgd", "0.01,0.03,0.1", "0.01,0.03,0.1"),
}


def get_config() -> Config:
  config = dropmax_mnist("5k")
  config.job = "compare"
  config.method.name = "softmax"
  config.model.name = "MLP"
  config.model.MLP.widths = (1024, 1024)
  config.model.MLP.dropout_rate = 0.0
  config.optimizer.weight_decay.rate = 0.0
  config.optimizer.schedule.name = "constant"
  config.epochs = 10
  config.eval_every = config.checkpoint.every = 5
  config.compare.seeds = 3
  rows, grid = [], []
  for label, (fields, balanced, unbalanced) in ROWS.items():
    rows += [f"{label}: {fields}", f"{label} unbalanced: {fields} {UNBALANCED}"]
    grid += [f"{label}: optimizer.learning_rate={balanced}"]
    grid += [f"{label} unbalanced: optimizer.learning_rate={unbalanced}"]
  config.compare.rows, config.compare.grid = tuple(rows), tuple(grid)
  return config

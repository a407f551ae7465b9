"""Optimizers on 5000 MNIST images from balanced and unbalanced starts, three seeds each.

Command: python run.py --config configs/compare_optimizers_mnist5k.py --config.data.idx.path=DIR
Source: lecture 8 of Deep Learning (BEV033DLE), Czech Technical University in Prague; unbalanced starts after
Neyshabur, Salakhutdinov and Srebro, `Path-SGD: Path-Normalized Optimization in Deep Neural Networks`, 2015.
The comparison is ours; its results are in papers/adaptive_sgd. 22 minutes on 2 cores.

5000 training images and the next 5000 for validation; an MLP (1024, 1024) without any regularizer, batches of
100, 10 epochs at a constant rate. An unbalanced start is the balanced one with its hidden units rescaled by
log-normal factors: the same function. Each learning rate is chosen among three, from one seed, by the error
on the validation split; then three seeds are trained. DIR has the idx files.
"""

from configs.dropmax_mnist import get_config as dropmax_mnist
from jaxreg.train import Config

UNBALANCED = {"model.unbalance": 1.5}


def _chosen(name: str, **options: object) -> dict[str, object]:
  return {"optimizer.name": name, **{f"optimizer.{name}.{field}": value for field, value in options.items()}}


# Fields that choose an optimizer, and the learning rates to search from a balanced and an unbalanced start.
ROWS = {
  "SGD": (_chosen("sgd"), (0.03, 0.1, 0.3), (0.001, 0.003, 0.01)),
  "momentum": (_chosen("sgd", momentum=0.9), (0.01, 0.03, 0.1), (0.0001, 0.0003, 0.001)),
  "Adam": (_chosen("adam"), (1e-4, 3e-4, 1e-3), (1e-4, 3e-4, 1e-3)),
  "exact Adagrad": (_chosen("exact_adagrad"), (3e-3, 1e-2, 3e-2), (3e-3, 1e-2, 3e-2)),
  "exact RMSProp": (_chosen("adaptive", b2=0.9), (1e-4, 3e-4, 1e-3), (1e-4, 3e-4, 1e-3)),
  "exact Adam": (_chosen("exact_adam"), (1e-4, 3e-4, 1e-3), (1e-4, 3e-4, 1e-3)),
  "normalised": (_chosen("trust_region"), (0.03, 0.1, 0.3), (0.03, 0.1, 0.3)),
  "normalised leaves": (_chosen("trust_region", blocks="leaf"), (0.01, 0.03, 0.1), (0.01, 0.03, 0.1)),
  "sign": (_chosen("trust_region", blocks="element"), (3e-5, 1e-4, 3e-4), (3e-5, 1e-4, 3e-4)),
  "3-norm": (_chosen("p_norm_sgd", p=3.0), (3e-3, 1e-2, 3e-2), (1e-3, 3e-3, 1e-2)),
  "Path-SGD": (_chosen("path_sgd"), (0.01, 0.03, 0.1), (0.01, 0.03, 0.1)),
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
  config.compare.rows, config.compare.grid = {}, {}
  for label, (fields, balanced, unbalanced) in ROWS.items():
    config.compare.rows |= {label: fields, f"{label} unbalanced": {**fields, **UNBALANCED}}
    config.compare.grid[label] = {"optimizer.learning_rate": balanced}
    config.compare.grid[f"{label} unbalanced"] = {"optimizer.learning_rate": unbalanced}
  return config

"""Softmax, random DropMax and DropMax on MNIST-5K, three seeds each: the set-up of `dropmax_mnist:5k`.

Command: python run.py --config configs/compare_dropmax_mnist5k.py --config.data.idx.path=DIR
Source: Lee et al., `DropMax: Adaptive Variational Softmax`, 2018. Its figures for 5K are not confirmed.

No search here: softmax and random DropMax have the settings that the search of `compare_dropmax_mnist1k`
chose, DropMax has no weight decay. The length, 100 epochs, is ours: the released code has none for 5K,
appendix C has 500 with batches of 50. DIR has the four idx files. 9 runs of 5000 steps, about four minutes
each on one core.

`appendix`: softmax and DropMax on the schedule of appendix C (`dropmax_mnist:5k-appendix`: 500 epochs,
50 000 steps, batches of 50), the weight decay searched in {0, 1e-5, 1e-4, 1e-3}, three seeds. 14 runs of
half an hour on one core; no result yet.
"""

from configs.dropmax_mnist import get_config as dropmax_mnist
from jaxreg.train import Config
from jaxreg.train.errors import unknown

VARIANTS = ("released", "appendix")


def get_config(variant: str = "released") -> Config:
  if variant not in VARIANTS:
    raise unknown("argument", variant, VARIANTS)
  config = dropmax_mnist("5k" if variant == "released" else "5k-appendix")
  config.job = "compare"
  config.compare.seeds = 3
  if variant == "appendix":
    config.compare.rows = {name: {"method.name": name} for name in ("softmax", "dropmax")}
    config.compare.grid = {"optimizer.weight_decay.rate": (0.0, 1e-5, 1e-4, 1e-3)}
    return config
  config.compare.rows = {
    "softmax": {"method.name": "softmax", "optimizer.weight_decay.rate": 1e-3},
    "random_dropmax": {
      "method.name": "random_dropmax",
      "method.random_dropmax.loss.rate": 0.8,
      "optimizer.weight_decay.rate": 1e-3,
    },
    "dropmax": {"method.name": "dropmax", "optimizer.weight_decay.rate": 0.0},
  }
  return config

"""Calibration of softmax and DropMax on MNIST-1K with random backgrounds, without and with rotations.

Command: python run.py --config configs/compare_dropmax_mnist1k_variations.py --config.data.idx.path=DIR
         (with rotations: compare_dropmax_mnist1k_variations.py:rotation; DIR holds the four idx files)
Source: Lee et al., `DropMax: Adaptive Variational Softmax`, 2018, its poster: backgrounds, softmax 12.89 %
test error and 1.52 % ECE, DropMax 10.86 and 0.683; rotated as well 52.06 and 7.69, and 48.81 and 2.38.

The paper does not say how its sets were made. In ours, every digit lies on noise, with each pixel uniform;
with `rotation` the digit is first rotated by a uniform angle over the circle. There is no search: each method
has the weight decay that `compare_dropmax_mnist1k` chose for it. 6 runs of about two minutes each on one
core; `figures/reliability.png` has the reliability diagrams.
"""

from configs.dropmax_mnist import get_config as dropmax_mnist
from jaxreg.train import Config

VARIANTS = ("background", "rotation")


def get_config(variant: str = "background") -> Config:
  if variant not in ("background", "rotation"):
    raise ValueError(f"argument must be background or rotation, got {variant!r}")
  config = dropmax_mnist("1k")
  config.data.idx.background = True
  config.data.idx.rotation = variant == "rotation"
  config.job = "compare"
  config.compare.seeds = 3
  config.compare.rows = {
    "softmax": {"method.name": "softmax", "optimizer.weight_decay.rate": 1e-3},
    "dropmax": {"method.name": "dropmax", "optimizer.weight_decay.rate": 0.0},
  }
  return config

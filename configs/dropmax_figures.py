"""The figures of the DropMax paper that need a trained model, from one run.

Command: python run.py --config configs/dropmax_figures.py
         python run.py --config configs/dropmax_figures.py:mnist1k --config.data.idx.path=DIR
Source: Lee et al., `DropMax: Adaptive Variational Softmax`, 2018: appendix Fig. 1 (contours, here of a toy of
our own) and Fig. 2 (target probabilities over 1000 masks), the poster's predictive distributions and retain
maps, and appendix B's gradients on examples with a small margin.

`digits`: scikit-learn's digits, half a minute. `mnist1k`: MNIST-1K, two to four minutes. Trains as
`dropmax_digits` or `dropmax_mnist:1k`, keeps all checkpoints, and draws into the work directory's `figures`.
"""

from configs.dropmax_digits import get_config as dropmax_digits
from configs.dropmax_mnist import get_config as dropmax_mnist
from jaxreg.train import Config

VARIANTS = ("digits", "mnist1k")


def get_config(variant: str = "digits") -> Config:
  if variant not in ("digits", "mnist1k"):
    raise ValueError(f"argument must be digits or mnist1k, got {variant!r}")
  config = dropmax_digits() if variant == "digits" else dropmax_mnist("1k")
  config.job = "dropmax_figures"
  config.checkpoint.keep = 1000
  return config

"""The figures of the DropMax paper that need a trained model, from one run on scikit-learn's digits.

Command: python run.py --config configs/dropmax_figures.py
Source: Lee et al., `DropMax: Adaptive Variational Softmax`, 2018: appendix Fig. 1 (contours, here of a toy of
our own) and Fig. 2 (target probabilities over 1000 masks), the poster's predictive distributions and retain
maps, on digits. On MNIST: --config configs/dropmax_mnist.py:1k --config.job=dropmax_figures

Trains `dropmax_digits` first, half a minute, and draws into the work directory's `figures`.
"""

from configs.dropmax_digits import get_config as dropmax_digits
from jaxreg.train import Config


def get_config() -> Config:
  config = dropmax_digits()
  config.job = "dropmax_figures"
  return config

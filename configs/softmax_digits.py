"""The softmax baseline of `dropmax_digits`, equal in all else.

Command: python run.py --config configs/softmax_digits.py
Source: cross-entropy as in Goodfellow, Bengio and Courville, `Deep Learning`, 2016, section 6.2.2.3.
Ours: `compare_dropmax_digits`, in papers/dropmax. 20 seconds on 2 cores.
"""

from configs.dropmax_digits import get_config as dropmax_digits
from jaxreg.train import Config


def get_config() -> Config:
  config = dropmax_digits()
  config.method.name = "softmax"
  return config

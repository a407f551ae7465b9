"""The softmax baseline of `dropmax_digits`: all else is equal.

Command: python run.py --config configs/softmax_digits.py
"""

from configs.dropmax_digits import get_config as dropmax_digits
from jaxreg.train import Config


def get_config() -> Config:
  config = dropmax_digits()
  config.method.name = "softmax"
  return config

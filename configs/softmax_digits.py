"""The softmax baseline of `dropmax_digits`: all else is equal.

Command: python run.py --config configs/softmax_digits.py
"""

from ml_collections import ConfigDict

from configs.dropmax_digits import get_config as dropmax_digits


def get_config() -> ConfigDict:
  config = dropmax_digits()
  config.method.name = "softmax"
  return config

"""The softmax baseline of `dropmax_digits`: all else is equal.

Command: python run.py --config configs/softmax_digits.py
"""

import runpy
from pathlib import Path

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
  config = runpy.run_path(str(Path(__file__).with_name("dropmax_digits.py")))["get_config"]()
  config.method.name = "softmax"
  return config

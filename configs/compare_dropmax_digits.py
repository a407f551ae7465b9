"""DropMax against softmax on scikit-learn's digits, five seeds each: the set-up of `dropmax_digits`.

Command: python run.py --config configs/compare_dropmax_digits.py
Source: ours, as a first comparison: well under two minutes on 2 cores.
"""

from configs.dropmax_digits import get_config as dropmax_digits
from jaxreg.train import Config


def get_config() -> Config:
  config = dropmax_digits()
  config.job = "compare"
  config.compare.rows = {name: {"method.name": name} for name in ("softmax", "dropmax")}
  return config

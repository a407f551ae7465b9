"""Group softmax on scikit-learn's 8x8 digits, with an MLP; no files needed.

Command: python run.py --config configs/group_softmax_digits.py
Source: Kobayashi, `Group Softmax Loss with Discriminative Feature Grouping`, 2021; the data set, the network
and the schedule are ours, those of `dropmax_digits`. The paper's numbers of groups are not confirmed.
"""

from configs.dropmax_digits import get_config as dropmax_digits
from jaxreg.train import Config


def get_config() -> Config:
  config = dropmax_digits()
  config.method.name = "group_softmax"
  config.method.group_softmax.loss.num_groups = 8
  config.method.group_softmax.loss.kind = "I"
  return config

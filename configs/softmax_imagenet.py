"""The softmax baseline of `group_softmax_imagenet`, equal in all else.

Command: python run.py --config configs/softmax_imagenet.py --workdir runs/softmax_imagenet
         (the arguments and --config.data.tfds.manual_dir=DIR as there; fine-tuning starts from this run)
Source: Kobayashi, `Group Softmax Loss with Discriminative Feature Grouping`, 2021, supplement, Tables B.1 and
B.2.

The paper's error is 23.5 %; `group_softmax_imagenet` has its errors on the subsets and what is not confirmed.
We have not run this config, and its time is not measured.
"""

from configs.group_softmax_imagenet import VARIANTS as VARIANTS
from configs.group_softmax_imagenet import get_config as group_softmax_imagenet
from jaxreg.train import Config


def get_config(variant: str = "all") -> Config:
  config = group_softmax_imagenet(variant)
  config.method.name = "softmax"
  return config

"""Softmax against group softmax: both types, 2 to 32 groups, and two controls of the grouping.

Command: python run.py --config configs/compare_group_softmax.py:digits
         python run.py --config configs/compare_group_softmax.py:mnist1k --config.data.idx.path=DIR
Source: ours; Kobayashi, `Group Softmax Loss with Discriminative Feature Grouping`, 2021, has no such controls
among what is confirmed: `random` draws the groups for each example and step, `interleaved` deals the
features, sorted by the paper's scores, out to all groups in turn.

31 rows of five seeds each, without a search. `digits`: the set-up of `dropmax_digits`. `mnist1k`, `mnist5k`:
LeNet as in `dropmax_mnist`, with 50 and 20 epochs instead of 200 and 100. `cifar10`: that LeNet with pad-crop
and flip, 8 epochs: 100 minutes on one core. Type II predicts with the logits divided by the number of groups,
which changes only its NLL and ECE. `python -m papers.group_softmax.trends FOLDER` draws the trends and
adds the NLL without this division.
"""

import itertools

from configs.dropmax_digits import get_config as dropmax_digits
from configs.dropmax_mnist import get_config as dropmax_mnist
from jaxreg.train import Config

NUM_GROUPS = (2, 4, 8, 16, 32)
GROUPINGS = ("discriminative", "random", "interleaved")
EPOCHS = {"mnist1k": 50, "mnist5k": 20, "cifar10": 8}
VARIANTS = ("digits", *EPOCHS)


def row(kind: str, grouping: str, num_groups: int) -> dict[str, dict[str, object]]:
  fields = {
    "method.name": "group_softmax",
    "method.group_softmax.loss.kind": kind,
    "method.group_softmax.loss.grouping": grouping,
    "method.group_softmax.loss.num_groups": num_groups,
    "method.group_softmax.predict.logit_scale": 1 / num_groups if kind == "II" else 1.0,
  }
  return {f"{kind} {grouping} {num_groups}": fields}


def get_config(variant: str = "digits") -> Config:
  if variant == "digits":
    config = dropmax_digits()
  elif variant in EPOCHS:
    config = dropmax_mnist("5k" if variant == "cifar10" else variant.removeprefix("mnist"))
    config.epochs = EPOCHS[variant]
    config.eval_every = config.checkpoint.every = config.epochs // 5
  else:
    raise ValueError(f"argument must be digits, mnist1k, mnist5k or cifar10, got {variant!r}")
  if variant == "cifar10":
    config.data.name = "tfds"
    config.data.tfds.name = "cifar10"
    config.data.subset.per_class, config.data.subset.drawn = 0, True
    config.augment.names = ("pad_crop", "flip")
  config.method.name = "group_softmax"
  config.job = "compare"
  config.compare.seeds = 5
  config.compare.rows = {"softmax": {"method.name": "softmax"}}
  for grouping, kind, number in itertools.product(GROUPINGS, ("I", "II"), NUM_GROUPS):
    config.compare.rows |= row(kind, grouping, number)
  return config

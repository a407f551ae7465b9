"""Group softmax on SUN397, 50 training images a class, with ResNet-50.

Command: python run.py --config configs/group_softmax_sun397.py
         (the softmax baseline: --config.method.name=softmax)
Source: Kobayashi, `Group Softmax Loss with Discriminative Feature Grouping`, 2021, supplement, Table B.1:
batches of 256, SGD with momentum 0.9 from 0.1, divided by 10 at epochs 120, 240 and 270, 300 epochs, weight
decay 1e-4; 397 classes and 19 000 training images.

TFDS's `sun397/standard-part1-120k`: the first of the ten official partitions, 50 images of each class for
training and 50 for testing, of at most 120 000 pixels (parts 2 to 10 by --config.data.tfds.name). Not
confirmed, and so ours: the partition, ResNet-50, type II of 8 groups (the paper advises it below 500 000
images), and weight decay on all parameters. The paper's errors on this set are not confirmed. The error is
the last epoch's, on the test split; nothing is chosen on it. We have not run this config, and its time is not
measured.
"""

from configs._photographs import group_softmax, tfds
from jaxreg.train import Config


def get_config() -> Config:
  config = group_softmax("II", (120.0, 240.0, 270.0), 300)
  tfds(config, "sun397/standard-part1-120k", test="test")
  return config

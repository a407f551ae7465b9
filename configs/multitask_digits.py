"""Three tasks on scikit-learn's digits: the class, its parity, and whether the digit has a loop.

Command: python run.py --config configs/multitask_digits.py:learned
Source: Caruana, `Multitask Learning`, 1997; Kendall, Gal and Cipolla, `Multi-Task Learning Using Uncertainty
to Weigh Losses`, 2018.

`given` weighs the further tasks by 0.3, and `learned` learns the weights. There are ten labelled images a
class.
"""

from configs.softmax_digits import get_config as softmax_digits
from jaxreg.train import Config
from jaxreg.train.errors import unknown

VARIANTS = ("learned", "given")
PARITY = tuple(digit % 2 for digit in range(10))
LOOP = tuple(int(digit in (0, 6, 8, 9)) for digit in range(10))


def get_config(name: str = "learned") -> Config:
  if name not in VARIANTS:
    raise unknown("argument", name, VARIANTS)
  config = softmax_digits()
  config.method.name = "multitask"
  config.method.multitask.head.tasks = (PARITY, LOOP)
  config.method.multitask.head.learned_weights = name == "learned"
  config.method.multitask.loss.weight = 0.3
  config.model.MLP.widths = (64, 64)
  config.data.subset.per_class = 10
  config.batch_size = 20
  config.epochs = 200
  config.eval_every = config.checkpoint.every = 50
  return config

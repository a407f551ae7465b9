"""Four labels for each digit, each no or yes: whether it is even, is prime, has a loop, and is above 4.

Command: python run.py --config configs/multilabel_digits.py
Source: the labels are ours; Ridnik et al., `Asymmetric Loss For Multi-Label Classification`, 2021.
Ours: `compare_multilabel_digits`, in docs/guides/targets.md.

An MLP (64, 64) on scikit-learn's digits, 100 epochs, 30 seconds on 2 cores. The argument is a method for
labels that are no or yes. `--config.job=compare` compares cross-entropy alone with five others, over 5 seeds.
"""

from configs.softmax_digits import get_config as softmax_digits
from jaxreg.train import Config
from jaxreg.train.errors import unknown

VARIANTS = ("binary", "asymmetric", "binary_focal", "binary_poly_loss", "binary_confidence_penalty")


def get_config(name: str = "binary") -> Config:
  if name not in VARIANTS:
    raise unknown("argument", name, VARIANTS)
  config = softmax_digits()
  config.data.digits.attributes = True
  config.method.name = name
  config.model.MLP.widths = (64, 64)
  config.compare.rows = {
    "cross-entropy": {},
    "label smoothing": {"method.binary.loss.smoothing": 0.05},
    "dropout": {"model.MLP.dropout_rate": 0.3},
    "l2": {"regularizers.names": ("l2",), "regularizers.l2.weight": 1e-3},
    "mixup": {"augment.names": ("mixup",)},
    "asymmetric": {"method.name": "asymmetric"},
  }
  return config

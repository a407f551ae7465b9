"""Regression: the progression of diabetes after a year, from ten measurements of 442 patients.

Command: python run.py --config configs/regression_diabetes.py
Source: Efron et al., `Least Angle Regression`, 2004, section 1; the data are scikit-learn's.

The argument is a method for labels that are numbers, or ridge, lasso or elastic_net: linear models, trained
to scikit-learn's coefficients. `--config.job=compare` compares an MLP (64, 64) alone with eight others, over
5 seeds, in 2 minutes on 2 cores.
"""

from configs.softmax_digits import get_config as softmax_digits
from jaxreg.train import Config
from jaxreg.train.errors import unknown

METHODS = ("squared_error", "huber", "gaussian_nll", "student_t_nll", "pinball")
LINEAR = ("ridge", "lasso", "elastic_net")
VARIANTS = METHODS + LINEAR
EXAMPLES = 264  # for training


def get_config(name: str = "squared_error") -> Config:
  if name not in VARIANTS:
    raise unknown("argument", name, VARIANTS)
  config = softmax_digits()
  config.data.name = "diabetes"
  config.method.name = name if name in METHODS else "squared_error"
  config.model.MLP.widths = (64, 64)
  config.log_every = 8
  config.optimizer.weight_decay.rate = 0.0
  config.compare.rows = {
    "squared error": {},
    "early stopping": {"average.name": "early_stopping"},
    "l2": {"regularizers.names": ("l2",), "regularizers.l2.weight": 1e-2},
    "dropout": {"model.MLP.dropout_rate": 0.3},
    "mixup": {"augment.names": ("mixup",)},
    "VAT": {"regularizers.names": ("virtual_adversarial",)},
    "Huber": {"method.name": "huber"},
    "Gaussian": {"method.name": "gaussian_nll"},
    "quantiles": {"method.name": "pinball"},
  }
  if name in LINEAR:
    config.model.MLP.widths = ()
    config.optimizer.name, config.optimizer.schedule.name = "fista", "constant"
    config.optimizer.learning_rate = 0.1
    config.batch_size, config.epochs, config.eval_every, config.checkpoint.every = EXAMPLES, 2000, 500, 500
    config.log_every = 500
    prox = {"ridge": "prox_elastic_net", "lasso": "prox_l1", "elastic_net": "prox_elastic_net"}[name]
    config.optimizer.constraints.names = (prox,)
    config.optimizer.constraints[prox].weight = 0.1
    if prox == "prox_elastic_net":
      config.optimizer.constraints.prox_elastic_net.ratio = 0.0 if name == "ridge" else 0.5
  return config

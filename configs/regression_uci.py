"""Regression with uncertainty: seven sets of UCI, with the field's standard splits.

Command: python run.py --config configs/regression_uci.py --config.data.uci.path=FOLDER
         (one split of one set: --config.data.uci.name=concrete --config.data.uci.split=3)
Source: Gal and Ghahramani, `Dropout as a Bayesian Approximation`, 2016, section 5.2: one hidden layer of 50
units, dropout on the inputs and the hidden layer, 400 epochs.

FOLDER has a file `NAME.npz` for each set, with `data` `[n, columns]`, the columns `features` and `target`,
and `test` `[splits, n]`, which is 1 for the test rows of a split. A fifth of the training rows validates.

The argument is `gaussian_nll`, a network that predicts a mean and a variance, or `squared_error`. All splits
of all sets, and rates chosen for each: `python -m benchmarks uci`. Boston housing, the first split: test RMSE
2.4 in half a minute on 2 cores.
"""

from pathlib import Path

import numpy as np

from configs.softmax_digits import get_config as softmax_digits
from jaxreg.train import Config, Dataset, Split, add_options
from jaxreg.train.errors import RunError, unknown

VARIANTS = ("gaussian_nll", "squared_error")


def uci(*, path: str = "uci", name: str = "bostonHousing", split: int = 0, seed: int = 0) -> Dataset:
  """Reads one split of one set.

  Args:
    path: the folder of the sets.
    name: of the set's file, without `.npz`.
    split: its number, from 0.
    seed: of the training rows that validate.
  """
  file = Path(path) / f"{name}.npz"
  if not file.is_file():
    known = sorted(each.stem for each in Path(path).glob("*.npz"))
    raise RunError(f"data.uci: there is no file {file}; the folder has {', '.join(known) or 'no .npz file'}")
  with np.load(file) as arrays:
    data, features, target, test = (arrays[key] for key in ("data", "features", "target", "test"))
  if not 0 <= split < len(test):
    raise RunError(f"data.uci.split must be from 0 to {len(test) - 1}, got {split}")
  rows = np.random.default_rng(seed).permutation(np.flatnonzero(test[split] == 0))
  train, val = np.split(rows, [4 * len(rows) // 5])
  mean, std = data[train][:, features].mean(0), data[train][:, features].std(0)
  x = ((data[:, features] - mean) / np.where(std > 0, std, 1)).astype(np.float32)
  y = data[:, target[0]]
  return Dataset(
    *(Split(x[each], y[each]) for each in (train, val, np.flatnonzero(test[split]))), num_classes=0
  )


def get_config(name: str = "gaussian_nll") -> Config:
  if name not in VARIANTS:
    raise unknown("argument", name, VARIANTS)
  config = softmax_digits()
  config.data.name = "configs.regression_uci:uci"
  config.method.name = name
  config.model.MLP.widths = (50,)
  config.model.MLP.dropout_rate = config.model.MLP.input_dropout_rate = 0.05
  config.optimizer.learning_rate = 1e-3
  config.optimizer.schedule.name = "constant"
  config.optimizer.weight_decay.rate = 0.0
  config.batch_size = 128
  config.epochs, config.eval_every, config.checkpoint.every = 400, 40, 40
  config.evaluate.mc_samples = 100
  return add_options(config)

"""The speed of learning of softmax and DropMax on MNIST-55K, one seed each: Fig. 3 (a) of the paper.

Command: python run.py --config configs/compare_dropmax_mnist55k.py --config.data.idx.path=DIR
Source: Lee et al., `DropMax: Adaptive Variational Softmax`, 2018, Fig. 3 (a), and appendix C.

The optimizer of appendix C (batches of 50, Adam at a constant 1e-4, weight decay 1e-4) with the LeNet of the
released code, for 38 epochs of 1100 steps; the appendix has 100 epochs, the paper's figure shows 68000 steps.
The curves are `figures/convergence.png`. DIR has the four idx files. About twenty minutes a run on one core.
"""

from configs.dropmax_mnist import get_config as dropmax_mnist
from jaxreg.train import Config


def get_config() -> Config:
  config = dropmax_mnist("55k-appendix")
  config.model.name = "LeNet"
  config.epochs = 38
  config.eval_every = config.checkpoint.every = 1
  config.job = "compare"
  config.compare.seeds = 1
  config.compare.rows = {name: {"method.name": name} for name in ("softmax", "dropmax")}
  return config

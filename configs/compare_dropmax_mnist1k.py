"""DropMax and its seven baselines on MNIST-1K, five seeds each: the set-up of `dropmax_mnist:1k`.

Command: python run.py --config configs/compare_dropmax_mnist1k.py --config.data.idx.path=DIR
Source: Lee et al., `DropMax: Adaptive Variational Softmax`, 2018, the MNIST-1K column of its table: softmax
7.09 %, sparsemax 6.57, sampled softmax 7.36, class dropout (our random DropMax) 7.19, deterministic attention
6.91, DropMax with q = p 7.52, DropMax 5.32 (test error, as its poster confirms), with another network and
schedule.

Every method is searched in the same way, from one seed on the validation split: the weight decay as in the
appendix, and the method's own options. DIR has the four idx files. There are 96 runs of about a minute each
on one core. The same command resumes after an interruption. Two commands with the same
`--workdir`, each with some of the rows and their lines of the grid, share the work.

`appendix`: softmax and DropMax on the schedule of appendix C (`dropmax_mnist:1k-appendix`: 2000 epochs,
40 000 steps, batches of 50), the weight decay searched in {0, 1e-5, 1e-4, 1e-3}, three seeds. 14 runs, half
an hour a seed on one core. Run so far: seeds 1 and 2 at 1e-4 (papers/dropmax); the search was not run.
"""

from configs.dropmax_mnist import get_config as dropmax_mnist
from jaxreg.train import Config
from jaxreg.train.errors import unknown

VARIANTS = ("released", "appendix")

DECAYS = (0.0, 1e-5, 1e-4, 1e-3)
METHODS = (
  "softmax",
  "sparsemax",
  "sampled_softmax",
  "random_dropmax",
  "deterministic_attention",
  "deterministic_dropmax",
  "dropmax_qp",
  "dropmax",
)


def get_config(variant: str = "released") -> Config:
  if variant not in VARIANTS:
    raise unknown("argument", variant, VARIANTS)
  config = dropmax_mnist("1k" if variant == "released" else "1k-appendix")
  config.job = "compare"
  config.compare.rows = {name: {"method.name": name} for name in METHODS}
  config.compare.grid = {
    "optimizer.weight_decay.rate": DECAYS,
    "sampled_softmax": {"method.sampled_softmax.loss.rate": (0.8, 0.6, 0.4)},
    "random_dropmax": {"method.random_dropmax.loss.rate": (0.8, 0.6, 0.4)},
    "dropmax_qp": {"method.dropmax_qp.loss.entropy_weight": (1.0, 0.1, 0.01)},
  }
  if variant == "appendix":
    config.compare.seeds = 3
    config.compare.rows = {name: {"method.name": name} for name in ("softmax", "dropmax")}
    config.compare.grid = {"optimizer.weight_decay.rate": DECAYS}
  return config

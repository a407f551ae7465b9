"""Fine-tuning on 200 rotated digits of MNIST, from a network that was trained on 5000 upright ones.

Command: python run.py --config configs/finetune_mnist.py:pretrain --config.data.idx.path=DIR
         python run.py --config configs/finetune_mnist.py --config.data.idx.path=DIR
         (the first with --workdir runs/finetune_mnist-pretrain; DIR holds the four idx files)
Source: ours; L2-SP is of Li, Grandvalet and Davoine, `Explicit Inductive Bias for Transfer Learning with
Convolutional Networks`, 2018. It pulls the new head to zero.

An MLP (256, 256) and Adam with the rate 1e-3, 20 epochs to pretrain and 50 to fine-tune. Every digit is
rotated by an angle that is uniform over the circle. No strength is searched: every row has its own. Five
seeds for each row.
"""

from configs.dropmax_mnist import get_config as dropmax_mnist
from jaxreg.train import Config

VARIANTS = ("compare", "pretrain")
LAYERS = ("backbone/Dense_0/*", "backbone/Dense_1/*", "head/*")


def _near(weight: float) -> dict[str, object]:
  return {"regularizers.names": ("l2_sp",), "regularizers.l2_sp.weight": weight}


def _by_layer(decay: float) -> dict[str, object]:
  options = {"inner": "adam", "layers": LAYERS, "decay": decay}
  return {
    "optimizer.name": "layer_decay",
    **{f"optimizer.layer_decay.{name}": value for name, value in options.items()},
  }


def get_config(variant: str = "compare") -> Config:
  if variant not in VARIANTS:
    raise ValueError(f"argument must be compare or pretrain, got {variant!r}")
  config = dropmax_mnist("5k")
  config.method.name = "softmax"
  config.model.name = "MLP"
  config.model.MLP.widths = (256, 256)
  config.optimizer.weight_decay.rate = 0.0
  config.optimizer.schedule.name = "constant"
  config.epochs, config.eval_every, config.checkpoint.every = 20, 5, 20
  if variant == "pretrain":
    return config
  config.data.subset.per_class = 20
  config.data.idx.rotation = True
  config.batch_size = 50
  config.epochs, config.eval_every, config.checkpoint.every = 50, 10, 50
  config.pretrained.workdir = "runs/finetune_mnist-pretrain"
  config.job = "compare"
  config.compare.rows = {
    "all layers": {},
    "from scratch": {"pretrained.workdir": ""},
    **{f"L2-SP, {weight}": _near(weight) for weight in (0.01, 0.1)},
    "layer-wise decay, 0.5": _by_layer(0.5),
    "frozen backbone": _by_layer(0.0),
  }
  return config

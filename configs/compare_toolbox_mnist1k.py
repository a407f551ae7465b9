"""Classical regularizers side by side on 1000 MNIST images, five seeds each.

Command: python run.py --config configs/compare_toolbox_mnist1k.py --config.data.idx.path=DIR
         python run.py --config configs/compare_toolbox_mnist1k.py:flipped --config.data.idx.path=DIR
Source: Na, `Regularization for Deep Learning`, lecture, Chonbuk National University, names them; the
comparison is ours.

1000 training images and the next 1000 for validation; an MLP (256, 256), Adam, 60 epochs, no augmentation.
Each strength is chosen among three, from one seed, by the error on the validation split; then five seeds are
trained in one program. Early stopping evaluates that split every second epoch. Bagging has five members. VAT
adds to each batch 100 of the 58000 other images, without their labels. `flipped`: a fifth of the training
labels is changed to another class, with six of the rows. DIR has the idx files.
"""

from configs.dropmax_mnist import get_config as dropmax_mnist
from jaxreg.train import Config

# Fields that choose a regularizer, and the strengths to search.
ROWS = {
  "none": ("", ""),
  "L2": ("regularizers.names=('l2',)", "regularizers.l2.weight=1e-4,1e-3,1e-2"),
  "L1": ("regularizers.names=('l1',)", "regularizers.l1.weight=1e-5,1e-4,1e-3"),
  "proximal L1": (
    "optimizer.constraints.names=('prox_l1',)",
    "optimizer.constraints.prox_l1.weight=1e-3,1e-2,1e-1",
  ),
  "group lasso": ("regularizers.names=('group_lasso',)", "regularizers.group_lasso.weight=1e-5,1e-4,1e-3"),
  "orthogonality": (
    "regularizers.names=('orthogonality',)",
    "regularizers.orthogonality.weight=1e-5,1e-4,1e-3",
  ),
  "max-norm": (
    "optimizer.constraints.names=('max_norm',)",
    "optimizer.constraints.max_norm.limit=0.5,1.0,2.0",
  ),
  "dropout": ("", "model.MLP.dropout_rate=0.25,0.5,0.75"),
  "MC dropout": ("evaluate.mc_samples=20", "model.MLP.dropout_rate=0.25,0.5,0.75"),
  "Gaussian dropout": ("model.MLP.dropout=gaussian_dropout", "model.MLP.dropout_rate=0.25,0.5,0.75"),
  "DropConnect": ("noise.names=('dropconnect_params',)", "noise.dropconnect_params.rate=0.25,0.5,0.75"),
  "input noise": ("noise.names=('gaussian_noise',)", "noise.gaussian_noise.std=0.1,0.2,0.4"),
  "weight noise": ("noise.names=('weight_noise',)", "noise.weight_noise.std=0.02,0.05,0.1"),
  "label smoothing": ("method.name=label_smoothing", "method.label_smoothing.loss.smoothing=0.05,0.1,0.2"),
  "bi-tempered": ("method.name=bi_tempered", "method.bi_tempered.loss.t1=0.2,0.5,0.8"),
  "mixup": ("augment.names=('mixup',)", "augment.mixup.alpha=0.1,0.2,0.4"),
  "early stopping": (
    "average.name=early_stopping eval_every=2",
    "average.early_stopping.patience=3,5,10",
  ),
  "bagging (5)": ("ensemble=5 data.bootstrap=True", ""),
  "FGSM": (
    "regularizers.names=('fgsm',) regularizers.fgsm.clip=(0.0,1.0)",
    "regularizers.fgsm.eps=0.05,0.1,0.2",
  ),
  "VAT": (
    "regularizers.names=('virtual_adversarial',) data.unlabelled.batch_size=100",
    "regularizers.virtual_adversarial.eps=0.5,1.0,2.0",
  ),
}
FLIPPED = ("none", "dropout", "label smoothing", "bi-tempered", "mixup", "early stopping")
VARIANTS = ("clean", "flipped")


def get_config(variant: str = "clean") -> Config:
  if variant not in ("clean", "flipped"):
    raise ValueError(f"argument must be clean or flipped, got {variant!r}")
  config = dropmax_mnist("1k")
  config.job = "compare"
  config.method.name = "softmax"
  config.model.name = "MLP"
  config.model.MLP.widths = (256, 256)
  config.optimizer.weight_decay.rate = 0.0
  config.epochs = 60
  config.eval_every = config.checkpoint.every = 15
  rows = ROWS
  if variant == "flipped":
    config.data.flipped_labels.rate = 0.2
    rows = {label: ROWS[label] for label in FLIPPED}
  config.compare.rows = tuple(f"{label}: {fields}" for label, (fields, _) in rows.items())
  config.compare.grid = tuple(f"{label}: {grid}" for label, (_, grid) in rows.items() if grid)
  return config

"""One optimizer on scikit-learn's digits, by its name.

Command: python run.py --config configs/optimizers_digits.py:path_sgd
Source: lecture 8 of Deep Learning (BEV033DLE), Czech Technical University in Prague, and the sources
in the docstrings of the functions. Learning rates are ours, of no search.

An MLP (64, 64), 30 epochs, 10 seconds on 2 cores. `--config.model.unbalance=1.5` rescales the hidden units at
the start, which does not affect path_sgd. `compare_optimizers_mnist5k` compares them. `fista` is softmax
regression with an L1 penalty.
"""

from configs.softmax_digits import get_config as softmax_digits
from jaxreg.train import Config
from jaxreg.train.errors import unknown


def _chosen(name: str, learning_rate: float, **options: object) -> dict[str, object]:
  fields = {f"optimizer.{name}.{key}": value for key, value in options.items()}
  return {"optimizer.name": name, "optimizer.learning_rate": learning_rate, **fields}


OPTIMIZERS = {
  "sgd": _chosen("sgd", 0.1),
  "momentum": _chosen("sgd", 0.03, momentum=0.9),
  "adam": _chosen("adam", 1e-3),
  "exact_adagrad": _chosen("exact_adagrad", 1e-2),
  "exact_rmsprop": _chosen("adaptive", 1e-3, b2=0.9),
  "exact_adam": _chosen("exact_adam", 1e-3),
  "exact_adam_recursion": _chosen("exact_adam", 1e-3, debias=False),
  "flat_average": _chosen("exact_adagrad", 1e-3, anneal=False),
  "normalized": _chosen("trust_region", 0.1, blocks="global"),
  "normalized_leaves": _chosen("trust_region", 0.03, blocks="leaf"),
  "normalized_units": _chosen("trust_region", 3e-3, blocks="unit"),
  "sign": _chosen("trust_region", 1e-3, blocks="element"),
  "averaged_leaves": _chosen(
    "trust_region", 0.03, blocks="leaf", numerator_decay=0.9, denominator_decay=0.999
  ),
  "p_norm": _chosen("p_norm_sgd", 0.01, p=3.0),
  "path_sgd": _chosen("path_sgd", 0.1),
  "sgld": _chosen("sgld", 2e-5),
  "sam": _chosen("sam", 0.03, inner="sgd", rho=0.05),
  "asam": _chosen("asam", 0.03, inner="sgd", rho=0.5),
  "gsam": _chosen("gsam", 0.03, inner="sgd", rho=0.05, weight=0.4),
  "layer_decay": {
    **_chosen("layer_decay", 1e-3, inner="adam", decay=0.75),
    "optimizer.layer_decay.layers": ("backbone/Dense_0/*", "backbone/Dense_1/*", "head/*"),
  },
  "gradient_noise": _chosen("gradient_noise", 1e-3, inner="adam", variance=0.01),
  "reparameterize": _chosen("reparameterize", 0.1, inner="sgd", coordinates="sinh", scale=0.1),
  "mahalanobis": _chosen("mahalanobis", 0.1, metric=(("*bias", 4.0),)),
  "lars": _chosen("lars", 1.0),
  "polyak_sgd": {**_chosen("polyak_sgd", 1.0), "optimizer.schedule.name": "constant"},
  "lbfgs": _chosen("lbfgs", 1.0),
  # Softmax regression with an L1 penalty, on all training images at once.
  "fista": {
    **_chosen("fista", 10.0),
    **{"optimizer.constraints.names": ("prox_l1",), "optimizer.constraints.prox_l1.weight": 1e-3},
    **{"model.MLP.widths": (), "batch_size": 1078, "epochs": 300, "eval_every": 100},
    **{"optimizer.schedule.name": "constant", "checkpoint.every": 100},
  },
}
VARIANTS = tuple(OPTIMIZERS)


def get_config(name: str = "path_sgd") -> Config:
  if name not in OPTIMIZERS:
    raise unknown("argument", name, OPTIMIZERS)
  config = softmax_digits()
  config.model.MLP.widths = (64, 64)
  config.model.MLP.dropout_rate = 0.0
  config.optimizer.weight_decay.rate = 0.0
  config.epochs = 30
  config.eval_every = config.checkpoint.every = 10
  config.update_from_flattened_dict(OPTIMIZERS[name])
  return config

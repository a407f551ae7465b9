"""One regularizer of the toolbox on scikit-learn's digits, by its name.

Command: python run.py --config configs/toolbox_digits.py:l2
Source: Na, `Regularization for Deep Learning`, lecture, Chonbuk National University, and the sources in the
docstrings of the functions. Strengths are ours, none is searched; `none` is the network without any.

An MLP (64, 64), 30 epochs, 10 seconds on 2 cores. `compare_toolbox_mnist1k` compares several.
`fixmatch` has ten labels a class (the labels alone: `regularizers.names=()`, `data.unlabelled.batch_size=0`).
`distillation` learns from the same labels, and from the predictions of the run of `toolbox_digits.py:none` in
runs/toolbox_digits-none, which has all labels.
"""

from configs.softmax_digits import get_config as softmax_digits
from jaxreg.train import Config
from jaxreg.train.errors import unknown


def _chosen(group: str, name: str, **options: object) -> dict[str, object]:
  return {f"{group}.names": (name,), **{f"{group}.{name}.{key}": value for key, value in options.items()}}


FEW_LABELS = {
  "data.subset.per_class": 10,
  "data.unlabelled.batch_size": 64,
  "batch_size": 48,
  "epochs": 300,
  "eval_every": 100,
  "checkpoint.every": 100,
}

SMALL_RESNET = {
  **{"model.name": "CifarResNet", "model.CifarResNet.depth": 8, "model.CifarResNet.width": 8},
  "optimizer.learning_rate": 0.01,
}
# For the whole training set, against a mean loss over 1078 examples.
LEARNED_RATES = {"regularizers.names": ("learned_dropout",), "regularizers.learned_dropout.weight": 1 / 1078}

TOOLBOX = {
  "none": {},
  "l2": _chosen("regularizers", "l2", weight=1e-3),
  "l1": _chosen("regularizers", "l1", weight=1e-4),
  "elastic_net": _chosen("regularizers", "elastic_net", weight=3e-4, ratio=0.5),
  "group_lasso": _chosen("regularizers", "group_lasso", weight=1e-4),
  "hoyer": _chosen("regularizers", "hoyer", weight=1e-5),
  "orthogonality": _chosen("regularizers", "orthogonality", weight=1e-4),
  "tying": {
    **_chosen("regularizers", "tying", weight=0.1),
    "regularizers.tying.pairs": (("backbone/Dense_0/bias", "backbone/Dense_1/bias"),),
  },
  "l2_sp": _chosen("regularizers", "l2_sp", weight=1e-3),
  "l2_limit": {**_chosen("regularizers", "l2", limit=80.0), "regularizers.dual_learning_rate": 1e-4},
  "fgsm": _chosen("regularizers", "fgsm", weight=1.0, eps=0.1, clip=(0.0, 1.0)),
  "pgd": _chosen("regularizers", "pgd", weight=1.0, eps=0.1, num_steps=5, clip=(0.0, 1.0)),
  "trades": _chosen("regularizers", "trades", weight=1.0, eps=0.1, num_steps=5, clip=(0.0, 1.0)),
  "z_loss": _chosen("regularizers", "z_loss", weight=1e-4),
  "gradient_penalty": _chosen("regularizers", "gradient_penalty", weight=0.1),
  "jacobian_penalty": _chosen("regularizers", "jacobian_penalty", weight=0.01),
  "l1_activity": _chosen("regularizers", "l1_activity", weight=1e-3),
  "kl_sparsity": {
    **_chosen("regularizers", "kl_sparsity", weight=1e-2, target=0.1),
    "model.MLP.activation": "sigmoid",
  },
  "activity_variance": _chosen("regularizers", "activity_variance", weight=0.1),
  "activity_covariance": _chosen("regularizers", "activity_covariance", weight=1e-2),
  # Weaker than the source's weight of 12 and severity of 3: on 8 by 8 pixels a shift moves half a stroke.
  "augmix": _chosen("regularizers", "augmix", weight=1.0, severity=2.0),
  "r_drop": {**_chosen("regularizers", "r_drop", weight=1.0), "model.MLP.dropout_rate": 0.3},
  **{
    # Ten labelled images per class; all others are unlabelled.
    name: {**_chosen("regularizers", name, weight=weight), **FEW_LABELS, **more}
    for name, weight, more in (
      ("virtual_adversarial", 1.0, {"regularizers.virtual_adversarial.eps": 1.0}),
      ("entropy", 0.1, {}),
      ("pseudo_label", 0.5, {}),
      (
        "fixmatch",
        0.5,
        {
          **{"augment.names": ("translate",), "augment.translate.max_shift": 1},
          **{"regularizers.fixmatch.magnitude": 4.0, "regularizers.fixmatch.cutout_size": 2},
        },
      ),
      ("reconstruction", 0.1, {"method.name": "autoencoder"}),
      ("pi_model", 1.0, {"model.MLP.dropout_rate": 0.3}),
      (
        "mean_teacher",
        1.0,
        {"average.name": "ema", "average.ema.decay": 0.95, "model.MLP.dropout_rate": 0.3},
      ),
    )
  },
  # Ten labelled images per class, and a teacher that was trained with all labels.
  "distillation": {
    **_chosen("regularizers", "distillation", weight=1.0, temperature=4.0),
    **{**FEW_LABELS, "teacher.workdir": "runs/toolbox_digits-none"},
  },
  "early_stopping": {"average.name": "early_stopping", "epochs": 100, "eval_every": 2},
  "swa": {"average.name": "swa"},
  "swag": {"average.name": "swag", "average.swag.start": 0.3},
  "ema": {"average.name": "ema"},
  "power_ema": {"average.name": "power_ema"},
  "bagging": {"ensemble": 5, "replicas": 5, "data.bootstrap": True},
  "deep_ensemble": {"ensemble": 5, "replicas": 5},
  "max_norm": _chosen("optimizer.constraints", "max_norm", limit=1.0),
  "unit_norm": _chosen("optimizer.constraints", "unit_norm"),
  "min_max_norm": _chosen("optimizer.constraints", "min_max_norm", low=0.5, high=1.0),
  "prox_l1": _chosen("optimizer.constraints", "prox_l1", weight=1e-2),
  "prox_elastic_net": _chosen("optimizer.constraints", "prox_elastic_net", weight=1e-2, ratio=0.5),
  "prox_group_lasso": _chosen("optimizer.constraints", "prox_group_lasso", weight=1e-2),
  "prox_l0": _chosen("optimizer.constraints", "prox_l0", weight=1e-3),
  "prox_non_negative": _chosen("optimizer.constraints", "prox_non_negative"),
  "gaussian_noise": _chosen("noise", "gaussian_noise", std=0.2),
  "weight_noise": _chosen("noise", "weight_noise", std=0.05),
  "dropconnect": _chosen("noise", "dropconnect_params", rate=0.3),
  "dropout": {"model.MLP.dropout_rate": 0.3},
  "mc_dropout": {"model.MLP.dropout_rate": 0.3, "evaluate.mc_samples": 20},
  **{
    f"{mean}_mean": {"model.MLP.dropout_rate": 0.3, "evaluate.combine": mean, "evaluate.mc_samples": number}
    for mean, number in (("geometric", 20), ("weight_scaling", 0))
  },
  "gaussian_dropout": {"model.MLP.dropout": "gaussian_dropout", "model.MLP.dropout_rate": 0.3},
  "hidden_noise": {"model.MLP.hidden_noise_std": 0.3},
  "alpha_dropout": {
    **{"model.MLP.dropout": "alpha_dropout", "model.MLP.dropout_rate": 0.1},
    **{"model.MLP.activation": "selu", "model.MLP.initializer": "lecun"},
  },
  "concrete_dropout": {"model.MLP.layer": "concrete_dropout", **LEARNED_RATES},
  "variational_dropout": {"model.MLP.layer": "variational_dropout", **LEARNED_RATES},
  "weight_norm": {"model.MLP.layer": "weight_norm"},
  "spectral_norm": {"model.MLP.layer": "spectral_norm"},
  **{
    name: {
      **SMALL_RESNET,
      "model.CifarResNet.dropout": name,
      "model.CifarResNet.dropout_rate": rate,
      "model.CifarResNet.block_size": 2,
    }
    for name, rate in (("spatial_dropout", 0.1), ("drop_block", 0.02))
  },
  **{
    name: {**SMALL_RESNET, "model.CifarResNet.branch_noise": name}
    for name in ("stochastic_depth", "shake_drop", "shake_shake")
  },
  "layer_scale": {**SMALL_RESNET, "model.CifarResNet.layer_scale": 0.1},
  "standardized": {**SMALL_RESNET, "model.CifarResNet.standardized": True},
  "token_dropout": {"model.name": "RNN", "model.RNN.num_kept": 7, "optimizer.learning_rate": 0.005},
  "recurrent_dropout": {
    "model.name": "RNN",
    "model.RNN.dropout_rate": 0.3,
    "model.RNN.input_dropout_rate": 0.1,
  },
  "rnn_weight_noise": {"model.name": "RNN", "model.RNN.weight_noise_std": 0.03},
  "label_smoothing": {"method.name": "label_smoothing"},
  "label_noise": _chosen("noise", "label_noise", rate=0.1),
  "large_margin": {"method.name": "large_margin"},
  "focal": {"method.name": "focal"},
  "poly_loss": {"method.name": "poly_loss"},
  "confidence_penalty": {"method.name": "confidence_penalty"},
  "logit_adjustment": {
    "method.name": "logit_adjustment",
    "method.logit_adjustment.loss.class_counts": (1,) * 10,
  },
  "cosface": {
    "method.name": "cosface",
    "method.cosface.loss.scale": 16.0,
  },
  "arcface": {
    "method.name": "arcface",
    "method.arcface.loss.scale": 16.0,
  },
  "bi_tempered": {"method.name": "bi_tempered"},
  "generalized_cross_entropy": {"method.name": "generalized_cross_entropy"},
  "active_passive": {"method.name": "active_passive"},
  "forward_correction": {
    "method.name": "forward_correction",
    "method.forward_correction.loss.transitions": tuple(
      0.91 if label == true else 0.01 for true in range(10) for label in range(10)
    ),
  },
  "rand_augment": {"augment.names": ("rand_augment",), "augment.rand_augment.magnitude": 4.0},
  "auto_augment": {"augment.names": ("auto_augment",), "augment.auto_augment.policy": "svhn"},
  "trivial_augment": {"augment.names": ("trivial_augment",)},
  "random_resized_crop": {
    "augment.names": ("random_resized_crop",),
    "augment.random_resized_crop.area": (0.6, 1.0),
  },
  "color_jitter": {"augment.names": ("color_jitter",)},
  "mixup": {"augment.names": ("mixup",)},
  "manifold_mixup": {
    "augment.names": ("manifold_mixup",),
    "augment.manifold_mixup.layers": ("backbone", "backbone/Dense_1", "head"),
  },
  "cutmix": {"augment.names": ("cutmix",)},
  "translate": {"augment.names": ("translate",), "augment.translate.max_shift": 1},
  "rotate": {"augment.names": ("rotate",)},
  "scale": {"augment.names": ("scale",)},
  "cutout": {"augment.names": ("cutout",), "augment.cutout.size": 2},
  "random_erasing": {"augment.names": ("random_erasing",), "augment.random_erasing.area": (0.02, 0.2)},
}
VARIANTS = tuple(TOOLBOX)


def get_config(name: str = "l2") -> Config:
  if name not in TOOLBOX:
    raise unknown("argument", name, TOOLBOX)
  config = softmax_digits()
  config.model.MLP.widths = (64, 64)
  config.model.MLP.dropout_rate = 0.0
  config.optimizer.weight_decay.rate = 0.0
  config.epochs = 30
  config.eval_every = config.checkpoint.every = 10
  config.update_from_flattened_dict(TOOLBOX[name])
  return config

"""Over eighty regularizers side by side on 1000 MNIST images, five seeds each.

Command: python run.py --config configs/compare_toolbox_mnist1k.py --config.data.idx.path=DIR
         python run.py --config configs/compare_toolbox_mnist1k.py:epochs --config.data.idx.path=DIR
         python run.py --config configs/compare_toolbox_mnist1k.py:flipped --config.data.idx.path=DIR
         python run.py --config configs/compare_toolbox_mnist1k.py:decay --config.data.idx.path=DIR
         python run.py --config configs/compare_toolbox_mnist1k.py:stopping --config.data.idx.path=DIR
         python run.py --config configs/compare_toolbox_mnist1k.py:optimizers --config.data.idx.path=DIR
         python run.py --config configs/compare_toolbox_mnist1k.py:vit --config.data.idx.path=DIR
Source: Na, `Regularization for Deep Learning`, lecture, Chonbuk National University, names them; the
comparison is ours.

1000 training images and the next 1000 for validation; an MLP (256, 256), Adam, 60 epochs, and fewer for rows
whose steps pass several times through the network: `PASSES`. Each strength is chosen among three, if there is
one, from one seed, by the error on the validation split; then five seeds are trained in one program. Early
stopping evaluates that split every second epoch. Ensembles have five members. The six methods for images
without labels add 100 of the 58000 others to each batch. R-Drop, the Pi model and the mean teacher have
dropout at a rate of 0.3.

`epochs`: the rows of several passes with 60 epochs each, and longer trainings without a regularizer.
`flipped`: a fifth of the training labels is changed to another class, with six of the rows.
`decay`: the kinds of weight decay, 29 runs.
`stopping`: early stopping by three metrics, with a fifth of the labels changed.
`optimizers`: Adam beside others by name.
`vit`: the noise of a small Vision Transformer: 16 patches of 7x7, 64 units, 4 blocks.
DIR has the idx files.
"""

from configs.dropmax_mnist import get_config as dropmax_mnist
from jaxreg.train import Config


def _regularizer(name: str, **options: object) -> dict[str, object]:
  return {
    "regularizers.names": (name,),
    **{f"regularizers.{name}.{option}": value for option, value in options.items()},
  }


def _method(name: str, **options: object) -> dict[str, object]:
  return {"method.name": name, **{f"method.{name}.loss.{option}": value for option, value in options.items()}}


def _unlabelled(name: str, **fields: object) -> dict[str, object]:
  return {**_regularizer(name), **fields, "data.unlabelled.batch_size": 100}


ATTACK = {"clip": (0.0, 1.0)}
DROPOUT = {"model.MLP.dropout_rate": 0.3}
# The weight of its KL is that of the whole training set, 1 / 1000, and the grid is around it.
LEARNED_RATES = _regularizer("learned_dropout")


def _decay(kind: str, *rates: float, **options: object) -> tuple[dict[str, object], dict[str, object]]:
  decay = "optimizer.weight_decay"
  fields = {
    f"{decay}.{name}": value for name, value in {"kind": kind, "mask": "kernels_only", **options}.items()
  }
  return fields, {f"{decay}.rate": rates}


# The kinds of weight decay. Beside the gradient, their rates are equal at the largest learning rate, 1e-3.
DECAYS = {
  "none": ({}, {}),
  "coupled": _decay("coupled", 1e-4, 1e-3, 1e-2),
  "decoupled": _decay("decoupled", 0.1, 1.0, 10.0),
  "independent": _decay("independent", 1e-4, 1e-3, 1e-2),
  "cautious": _decay("cautious", 0.1, 1.0, 10.0),
  "corrected": _decay("corrected", 0.1, 1.0, 10.0),
  "fixed norm": _decay("fixed_norm", 1.0, 3.0, 10.0),
  "fixed norm by unit": _decay("fixed_norm", 1.0, 3.0, 10.0, blocks="unit"),
}
# Fields that choose a regularizer, and the strengths to search.
ROWS = {
  "none": ({}, {}),
  # Penalties on the weights.
  "L2": (_regularizer("l2"), {"regularizers.l2.weight": (1e-4, 1e-3, 1e-2)}),
  "L1": (_regularizer("l1"), {"regularizers.l1.weight": (1e-5, 1e-4, 1e-3)}),
  "elastic net": (_regularizer("elastic_net"), {"regularizers.elastic_net.weight": (1e-5, 1e-4, 1e-3)}),
  "group lasso": (_regularizer("group_lasso"), {"regularizers.group_lasso.weight": (1e-5, 1e-4, 1e-3)}),
  "Hoyer": (_regularizer("hoyer"), {"regularizers.hoyer.weight": (1e-7, 1e-6, 1e-5)}),
  "orthogonality": (_regularizer("orthogonality"), {"regularizers.orthogonality.weight": (1e-5, 1e-4, 1e-3)}),
  "distance from the start": (_regularizer("l2_sp"), {"regularizers.l2_sp.weight": (1e-4, 1e-3, 1e-2)}),
  "decoupled weight decay": _decay("decoupled", 1e-2, 1e-1, 1.0),
  "cautious weight decay": _decay("cautious", 1e-2, 1e-1, 1.0),
  "fixed norm": DECAYS["fixed norm"],
  # Proximal steps and constraints.
  "proximal L1": (
    {"optimizer.constraints.names": ("prox_l1",)},
    {"optimizer.constraints.prox_l1.weight": (1e-3, 1e-2, 1e-1)},
  ),
  "proximal elastic net": (
    {"optimizer.constraints.names": ("prox_elastic_net",)},
    {"optimizer.constraints.prox_elastic_net.weight": (1e-3, 1e-2, 1e-1)},
  ),
  "proximal group lasso": (
    {"optimizer.constraints.names": ("prox_group_lasso",)},
    {"optimizer.constraints.prox_group_lasso.weight": (1e-3, 1e-2, 1e-1)},
  ),
  "proximal L0": (
    {"optimizer.constraints.names": ("prox_l0",)},
    {"optimizer.constraints.prox_l0.weight": (1e-4, 1e-3, 1e-2)},
  ),
  "max-norm": (
    {"optimizer.constraints.names": ("max_norm",)},
    {"optimizer.constraints.max_norm.limit": (0.5, 1.0, 2.0)},
  ),
  "min-max norm": (
    {"optimizer.constraints.names": ("min_max_norm",)},
    {"optimizer.constraints.min_max_norm.high": (0.75, 1.0, 2.0)},
  ),
  "unit norm": ({"optimizer.constraints.names": ("unit_norm",)}, {}),
  "weights of at least 0": ({"optimizer.constraints.names": ("prox_non_negative",)}, {}),
  # Noise.
  "dropout": ({}, {"model.MLP.dropout_rate": (0.25, 0.5, 0.75)}),
  "MC dropout": ({"evaluate.mc_samples": 20}, {"model.MLP.dropout_rate": (0.25, 0.5, 0.75)}),
  "Gaussian dropout": (
    {"model.MLP.dropout": "gaussian_dropout"},
    {"model.MLP.dropout_rate": (0.25, 0.5, 0.75)},
  ),
  "alpha dropout, SELU": (
    {"model.MLP.dropout": "alpha_dropout", "model.MLP.activation": "selu", "model.MLP.initializer": "lecun"},
    {"model.MLP.dropout_rate": (0.05, 0.1, 0.2)},
  ),
  "concrete dropout": (
    {"model.MLP.layer": "concrete_dropout", **LEARNED_RATES},
    {"regularizers.learned_dropout.weight": (1e-4, 1e-3, 1e-2)},
  ),
  "variational dropout": (
    {"model.MLP.layer": "variational_dropout", **LEARNED_RATES},
    {"regularizers.learned_dropout.weight": (1e-4, 1e-3, 1e-2)},
  ),
  "DropConnect": (
    {"noise.names": ("dropconnect_params",)},
    {"noise.dropconnect_params.rate": (0.25, 0.5, 0.75)},
  ),
  "R-Drop": ({**_regularizer("r_drop"), **DROPOUT}, {"regularizers.r_drop.weight": (0.3, 1.0, 3.0)}),
  "input noise": ({"noise.names": ("gaussian_noise",)}, {"noise.gaussian_noise.std": (0.1, 0.2, 0.4)}),
  "hidden noise": ({}, {"model.MLP.hidden_noise_std": (0.1, 0.3, 1.0)}),
  "weight noise": ({"noise.names": ("weight_noise",)}, {"noise.weight_noise.std": (0.02, 0.05, 0.1)}),
  "label noise": ({"noise.names": ("label_noise",)}, {"noise.label_noise.rate": (0.05, 0.1, 0.2)}),
  "gradient noise": (
    {"optimizer.name": "gradient_noise", "optimizer.gradient_noise.inner": "adam"},
    {"optimizer.gradient_noise.variance": (1e-4, 1e-3, 1e-2)},
  ),
  # Losses and heads.
  "label smoothing": (
    _method("label_smoothing"),
    {"method.label_smoothing.loss.smoothing": (0.05, 0.1, 0.2)},
  ),
  "confidence penalty": (
    _method("confidence_penalty"),
    {"method.confidence_penalty.loss.weight": (0.1, 0.3, 1.0)},
  ),
  "focal": (_method("focal"), {"method.focal.loss.gamma": (0.5, 1.0, 2.0)}),
  "PolyLoss": (_method("poly_loss"), {"method.poly_loss.loss.epsilon": (-1.0, 1.0, 2.0)}),
  "bi-tempered": (_method("bi_tempered"), {"method.bi_tempered.loss.t1": (0.2, 0.5, 0.8)}),
  "large margin": (_method("large_margin"), {"method.large_margin.loss.weight": (0.1, 0.3, 1.0)}),
  "CosFace": (_method("cosface", scale=16.0), {"method.cosface.loss.margin": (0.1, 0.2, 0.35)}),
  "ArcFace": (_method("arcface", scale=16.0), {"method.arcface.loss.margin": (0.1, 0.2, 0.5)}),
  "z-loss": (_regularizer("z_loss"), {"regularizers.z_loss.weight": (1e-4, 1e-3, 1e-2)}),
  "sparsemax": (_method("sparsemax"), {}),
  "sampled softmax": (_method("sampled_softmax"), {"method.sampled_softmax.loss.rate": (0.8, 0.6, 0.4)}),
  "group softmax": (_method("group_softmax"), {"method.group_softmax.loss.num_groups": (2, 4, 8)}),
  "random DropMax": (_method("random_dropmax"), {"method.random_dropmax.loss.rate": (0.8, 0.6, 0.4)}),
  "DropMax": (_method("dropmax"), {"method.dropmax.loss.kl_weight": (0.3, 1.0, 3.0)}),
  # Smooth functions of the inputs, and few active units.
  "gradient penalty": (
    _regularizer("gradient_penalty"),
    {"regularizers.gradient_penalty.weight": (0.01, 0.1, 1.0)},
  ),
  "Jacobian penalty": (
    _regularizer("jacobian_penalty"),
    {"regularizers.jacobian_penalty.weight": (1e-3, 1e-2, 1e-1)},
  ),
  "L1 of the activities": (
    _regularizer("l1_activity"),
    {"regularizers.l1_activity.weight": (1e-4, 1e-3, 1e-2)},
  ),
  "variance of the activities": (
    _regularizer("activity_variance"),
    {"regularizers.activity_variance.weight": (1e-2, 1e-1, 1.0)},
  ),
  "covariance of the activities": (
    _regularizer("activity_covariance"),
    {"regularizers.activity_covariance.weight": (1e-3, 1e-2, 1e-1)},
  ),
  "KL sparsity, sigmoid": (
    {**_regularizer("kl_sparsity", target=0.1), "model.MLP.activation": "sigmoid"},
    {"regularizers.kl_sparsity.weight": (1e-4, 1e-3, 1e-2)},
  ),
  "FGSM": (_regularizer("fgsm", **ATTACK), {"regularizers.fgsm.eps": (0.05, 0.1, 0.2)}),
  "PGD": (_regularizer("pgd", **ATTACK, step_size=0.05), {"regularizers.pgd.eps": (0.05, 0.1, 0.2)}),
  "TRADES": (_regularizer("trades", **ATTACK, step_size=0.05), {"regularizers.trades.eps": (0.05, 0.1, 0.2)}),
  # Images without labels.
  "VAT": (_unlabelled("virtual_adversarial"), {"regularizers.virtual_adversarial.eps": (0.5, 1.0, 2.0)}),
  "entropy": (_unlabelled("entropy"), {"regularizers.entropy.weight": (0.03, 0.1, 0.3)}),
  "pseudo-label": (_unlabelled("pseudo_label"), {"regularizers.pseudo_label.weight": (0.3, 1.0, 3.0)}),
  "Pi model": (_unlabelled("pi_model", **DROPOUT), {"regularizers.pi_model.weight": (0.3, 1.0, 3.0)}),
  "mean teacher": (
    _unlabelled("mean_teacher", **DROPOUT, **{"average.name": "ema", "average.ema.decay": 0.99}),
    {"regularizers.mean_teacher.weight": (0.3, 1.0, 3.0)},
  ),
  "FixMatch": (
    _unlabelled(
      "fixmatch",
      **{"augment.names": ("translate",), "augment.translate.max_shift": 2},
      **{"regularizers.fixmatch.cutout_size": 8},
    ),
    {"regularizers.fixmatch.weight": (0.3, 1.0, 3.0)},
  ),
  # Augmentation.
  "mixup": ({"augment.names": ("mixup",)}, {"augment.mixup.alpha": (0.1, 0.2, 0.4)}),
  "manifold mixup": (
    {
      "augment.names": ("manifold_mixup",),
      "augment.manifold_mixup.per_example": False,
      "augment.manifold_mixup.layers": ("backbone", "backbone/Dense_1", "head"),
    },
    {"augment.manifold_mixup.alpha": (0.1, 0.5, 2.0)},
  ),
  "CutMix": ({"augment.names": ("cutmix",)}, {"augment.cutmix.alpha": (0.1, 0.3, 1.0)}),
  "cutout": ({"augment.names": ("cutout",)}, {"augment.cutout.size": (4, 8, 12)}),
  "random erasing": (
    {"augment.names": ("random_erasing",)},
    {"augment.random_erasing.rate": (0.25, 0.5, 0.75)},
  ),
  "shifts": ({"augment.names": ("translate",)}, {"augment.translate.max_shift": (1, 2, 4)}),
  "rotations": ({"augment.names": ("rotate",)}, {"augment.rotate.max_degrees": (5.0, 10.0, 20.0)}),
  "scales": ({"augment.names": ("scale",)}, {"augment.scale.max_factor": (1.1, 1.2, 1.4)}),
  "random crops": (
    {"augment.names": ("random_resized_crop",), "augment.random_resized_crop.area": (0.7, 1.0)},
    {},
  ),
  "RandAugment": ({"augment.names": ("rand_augment",)}, {"augment.rand_augment.magnitude": (2.0, 4.0, 8.0)}),
  "AutoAugment": (
    {"augment.names": ("auto_augment",)},
    {"augment.auto_augment.policy": ("svhn", "cifar10", "imagenet")},
  ),
  "TrivialAugment": ({"augment.names": ("trivial_augment",)}, {}),
  "AugMix": (_regularizer("augmix"), {"regularizers.augmix.weight": (1.0, 4.0, 12.0)}),
  # Optimizers that look for flat minima, averages and ensembles.
  "SAM": ({"optimizer.name": "sam", "optimizer.sam.inner": "adam"}, {"optimizer.sam.rho": (0.02, 0.05, 0.2)}),
  "ASAM": (
    {"optimizer.name": "asam", "optimizer.asam.inner": "adam"},
    {"optimizer.asam.rho": (0.2, 0.5, 2.0)},
  ),
  "GSAM": (
    {"optimizer.name": "gsam", "optimizer.gsam.inner": "adam"},
    {"optimizer.gsam.rho": (0.02, 0.05, 0.2)},
  ),
  "early stopping": (
    {"average.name": "early_stopping", "eval_every": 2},
    {"average.early_stopping.patience": (3, 5, 10)},
  ),
  "EMA": ({"average.name": "ema"}, {"average.ema.decay": (0.9, 0.99, 0.999)}),
  "power EMA": ({"average.name": "power_ema"}, {"average.power_ema.length": (0.05, 0.1, 0.2)}),
  "SWA": ({"average.name": "swa"}, {"average.swa.start": (0.25, 0.5, 0.75)}),
  "SWA, constant rate": (
    {"average.name": "swa", "average.swa.every": 1, "optimizer.schedule.name": "constant"},
    {"average.swa.decay": ("linear", "cosine", "sqrt")},
  ),
  "SWAG": ({"average.name": "swag"}, {"average.swag.start": (0.25, 0.5, 0.75)}),
  "bagging (5)": ({"ensemble": 5, "data.bootstrap": True}, {}),
  "deep ensemble (5)": ({"ensemble": 5}, {}),
  # Parametrisations.
  "weight norm": ({"model.MLP.layer": "weight_norm"}, {}),
  "spectral norm": ({"model.MLP.layer": "spectral_norm"}, {}),
}
# Passes through the network, forward and back, of a step: about its time in `docs/toolbox.md`, without the
# image operations of FixMatch and AugMix. The epochs are divided by it, for equal cost.
PASSES = {
  **dict.fromkeys(("R-Drop", "gradient penalty", "Jacobian penalty", "FGSM", "SAM", "ASAM", "GSAM"), 2),
  **dict.fromkeys(("entropy", "pseudo-label", "mean teacher"), 2),
  **dict.fromkeys(("Pi model", "FixMatch", "AugMix"), 3),
  **dict.fromkeys(("PGD", "bagging (5)", "deep ensemble (5)"), 5),
  **{"VAT": 6, "TRADES": 8},
}
FLIPPED = ("none", "dropout", "label smoothing", "bi-tempered", "mixup", "early stopping")
METRICS = {"by error": "val/error", "by NLL": "val/nll", "by refined NLL": "val/nll_refined"}
_stopping, _patience = ROWS["early stopping"]
STOPPING = {
  "none": ({}, {}),
  **{label: ({**_stopping, "checkpoint.best": metric}, _patience) for label, metric in METRICS.items()},
}


def _optimizer(name: str, *rates: float, **options: object) -> tuple[dict[str, object], dict[str, object]]:
  fields = {
    "optimizer.name": name,
    **{f"optimizer.{name}.{option}": value for option, value in options.items()},
  }
  return fields, {"optimizer.learning_rate": rates}


# Learning rates are around what each source suggests; Prodigy finds its own, which this number multiplies.
OPTIMIZERS = {
  "Adam": _optimizer("adam", 3e-4, 1e-3, 3e-3),
  "momentum": _optimizer("sgd", 1e-2, 3e-2, 1e-1, momentum=0.9),
  "Muon": _optimizer("muon", 3e-3, 1e-2, 3e-2),
  "schedule-free Adam": (
    _optimizer("schedule_free", inner="adam")[0] | {"optimizer.schedule.name": "constant"},
    {"optimizer.learning_rate": (1e-3, 3e-3, 1e-2)},
  ),
  "Sophia": _optimizer("sophia", 1e-4, 3e-4, 1e-3),
  "AdEMAMix": _optimizer("ademamix", 3e-4, 1e-3, 3e-3),
  "ADOPT": _optimizer("adopt", 3e-4, 1e-3, 3e-3),
  "Prodigy": _optimizer("prodigy", 0.5, 1.0, 2.0),
}
VIT = {
  "none": ({}, {}),
  "dropout": ({}, {"model.ViT.dropout_rate": (0.05, 0.1, 0.2)}),
  "attention dropout": ({}, {"model.ViT.attention_dropout_rate": (0.1, 0.2, 0.4)}),
  "DropKey": ({}, {"model.ViT.dropkey_rate": (0.1, 0.2, 0.4)}),
  "stochastic depth": ({}, {"model.ViT.branch_rate": (0.1, 0.2, 0.4)}),
}
# The rows of several passes, each with all epochs, beside longer trainings without a regularizer.
EPOCHS = {
  "none": ROWS["none"],
  **{f"none, {times} times the epochs": ({"epochs": 60 * times}, {}) for times in (2, 5, 8)},
  **{label: ROWS[label] for label in PASSES},
}
VARIANTS = {
  "clean": ROWS,
  "epochs": EPOCHS,
  "flipped": {label: ROWS[label] for label in FLIPPED},
  "decay": DECAYS,
  "stopping": STOPPING,
  "optimizers": OPTIMIZERS,
  "vit": VIT,
}


def get_config(variant: str = "clean") -> Config:
  if variant not in VARIANTS:
    raise ValueError(f"argument must be {', '.join(VARIANTS)}, got {variant!r}")
  config = dropmax_mnist("1k")
  config.job = "compare"
  config.method.name = "softmax"
  config.model.name = "MLP"
  config.model.MLP.widths = (256, 256)
  config.optimizer.weight_decay.rate = 0.0
  config.epochs = 60
  config.eval_every = config.checkpoint.every = 15
  rows = VARIANTS[variant]
  if variant == "vit":
    config.model.name = "ViT"
    config.model.ViT.update(patch_size=7, width=64, depth=4, num_heads=4, d_ff=128)
  if variant in ("flipped", "stopping"):
    config.data.flipped_labels.rate = 0.2
  shorter = () if variant == "epochs" else PASSES
  config.compare.rows = {
    label: {**fields, "epochs": config.epochs // PASSES[label]} if label in shorter else fields
    for label, (fields, _) in rows.items()
  }
  config.compare.grid = {label: grid for label, (_, grid) in rows.items() if grid}
  return config

"""Labels that people gave CIFAR-10, 40 or 9 per cent of them wrong: ten ways to learn from them.

Command: python run.py --config configs/wrong_labels_cifar10.py --config.data.tfds.labels_file=FILE
         (`:aggre` for the better labels; `:small` and `:small_aggre` for 4000 images, with
         --config.data.tfds.train='train[:8%]')
Source: Wei et al., `Learning with Noisy Labels Revisited: A Study Using Real-World Human Annotations`, 2022,
has the labels, CIFAR-10N; the losses' sources are in their docstrings. The comparison is ours.

FILE is an `.npz` with the arrays of the authors' `CIFAR-10_human.pt`:
`numpy.savez("cifar10n.npz", **torch.load("CIFAR-10_human.pt", weights_only=False))`. `worse_label` is the one
wrong label of three, where there is one; `aggre_label` the majority of three. A tenth of the training images
is for validation, with such labels, too; the labels of the test split are right.

All rows have the same network, data order and length, and the options of their papers, without a search.
`forward correction` is given the true shares of the confusions, which are counted with the right labels;
`forward correction, estimated` is given `ESTIMATES`, which need none. They come from all images, for `small`
too. `early stopping` evaluates after each epoch and keeps the best one.

Without an argument: ResNet-8, 30 epochs, three seeds. 30 runs of 10 500 steps, 40 minutes each on one core.
  Run so far: 10 epochs, with both kinds of labels (docs/toolbox.md).
`small`: one hidden layer of 128 units, 20 epochs with Adam on 3600 images, 400 for validation: 30 runs of 580
  steps.
"""

from configs.dropmax_cifar10 import get_config as dropmax_cifar10
from jaxreg.train import Config
from jaxreg.train.errors import unknown

VARIANTS = ("worse", "aggre", "small", "small_aggre")
# Row: the true class; column: the label that people gave it.
TRANSITIONS = {
  "worse_label": (
    (0.649, 0.066, 0.072, 0.019, 0.019, 0.023, 0.019, 0.017, 0.085, 0.031),
    (0.043, 0.593, 0.015, 0.026, 0.017, 0.015, 0.014, 0.014, 0.016, 0.247),
    (0.055, 0.037, 0.631, 0.046, 0.059, 0.048, 0.050, 0.033, 0.024, 0.017),
    (0.040, 0.034, 0.079, 0.487, 0.043, 0.206, 0.047, 0.024, 0.021, 0.019),
    (0.039, 0.033, 0.070, 0.040, 0.488, 0.106, 0.039, 0.152, 0.021, 0.012),
    (0.033, 0.028, 0.053, 0.183, 0.040, 0.582, 0.027, 0.029, 0.012, 0.013),
    (0.038, 0.038, 0.084, 0.076, 0.051, 0.058, 0.593, 0.029, 0.020, 0.013),
    (0.040, 0.028, 0.024, 0.022, 0.051, 0.062, 0.023, 0.722, 0.017, 0.011),
    (0.082, 0.073, 0.022, 0.014, 0.021, 0.019, 0.016, 0.022, 0.683, 0.048),
    (0.042, 0.282, 0.017, 0.021, 0.018, 0.018, 0.012, 0.014, 0.026, 0.550),
  ),
  "aggre_label": (
    (0.943, 0.006, 0.015, 0.000, 0.001, 0.000, 0.000, 0.000, 0.032, 0.003),
    (0.010, 0.949, 0.000, 0.000, 0.000, 0.000, 0.000, 0.000, 0.005, 0.036),
    (0.016, 0.012, 0.931, 0.006, 0.008, 0.006, 0.007, 0.002, 0.009, 0.003),
    (0.020, 0.017, 0.044, 0.825, 0.006, 0.057, 0.009, 0.002, 0.010, 0.010),
    (0.018, 0.016, 0.038, 0.015, 0.831, 0.021, 0.005, 0.038, 0.011, 0.007),
    (0.010, 0.008, 0.021, 0.052, 0.004, 0.892, 0.001, 0.004, 0.004, 0.004),
    (0.013, 0.011, 0.027, 0.020, 0.009, 0.005, 0.899, 0.000, 0.011, 0.005),
    (0.006, 0.003, 0.005, 0.005, 0.010, 0.011, 0.000, 0.956, 0.003, 0.001),
    (0.010, 0.008, 0.001, 0.001, 0.000, 0.000, 0.001, 0.000, 0.973, 0.006),
    (0.016, 0.073, 0.000, 0.000, 0.000, 0.000, 0.000, 0.000, 0.011, 0.900),
  ),
}
# The same, estimated: `losses.transition_matrix(log_probs, quantile=0.97)` of what `softmax`, seed 0,
# predicts after 10 epochs for the first 20 000 training images.
ESTIMATES = {
  "worse_label": (
    (0.638, 0.079, 0.052, 0.011, 0.011, 0.007, 0.031, 0.005, 0.154, 0.012),
    (0.004, 0.579, 0.001, 0.017, 0.003, 0.007, 0.015, 0.001, 0.000, 0.373),
    (0.084, 0.017, 0.500, 0.117, 0.064, 0.082, 0.056, 0.016, 0.054, 0.010),
    (0.038, 0.027, 0.127, 0.379, 0.025, 0.158, 0.194, 0.032, 0.008, 0.012),
    (0.046, 0.012, 0.178, 0.019, 0.370, 0.093, 0.007, 0.247, 0.022, 0.006),
    (0.019, 0.009, 0.034, 0.278, 0.014, 0.536, 0.029, 0.065, 0.009, 0.007),
    (0.007, 0.020, 0.052, 0.173, 0.040, 0.059, 0.619, 0.011, 0.010, 0.009),
    (0.025, 0.014, 0.027, 0.005, 0.111, 0.048, 0.002, 0.758, 0.001, 0.009),
    (0.025, 0.060, 0.004, 0.006, 0.013, 0.005, 0.005, 0.009, 0.764, 0.109),
    (0.048, 0.281, 0.001, 0.012, 0.008, 0.019, 0.004, 0.011, 0.025, 0.591),
  ),
  "aggre_label": (
    (0.923, 0.001, 0.001, 0.000, 0.000, 0.000, 0.000, 0.000, 0.073, 0.002),
    (0.003, 0.961, 0.001, 0.003, 0.000, 0.001, 0.002, 0.000, 0.000, 0.029),
    (0.015, 0.001, 0.775, 0.032, 0.140, 0.031, 0.002, 0.001, 0.003, 0.000),
    (0.002, 0.004, 0.014, 0.622, 0.001, 0.241, 0.092, 0.016, 0.000, 0.008),
    (0.002, 0.002, 0.039, 0.006, 0.778, 0.025, 0.000, 0.145, 0.002, 0.001),
    (0.002, 0.002, 0.033, 0.035, 0.001, 0.796, 0.002, 0.126, 0.001, 0.002),
    (0.004, 0.004, 0.042, 0.024, 0.007, 0.001, 0.911, 0.000, 0.006, 0.001),
    (0.015, 0.001, 0.001, 0.001, 0.010, 0.003, 0.000, 0.962, 0.004, 0.003),
    (0.017, 0.000, 0.000, 0.000, 0.000, 0.000, 0.000, 0.000, 0.982, 0.001),
    (0.000, 0.051, 0.000, 0.000, 0.000, 0.000, 0.000, 0.000, 0.002, 0.947),
  ),
}


def _loss(name: str, **options: object) -> dict[str, object]:
  return {"method.name": name, **{f"method.{name}.loss.{option}": value for option, value in options.items()}}


def get_config(variant: str = "worse") -> Config:
  if variant not in VARIANTS:
    raise unknown("argument", variant, VARIANTS)
  labels = "aggre_label" if variant.endswith("aggre") else "worse_label"
  config = dropmax_cifar10()
  config.job = "compare"
  config.compare.seeds = 3
  config.data.tfds.labels_array = labels
  config.method.name = "softmax"
  config.model.CifarResNet.depth = 8
  config.optimizer.schedule.name = "cosine"
  config.epochs = 30
  config.eval_every = config.checkpoint.every = 5
  if variant.startswith("small"):
    config.model.name = "MLP"
    config.model.MLP.widths = (128,)
    config.augment.names = ()
    config.optimizer.name = "adam"
    config.optimizer.learning_rate = 1e-3
    config.optimizer.weight_decay.rate = 0.0
    config.epochs = 20
  known, estimated = (
    tuple(share for row in matrices[labels] for share in row) for matrices in (TRANSITIONS, ESTIMATES)
  )
  config.compare.rows = {
    "softmax": {},
    "label smoothing": _loss("label_smoothing", smoothing=0.1),
    "bi-tempered": _loss("bi_tempered", t1=0.8, t2=1.3),
    "generalized cross-entropy": _loss("generalized_cross_entropy", q=0.7),
    "symmetric cross-entropy": _loss(
      "active_passive", active_weight=0.1, passive_weight=4.0, normalized=False
    ),
    "active-passive": _loss("active_passive", active_weight=1.0, passive_weight=4.0),
    "forward correction": _loss("forward_correction", transitions=known),
    "forward correction, estimated": _loss("forward_correction", transitions=estimated),
    "mixup": {"augment.names": (*config.augment.names, "mixup"), "augment.mixup.alpha": 1.0},
    "early stopping": {"average.name": "early_stopping", "eval_every": 1},
  }
  return config

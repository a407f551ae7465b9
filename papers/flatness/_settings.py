"""The settings of the paper's figures: which networks are trained, and what is measured at their minima."""

import dataclasses
from collections.abc import Mapping
from dataclasses import replace

Fields = Mapping[str, object]  # values of `run.py`'s configuration, by field

KEEP_PROBS = (0.8, 0.9)
STEPS = {0.2: 4000, 0.5: 2000}  # of gradient descent, by learning rate
SEEDS = range(3)
# A checkpoint after one step at a rate at which no float32 changes has the initial parameters.
START = {"optimizer.learning_rate": 1e-30, "epochs": 1, "checkpoint.every": 1}
NOISE = ("variance_flatness", "projected_variance")


@dataclasses.dataclass(frozen=True)
class Row:
  """A network: the fields that it is trained with, and its analyses."""

  fields: Fields
  analyses: tuple[str, ...] = ("profile",)


@dataclasses.dataclass(frozen=True)
class Setting:
  """The networks of some figures, and the options of their analyses.

  Attributes:
    config: the configuration of the training, `FILE[:VARIANT]` in `configs/`.
    title: the title of the figures.
    rows: the networks by label; profiles are compared with the first.
    mask: the parameters that are analysed.
    examples: the loss is over the first training examples; None for all.
    parts: gradient noise is sampled from this number of parts of the examples; 1 for whole gradients.
    points, granularity: of the profiles along five directions.
    factor: of the loss at the ends of an interval.
    directions: the number of principal components to measure, evenly spaced; None for all.
    samples: of the trajectory and of gradients, for `variance_flatness`.
    eigenpairs: the number of largest eigenpairs, by Lanczos; None for all, from Jacobians.
    curvature_samples: as `samples`, for `projected_variance`.
    noises: fields that add noise at the checkpoints of a training without it, by label.
    draws: draws of that noise for each example.
  """

  config: str
  title: str
  rows: Mapping[str, Row]
  mask: tuple[str, ...]
  examples: int | None = None
  parts: int = 1
  points: int = 51
  granularity: str = "layer"
  factor: float = 2.0
  directions: int | None = None
  samples: int = 3000
  eigenpairs: int | None = None
  curvature_samples: int = 1000
  noises: Mapping[str, Fields] = dataclasses.field(default_factory=dict)
  draws: int = 8


def rate(keep_prob: float) -> float:
  """Returns the rate of dropping, without the rounding error of `1 - keep_prob`."""
  return round(1 - keep_prob, 1)


def _descent(learning_rate: float, *, steps: int, every: int) -> dict[str, object]:
  """Returns the fields of gradient descent on all images, whose checkpoints are all kept."""
  fields = {"optimizer.learning_rate": learning_rate, "epochs": steps, "eval_every": steps}
  return {**fields, "checkpoint.every": every, "checkpoint.keep": max(2, steps // every)}


def _without_dropout(every: Mapping[float, int], steps: Mapping[float, int]) -> dict[str, Row]:
  """Returns trainings without dropout from three seeds, and their initialisations."""
  rows: dict[str, Row] = {}
  for seed in SEEDS:
    rows[f"start, seed {seed}"] = Row({"seed": seed, **START}, ("alignment",))
    for lr in STEPS:
      fields = {"seed": seed, **_descent(lr, steps=steps[lr], every=every[lr])}
      rows[f"lr {lr}, seed {seed}"] = Row(fields, ("alignment",))
  return rows


def _dropout(*keep_probs: float) -> dict[float, Fields]:
  """Returns the fields of dropout after the second hidden layer, by keep probability."""
  return {keep: {"model.MLP.dropout_rates": (0.0, rate(keep))} for keep in keep_probs}


_ONE = {**_dropout(0.9)[0.9], **_descent(0.5, steps=STEPS[0.5], every=STEPS[0.5])}
_FNN = Setting("flatness_fnn_mnist.py", "MNIST, 784-50-50-10", rows={}, mask=("backbone/Dense_1/*",))
_RESNET = Setting(
  "flatness_resnet20_cifar100.py",
  "CIFAR-100, ResNet-20",
  rows={
    "no dropout": Row({"model.CifarResNet.dropout_rate": 0.0}),
    "keep 0.8": Row({"model.CifarResNet.dropout_rate": 0.2}, ("profile", *NOISE)),
  },
  mask=("backbone/stage0_block0/Conv_0/kernel",),
  granularity="filter",
)
_TRANSFORMER = Setting(
  "flatness_transformer_multi30k.py",
  "Multi30k, transformer",
  # With more dropout the loss hardly rises by a tenth, and figure 2 has nothing to fit.
  rows={
    "no dropout": Row({"model.Transformer.dropout_rate": 0.0}),
    "keep 0.9": Row({"model.Transformer.dropout_rate": 0.1}, ("profile", *NOISE)),
    "keep 0.8": Row({"model.Transformer.dropout_rate": 0.2}, ("profile", "projected_variance")),
    "keep 0.7": Row({"model.Transformer.dropout_rate": 0.3}, ("profile", "projected_variance")),
  },
  mask=("backbone/decoder_0/self_attention/query/kernel",),
  eigenpairs=50,
)
_VGG = Setting(
  "flatness_vgg9_cifar10.py",
  "2048 images of CIFAR-10, VGG-9",
  rows={
    "no dropout": Row({"model.VGG9.dropout_rate": 0.0}),
    "keep 0.8": Row({"model.VGG9.dropout_rate": 0.2}),
  },
  mask=("*",),
  examples=2048,
  points=21,
  granularity="filter",
)
# The settings by the name of the command, and their variants by flag; "" is the default.
SETTINGS: dict[str, dict[str, Setting]] = {
  "fnn_mnist": {
    "": replace(
      _FNN,
      rows={
        f"keep {keep}, lr {lr}": Row({**fields, **_descent(lr, steps=STEPS[lr], every=STEPS[lr])}, NOISE)
        for keep, fields in _dropout(*KEEP_PROBS).items()
        for lr in STEPS
      },
      directions=250,
    ),
    "one_setting": replace(
      _FNN, rows={f"seed {seed}": Row({"seed": seed, **_ONE}, NOISE) for seed in SEEDS}, directions=250
    ),
    "first_steps": replace(
      _FNN,
      rows=_without_dropout(dict.fromkeys(STEPS, 10), dict.fromkeys(STEPS, 100)),
      noises={f"keep {keep}": fields for keep, fields in _dropout(*KEEP_PROBS).items()},
    ),
    # The noise between the hidden layers, as section 7 of the paper says, and as its appendix says.
    "alignment": replace(
      _FNN,
      rows=_without_dropout({lr: steps // 20 for lr, steps in STEPS.items()}, STEPS),
      mask=("backbone/Dense_1/kernel",),
      noises={
        f"{position}, keep {keep}": {"model.MLP.dropout_rates": rates}
        for keep in KEEP_PROBS
        for position, rates in (
          ("between the layers", (rate(keep), 0.0)),
          ("after the second", (0.0, rate(keep))),
        )
      },
      draws=2,
    ),
    "profile": replace(
      _FNN,
      config="flatness_fnn_mnist.py:profile",
      title="MNIST, 784-1024-1024-10",
      rows={
        "no dropout": Row({"model.MLP.dropout_rate": 0.0}),
        "keep 0.8 and 0.5": Row({"model.MLP.dropout_rates": (0.2, 0.5)}),
      },
      mask=("*",),
      examples=10000,
    ),
  },
  "resnet20_cifar100": {
    "": replace(
      _RESNET,
      examples=2000,
      parts=2,  # of 1000 images, as in the training
      eigenpairs=50,
    ),
    "cifar10": replace(
      _RESNET,
      config="flatness_resnet20_cifar100.py:cifar10",
      title="4000 images of CIFAR-10, ResNet-20",
      parts=32,
      points=17,
      samples=1000,
      directions=30,
    ),
  },
  "transformer_multi30k": {
    "": _TRANSFORMER,
    # Attention saturates: with 256 pairs the loss doubled along no direction in its queries.
    "small": replace(
      _TRANSFORMER,
      config="flatness_transformer_multi30k.py:small",
      title="512 pairs of Multi30k, small transformer",
      samples=500,
      directions=30,
      factor=1.1,
      curvature_samples=500,
    ),
  },
  "vgg9_cifar10": {
    "": _VGG,
  },
}

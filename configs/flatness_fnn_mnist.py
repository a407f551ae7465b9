"""Figures 2, 3 and 4 of the paper on dropout's noise and flat minima: the fully connected network on MNIST.

Command: python run.py --config configs/flatness_fnn_mnist.py --config.data.idx.path=DIR
         python run.py --config configs/flatness_fnn_mnist.py:one_setting --config.data.idx.path=DIR
         python run.py --config configs/flatness_fnn_mnist.py:first_steps --config.data.idx.path=DIR
         python run.py --config configs/flatness_fnn_mnist.py:alignment --config.data.idx.path=DIR
         python run.py --config configs/flatness_fnn_mnist.py:profile --config.data.idx.path=DIR
Source: Zhang, Zhou and Xu, `Dropout in training neural networks: flatness of solution and noise structure`,
2021, appendix A. Its "dropout rate" is the probability of keeping a unit.

784-50-50-10 on the first 10000 training images, gradient descent on all of them, dropout after the second
hidden layer, the weights and biases between the hidden layers. The learning rates and the numbers of steps
are ours: the source has them only in the legends of its figures, which are lost.

`one_setting`: figures 2 and 3 of keep 0.9 at rate 0.5, three seeds, at factor 2 and along 250 of the
principal components. Seven minutes of one core a seed; all components of the four settings take many hours.
`first_steps`: figure 4 at the initialisation and at each tenth of the first 100 steps, three seeds.
`alignment`: figure 4 at the initialisation and at 20 points of the whole training, three seeds. It has the
2500 weights between the hidden layers without the biases, and noise between them, as section 7 of the source
says; beside it noise after the second hidden layer, as the appendix says.
`profile`: figure 1a, 784-1024-1024-10 with Adam at 1e-4 on mini-batches of 100 instead of the full batch,
which would take days on a CPU; the profiles are of the first 10000 examples.
"""

from collections.abc import Callable

from jaxreg.train import Config, base_config

KEEP_PROBS = (0.8, 0.9)
STEPS = {0.2: 4000, 0.5: 2000}
SEEDS = range(3)
# A checkpoint after one step at a rate at which no float32 changes has the initial parameters.
START = {"optimizer.learning_rate": 1e-30, "epochs": 1, "checkpoint.every": 1}
VARIANTS = ("noise", "one_setting", "first_steps", "alignment", "profile")


def get_config(figure: str = "noise") -> Config:
  config = base_config()
  config.job = "flatness"
  config.data.name = "idx"
  config.model.name = "MLP"
  config.method.name = "softmax"
  if figure == "noise":
    _noise(config)
  elif figure == "one_setting":
    _noise(config)
    fields = config.flatness.rows["keep 0.9, lr 0.5"]
    config.flatness.rows = {f"seed {seed}": {"seed": seed, **fields} for seed in SEEDS}
    config.flatness.variance_flatness.factors = (2.0,)
    config.flatness.variance_flatness.directions = 250
  elif figure == "first_steps":
    _alignments(config, lambda lr: _length(100, 100, 10))
    config.checkpoint.keep = 10
  elif figure == "alignment":
    _alignments(config, lambda lr: _length(STEPS[lr], STEPS[lr], STEPS[lr] // 20))
    config.checkpoint.keep = 20
    config.flatness.mask = ("backbone/Dense_1/kernel",)
    config.flatness.alignment.noises = {
      f"{position}, keep {p}": {"model.MLP.dropout_rates": rates}
      for p in KEEP_PROBS
      for position, rates in (
        ("between the layers", (_rate(p), 0.0)),
        ("after the second", (0.0, _rate(p))),
      )
    }
    config.flatness.alignment.num_samples = 2
  elif figure == "profile":
    _profile(config)
  else:
    raise ValueError(f"argument must be {', '.join(VARIANTS)}, got {figure!r}")
  return config


def _noise(config: Config) -> None:
  config.data.idx.num_train = 10000
  config.model.MLP.widths = (50, 50)
  config.optimizer.name = "sgd"
  config.batch_size = 10000
  config.eval_batch_size = 5000
  config.log_every = 100
  config.flatness.mask = ("backbone/Dense_1/*",)
  config.flatness.analyses = ("variance_flatness", "projected_variance")
  config.flatness.variance_flatness.factors = (1.5, 2.0, 2.718281828, 3.0)
  keep = {p: {"model.MLP.dropout_rates": (0.0, _rate(p))} for p in KEEP_PROBS}
  config.flatness.alignment.noises = {f"keep {p}": keep[p] for p in KEEP_PROBS}
  rates = {
    lr: {
      "optimizer.learning_rate": lr,
      **_length(STEPS[lr], STEPS[lr] // 10, STEPS[lr] // 40),
      "checkpoint.keep": 40,
    }
    for lr in STEPS
  }
  config.flatness.rows = {
    **{f"keep {p}, lr {lr}": {**keep[p], **rates[lr]} for p in KEEP_PROBS for lr in STEPS},
    **{f"no dropout, lr {lr}": {**rates[lr], "flatness.analyses": ("alignment",)} for lr in STEPS},
  }


def _rate(keep_prob: float) -> float:
  """The rate of dropping, without the rounding error of `1 - keep_prob`."""
  return round(1 - keep_prob, 1)


def _length(epochs: int, eval_every: int, save_every: int) -> dict[str, int]:
  return {"epochs": epochs, "eval_every": eval_every, "checkpoint.every": save_every}


def _alignments(config: Config, length: Callable[[float], dict[str, int]]) -> None:
  """Figure 4 alone: trainings without dropout, from their initialisation on, three seeds."""
  _noise(config)
  config.flatness.analyses = ("alignment",)
  config.flatness.rows = {}
  for seed in SEEDS:
    config.flatness.rows[f"start, seed {seed}"] = {"seed": seed, **START}
    for lr in STEPS:
      fields = {"seed": seed, "optimizer.learning_rate": lr, **length(lr)}
      config.flatness.rows[f"lr {lr}, seed {seed}"] = fields


def _profile(config: Config) -> None:
  config.model.MLP.widths = (1024, 1024)
  config.optimizer.name = "adam"
  config.optimizer.learning_rate = 1e-4
  config.batch_size = 100
  config.epochs = 30
  config.eval_every = config.checkpoint.every = 5
  config.flatness.analyses = ("profile",)
  config.flatness.examples = 10000
  config.flatness.rows = {"no dropout": {}, "keep 0.8 and 0.5": {"model.MLP.dropout_rates": (0.2, 0.5)}}

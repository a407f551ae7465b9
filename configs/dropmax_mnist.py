"""DropMax on MNIST with 1000, 5000 or 55000 training images.

Command: python run.py --config configs/dropmax_mnist.py:1k --config.data.idx.path=DIR
         (DIR holds the four idx files; the softmax baseline: --config.method.name=softmax)
Source: Lee et al., `DropMax: Adaptive Variational Softmax`, 2018.

`1k`, `5k`, `55k`: the schedule of the released code, LeNet, batches of 100, Adam at 1e-3, 1e-4 and 1e-5
  switched at the thirds of the run, coupled weight decay of 1e-4 on all but the mask branches. 200 epochs for
  1K as released; the code gives no number for the others: 100 for 5K and 20 for 55K are ours.
`1k-appendix`, `5k-appendix`, `55k-appendix`: appendix C: TensorFlow's tutorial CNN, batches of 50, Adam from
  1e-4, 2000, 500 and 100 epochs. The appendix gives no schedule (here constant) and searches the weight decay
  in {0, 1e-5, 1e-4, 1e-3} (here 1e-4, by override the others); whether its CNN kept the tutorial's dropout is
  not known (here it does).
1K and 5K: the first 100 or 500 of each class in the order of the files, the next as many for validation; 55K:
the first 5000 images for validation, the others for training. Inputs in [0, 1], no augmentation.

The paper's test error for 1K (confirmed by its poster): softmax 7.09 %, DropMax 5.32 %. For 5K and 55K its
figures are not confirmed.
Ours for `1k` (`compare_dropmax_mnist1k`) and `1k-appendix`: papers/dropmax. One to two minutes a run of `1k`
on 2 cores, half an hour a seed of `1k-appendix` on one.
"""

from jaxreg.train import Config, base_config

PER_CLASS = {"1k": 100, "5k": 500, "55k": 0}
EPOCHS = {"1k": 200, "5k": 100, "55k": 20}
APPENDIX_EPOCHS = {"1k": 2000, "5k": 500, "55k": 100}
VARIANTS = tuple(f"{size}{schedule}" for size in PER_CLASS for schedule in ("", "-appendix"))


def get_config(variant: str = "1k") -> Config:
  size, _, schedule = variant.partition("-")
  if size not in PER_CLASS or schedule not in ("", "appendix"):
    raise ValueError(f"argument must be 1k, 5k or 55k, or one of them with -appendix, got {variant!r}")
  config = base_config()
  config.data.name = "idx"
  config.data.subset.per_class, config.data.subset.drawn = PER_CLASS[size], False
  config.method.name = "dropmax"
  config.optimizer.name = "adam"
  config.optimizer.weight_decay.rate = 1e-4
  config.optimizer.weight_decay.mask = "no_branches"
  if schedule == "appendix":
    config.model.name = "TutorialCNN"
    config.batch_size = 50
    config.epochs = APPENDIX_EPOCHS[size]
    config.optimizer.learning_rate = 1e-4
  else:
    config.model.name = "LeNet"
    config.batch_size = 100
    config.epochs = EPOCHS[size]
    config.optimizer.learning_rate = 1e-3
    config.optimizer.schedule.name = "step"
    config.optimizer.schedule.step.boundaries = (1 / 3, 2 / 3)
    config.optimizer.schedule.step.relative = True
  config.eval_every = config.checkpoint.every = max(config.epochs // 20, 1)
  return config

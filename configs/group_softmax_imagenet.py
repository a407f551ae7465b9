"""Group softmax on ImageNet and on its subsets, with ResNet-50.

Command: python run.py --config configs/group_softmax_imagenet.py --config.data.tfds.manual_dir=DIR
         (DIR holds ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar; a prepared set needs no DIR)
Source: Kobayashi, `Group Softmax Loss with Discriminative Feature Grouping`, 2021, supplement, Tables B.1 and
B.2: batches of 256, SGD with momentum 0.9 from 0.1, divided by 10 at three epochs, weight decay 1e-4.

`all` (without an argument): 120 epochs, drops at 30, 60 and 90. `classes100`, `classes200`: 100 or 200
classes, 180 epochs, drops at 60, 120 and 150; `classes500`: as `all`. `images100`, `images200`: 100 or 200
images of each of the 1000 classes, 240 epochs, drops at 90, 180 and 210; `images500`: 180 epochs, drops at
60, 120 and 150. Any of them takes `-he`, as in `all-he`: the preprocessing of He et al., 2016, which the
supplement names as its source, instead of ours.

The paper's error, % (Table B.2; without spreads):

             all   classes100  classes200  classes500  images100  images200  images500
  softmax    23.5  15.4        18.1        20.2        49.3       40.3       30.2
  type I     23.3  14.6        16.3        19.0        47.6       38.0       28.8
  type II    24.1  13.0        15.6        19.1        46.8       38.0       29.3

This config uses type II below 500 000 training images and type I from there on, as the paper advises. For the
other type set --config.method.group_softmax.loss.kind; for softmax use `softmax_imagenet`. Not confirmed, and
so ours: ResNet-50 (the author's other results with this recipe use it), 8 groups, the classes and images of
the subsets (drawn by `data.subset.seed`), weight decay on all parameters, as in PyTorch's SGD, and the crops.
The supplement calls its crops "standard" and cites He et al., whose crops are `-he`; without `-he` they are
the crops that PyTorch's own examples call standard. The error is the last epoch's, on the validation split;
nothing is chosen on it. We have not run this config, and its time is not measured.
"""

from configs._photographs import group_softmax, he_preprocessing, tfds
from jaxreg.train import Config
from jaxreg.train.errors import unknown

SCHEDULES = {
  "all": ("I", (30.0, 60.0, 90.0), 120),
  "classes100": ("II", (60.0, 120.0, 150.0), 180),
  "classes200": ("II", (60.0, 120.0, 150.0), 180),
  "classes500": ("I", (30.0, 60.0, 90.0), 120),
  "images100": ("II", (90.0, 180.0, 210.0), 240),
  "images200": ("II", (90.0, 180.0, 210.0), 240),
  "images500": ("I", (60.0, 120.0, 150.0), 180),
}
VARIANTS = tuple(f"{data}{crops}" for crops in ("", "-he") for data in SCHEDULES)


def get_config(variant: str = "all") -> Config:
  if variant not in VARIANTS:
    raise unknown("argument", variant, VARIANTS)
  variant, _, crops = variant.partition("-")
  config = group_softmax(*SCHEDULES[variant])
  if crops:
    he_preprocessing(config)
  tfds(config, "imagenet2012", test="validation")
  if variant.startswith("classes"):
    config.data.subset.num_classes = int(variant.removeprefix("classes"))
  elif variant.startswith("images"):
    config.data.subset.per_class = int(variant.removeprefix("images"))
  if variant == "all":
    config.eval_every = config.checkpoint.every = 1
  return config

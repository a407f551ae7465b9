"""Parts shared by the photograph configs: ImageNet's preprocessing and residual network, and two recipes.

The preprocessing is ours if a paper does not state it. Training takes a crop of random area (8 to 100 %) and
aspect (3/4 to 4/3), scaled to 224x224, and flips. Evaluation scales the shorter side to 256 and takes the
central 224x224. Channels are standardised by ImageNet's usual mean and standard deviation.
"""

from jaxreg.train import Config, base_config

SIZES = {  # classes and training images, for `jaxreg compile` without the data
  "imagenet2012": (1000, 1_281_167),
  "food101": (101, 75_750),
  "sun397/standard-part1-120k": (397, 19_850),
  "caltech_birds2011": (200, 5_994),
}


def photographs(depth: int) -> Config:
  config = base_config()
  config.augment.mean = (0.485, 0.456, 0.406)
  config.augment.std = (0.229, 0.224, 0.225)
  config.model.name = "ResNet"
  config.model.ResNet.depth = depth
  config.model.ResNet.stem = "imagenet"
  config.optimizer.name = "sgd"
  config.optimizer.sgd.momentum = 0.9
  config.optimizer.schedule.name = "step"
  config.eval_every = config.checkpoint.every = 5
  return config


def group_softmax(kind: str, drops: tuple[float, ...], epochs: int) -> Config:
  """Table B.1 of the supplement of Kobayashi, 2021, without the data; `drops` are epochs."""
  config = photographs(depth=50)
  config.batch_size = 256
  config.epochs = epochs
  config.optimizer.learning_rate = 0.1
  config.optimizer.schedule.step.boundaries = drops
  config.optimizer.weight_decay.rate = 1e-4
  config.optimizer.weight_decay.mask = "everything"
  config.method.name = "group_softmax"
  config.method.group_softmax.loss.num_groups = 8
  config.method.group_softmax.loss.kind = kind
  if kind == "II":  # its logits are about num_groups times too large
    config.method.group_softmax.predict.logit_scale = 1 / 8
  return config


def he_preprocessing(config: Config) -> None:
  """The training crops of He et al., 2016, section 3.4, which the supplement's B.1 calls standard.

  The shorter side is drawn from 256 to 480, the crop from anywhere in the image or its mirror image, and one
  colour is added. He et al. subtract the mean per pixel; here, as in all our configs, it is per channel.
  """
  config.data.stream.sides = (256, 480)
  config.augment.names = ("lighting",)


def dropmax(drops: tuple[float, ...], epochs: int, weight_decay: float) -> Config:
  """Appendix C of Lee et al., 2018, for AWA and CUB-200-2011, without the data; `drops` are epochs."""
  config = photographs(depth=18)
  config.batch_size = 125
  config.epochs = epochs
  config.optimizer.learning_rate = 1e-2
  config.optimizer.schedule.step.boundaries = drops
  config.optimizer.weight_decay.rate = weight_decay
  config.optimizer.weight_decay.mask = "no_branches"
  config.method.name = "dropmax"
  return config


def tfds(config: Config, name: str, test: str) -> None:
  """Trains on all of `train`; validation is the test split, and nothing is chosen on it."""
  config.data.name = "tfds"
  config.data.tfds.name = name
  config.data.tfds.stream = True
  config.data.tfds.val = config.data.tfds.test = test
  config.compile.input_shape = (224, 224, 3)
  config.compile.num_classes, config.compile.num_examples = SIZES[name]


def folder(config: Config) -> None:
  """The same from a folder with `train` and `test`, each with one folder per class."""
  config.data.name = "image_folder"
  config.data.image_folder.train = "train"
  config.data.image_folder.val = config.data.image_folder.test = "test"

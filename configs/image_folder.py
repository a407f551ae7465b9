"""Your own folder of images of any size: ResNet-18 at 224 pixels, decoded during training.

Command: python run.py --config configs/image_folder.py --config.data.image_folder.path=DIR
         python run.py --config configs/image_folder.py:small --config.data.image_folder.path=DIR
         python run.py --config configs/image_folder.py:finetuned --config.data.image_folder.path=DIR \\
           --config.pretrained.workdir=WORKDIR
         python run.py --config configs/image_folder.py:torch --config.data.image_folder.path=DIR \\
           --config.pretrained.file=resnet18.safetensors
         (DIR/train/CLASS/*.jpg and DIR/val/CLASS/*.jpg, and other formats, at any depth; `check-data` before
         these flags reads all images once; decoded by so many processes: --config.data.stream.workers=8;
         DropMax: --config.method.name=dropmax)
Source: He et al., `Deep Residual Learning for Image Recognition`, 2016, section 3.4: batches of 256, SGD with
momentum 0.9 from 0.1 and weight decay 1e-4, crops of 224 with flips.

`large`, the default: as the source says, for some ten thousand images or more.
`small`: for fewer. Batches of 16, because BatchNorm's averages need many steps, and the rate lower as the
  batches are smaller (Goyal et al., `Accurate, Large Minibatch SGD`, 2017, section 2.1): 0.1 * 16 / 256.
`finetuned`: from the network of an earlier run with the same layers, which WORKDIR names; batches of 16, a
  tenth of the rate of `small`, 30 epochs.
`torch`: the same from torchvision's or timm's ResNet-18, with the penalty L2-SP of 0.01 for weight decay.

The reported error is on the images of `val`, which no choice sees: the best checkpoint is chosen on a
held-out tenth of `train`. Ours: the crop's area and aspect are drawn, as became common for networks of that
time (Szegedy et al., `Going Deeper with Convolutions`, 2015, section 6), 90 epochs, and a cosine schedule
after five epochs of warm-up. We have not trained at this size, so there is no expected figure.
"""

from jaxreg.train import Config, base_config

VARIANTS = ("large", "small", "finetuned", "torch")


def get_config(variant: str = "large") -> Config:
  if variant not in VARIANTS:
    raise ValueError(f"argument must be {' or '.join(VARIANTS)}, got {variant!r}")
  config = base_config()
  config.data.name = "image_folder"
  config.augment.mean = (0.485, 0.456, 0.406)
  config.augment.std = (0.229, 0.224, 0.225)
  config.model.name = "ResNet"
  config.model.ResNet.depth = 18
  config.model.ResNet.stem = "imagenet"
  config.method.name = "softmax"
  config.optimizer.name = "sgd"
  config.optimizer.learning_rate = 0.1
  config.optimizer.sgd.momentum = 0.9
  config.optimizer.schedule.name = "cosine"
  config.optimizer.schedule.warmup_epochs = 5.0
  config.optimizer.weight_decay.rate = 1e-4
  config.batch_size = 256
  config.epochs = 90
  config.eval_batch_size = 256
  if variant != "large":
    config.optimizer.learning_rate *= 16 / config.batch_size
    config.batch_size = 16
  if variant in ("finetuned", "torch"):
    config.optimizer.learning_rate /= 10
    config.epochs = 30
  if variant == "finetuned":
    config.pretrained.workdir = "runs/image_folder"
  if variant == "torch":
    config.pretrained.file = "resnet18.safetensors"
    config.regularizers.names = ("l2_sp",)
    config.regularizers.l2_sp.weight = 0.01
    config.optimizer.weight_decay.rate = 0.0
  return config

"""A Vision Transformer on CIFAR-10, with patches of 4x4.

Command: python run.py --config configs/vit_cifar10.py
         (DropMax: --config.method.name=dropmax; on a CPU: configs/vit_cifar10.py:small; dropout of the
         attention: --config.model.ViT.attention_dropout_rate=0.1)
Source: Hassani et al., `Escaping the Big Data Paradigm with Compact Transformers`, 2021: the network is its
ViT-Lite-6/4, with 256 units, 6 blocks, 4 heads and an MLP of 512.

`small` has half the width and 30 epochs, for a CPU. Ours, and not the source's: the augmentation (shifts by
4, flips and one operation of RandAugment, no mixing, so that every method fits), fixed positions, the mean of
the tokens, stochastic depth of 0.1, and the numbers of AdamW.
"""

from jaxreg.train import Config, base_config
from jaxreg.train.errors import unknown

VARIANTS = ("full", "small")


def get_config(variant: str = "full") -> Config:
  if variant not in VARIANTS:
    raise unknown("argument", variant, VARIANTS)
  small = variant == "small"
  config = base_config()
  config.data.name = "tfds"
  config.data.tfds.name = "cifar10"
  config.augment.names = ("pad_crop", "flip", "rand_augment")
  config.augment.rand_augment.num_ops = 1
  config.augment.mean = (0.4914, 0.4822, 0.4465)
  config.augment.std = (0.2470, 0.2435, 0.2616)
  config.model.name = "ViT"
  config.model.ViT.patch_size = 4
  config.model.ViT.width = 128 if small else 256
  config.model.ViT.depth = 6
  config.model.ViT.unroll = 6 if small else 1
  config.model.ViT.num_heads = 4
  config.model.ViT.d_ff = 256 if small else 512
  config.model.ViT.branch_rate = 0.0 if small else 0.1
  config.method.name = "softmax"
  config.optimizer.name = "adamw"
  config.optimizer.learning_rate = 1e-3
  config.optimizer.clip_norm = 1.0
  config.optimizer.schedule.name = "cosine"
  config.optimizer.schedule.warmup_epochs = 3.0 if small else 10.0
  config.optimizer.weight_decay.rate = 5e-2
  config.optimizer.weight_decay.kind = "decoupled"
  config.batch_size = 128
  config.epochs = 30 if small else 200
  config.eval_every = config.checkpoint.every = 1 if small else 5
  return config

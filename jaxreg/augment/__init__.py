"""Augmentation on the device: `(key, batch, *, ...) -> batch`.

A batch is a mapping: `batch["inputs"]` are `[batch, height, width, channels]`, `batch["labels"]` are needed
where they are mixed, and the rest is left alone.

Every example draws its own transformation, all of them in one draw from the key; the dtype (uint8 or
floating) is kept. Mixing makes the labels soft, `[batch, classes]`; the others pass labels on as they come.
`compose` makes one augmentation of several.
"""

from jaxreg.augment._compose import compose
from jaxreg.augment._cutmix import cutmix
from jaxreg.augment._cutout import cutout, random_erasing
from jaxreg.augment._flip import flip
from jaxreg.augment._mixup import mixup
from jaxreg.augment._normalize import normalize
from jaxreg.augment._rand_augment import rand_augment
from jaxreg.augment._rotate import rotate
from jaxreg.augment._scale import scale
from jaxreg.augment._translate import pad_crop, translate

__all__ = [
  "compose",
  "cutmix",
  "cutout",
  "flip",
  "mixup",
  "normalize",
  "pad_crop",
  "rand_augment",
  "random_erasing",
  "rotate",
  "scale",
  "translate",
]


def __dir__() -> list[str]:
  return __all__

"""Augmentation on the device: `(key, batch, *, ...) -> batch`.

A batch is a mapping with images `batch["inputs"]`, `[batch, height, width, channels]`. `batch["labels"]` are
needed only for mixing, which draws partners among the examples that count by `batch["weights"]` and
`batch["where"]`; other entries pass through. If channels come first, as in Equinox and PyTorch,
give `channel_axis=1`. `compose` combines augmentations.

A geometric augmentation moves the annotations of its images, too, if the batch has them: `masks`
`[batch, height, width]`, in which pixels from outside are -1, no label, or 0 if the dtype has no sign;
`points` `[batch, n, 2]`, as `(x, y)` in pixels from the top left corner of the image, so that the middle of
its first pixel is `(0.5, 0.5)`; `boxes` `[batch, n, 4]`, as `(x_min, y_min, x_max, y_max)`. A moved box is
the smallest around the box's corners, cut off at the image's edge; one that has left the image has no area.

Every example draws its own transformation, all of them in one draw from the key. The dtype (uint8 or
floating) is kept. Mixing makes the labels soft, `[batch, classes]`; other augmentations do not change labels.
"""

from jaxreg.augment._augmix import augmix
from jaxreg.augment._auto_augment import auto_augment
from jaxreg.augment._color_jitter import color_jitter
from jaxreg.augment._compose import compose
from jaxreg.augment._cutmix import cutmix
from jaxreg.augment._cutout import cutout, random_erasing
from jaxreg.augment._flip import flip
from jaxreg.augment._lighting import lighting
from jaxreg.augment._manifold_mixup import Mixing, manifold_mixup, mix_hidden
from jaxreg.augment._mixup import mixup
from jaxreg.augment._normalize import normalize
from jaxreg.augment._rand_augment import rand_augment
from jaxreg.augment._random_resized_crop import random_resized_crop
from jaxreg.augment._rotate import rotate
from jaxreg.augment._scale import scale
from jaxreg.augment._translate import pad_crop, translate
from jaxreg.augment._trivial_augment import trivial_augment

__all__ = [
  "Mixing",
  "augmix",
  "auto_augment",
  "color_jitter",
  "compose",
  "cutmix",
  "cutout",
  "flip",
  "lighting",
  "manifold_mixup",
  "mix_hidden",
  "mixup",
  "normalize",
  "pad_crop",
  "rand_augment",
  "random_erasing",
  "random_resized_crop",
  "rotate",
  "scale",
  "translate",
  "trivial_augment",
]

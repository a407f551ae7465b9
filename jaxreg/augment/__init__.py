"""Augmentation on the device: `(key, batch, *, ...) -> batch`.

`batch["inputs"]` are `[batch, height, width, channels]`, the rest of the batch is what labels come with.

Every example draws its own transformation, all of them in one draw from the key; the dtype (uint8 or
floating) is kept.
"""

from jaxreg.augment._flip import flip
from jaxreg.augment._normalize import normalize
from jaxreg.augment._translate import pad_crop, translate

__all__ = ["flip", "normalize", "pad_crop", "translate"]

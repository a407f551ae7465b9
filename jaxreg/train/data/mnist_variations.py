"""Harder MNIST: digits turned by random angles, on random backgrounds."""

import numpy as np
from scipy import ndimage

from jaxreg.train.data.dataset import Split


def vary(split: Split, generator: np.random.Generator, *, rotation: bool, background: bool) -> Split:
  """`split`, uint8 `[n, height, width, 1]`, with each image turned, then laid on a background, or only one.

  The angle is uniform over the circle; the background is noise, each pixel uniform over 0 to 255, and shows
  wherever it is brighter than the digit.

  References:
    Larochelle et al., `An Empirical Evaluation of Deep Architectures on Problems with Many Factors of
    Variation`, 2007: the idea; its sets are other draws, and its rotated digits lie on photographs.
  """
  images = split.inputs
  if rotation:
    images = rotate(images, generator.uniform(0, 360, len(images)))
  if background:
    images = np.maximum(images, generator.integers(0, 256, images.shape, np.uint8))
  return Split(images, split.labels)


def rotate(images: np.ndarray, angles: np.ndarray) -> np.ndarray:
  """Each image `[height, width, 1]` turned counter-clockwise about its centre by its angle in degrees."""
  turned = np.empty_like(images)
  for image, angle, output in zip(images, angles, turned, strict=True):
    ndimage.rotate(image, angle, reshape=False, order=1, output=output)
  return turned

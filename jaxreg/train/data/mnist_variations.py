"""Harder MNIST: digits turned by random angles, on random backgrounds."""

import numpy as np

from jaxreg.train.data.dataset import Split


def vary(split: Split, generator: np.random.Generator, *, rotation: bool, background: bool) -> Split:
  """Rotates each image of `split`, uint8 `[n, height, width, 1]`, lays it on a background, or does both.

  The angle is uniform over the circle. The background is noise, each pixel uniform over 0 to 255; it shows
  wherever it is brighter than the digit.

  References:
    Larochelle et al., `An Empirical Evaluation of Deep Architectures on Problems with Many Factors of
    Variation`, 2007: the idea; the paper's sets are other draws, and its rotated digits lie on photographs.
  """
  images = split.inputs
  if rotation:
    images = rotate(images, generator.uniform(0, 360, len(images)))
  if background:
    images = np.maximum(images, generator.integers(0, 256, images.shape, np.uint8))
  return Split(images, split.labels)


def rotate(images: np.ndarray, angles: np.ndarray) -> np.ndarray:
  """Rotates each image `[height, width, 1]` counter-clockwise about its centre by its angle in degrees."""
  from scipy import ndimage  # its import takes a moment, and few runs need it

  turned = np.empty_like(images)
  for image, angle, output in zip(images, angles, turned, strict=True):
    ndimage.rotate(image, angle, reshape=False, order=1, output=output)
  return turned

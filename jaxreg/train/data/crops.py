"""Crops of decoded images: the centre for an evaluation, random ones for training."""

import math
from typing import Any

import numpy as np

ATTEMPTS = 10  # to find a crop that fits into the image


def centre_crop(image: Any, *, size: int, resize: int) -> np.ndarray:
  """The centre `[size, size, 3]` of a Pillow image, scaled so that its shorter side is `resize`."""
  image = _scaled(image, resize)
  left, top = ((side - size) // 2 for side in image.size)
  return np.asarray(image.crop((left, top, left + size, top + size)))


def scaled_crop(
  generator: np.random.Generator, image: Any, *, size: int, sides: tuple[int, ...], flip: bool
) -> np.ndarray:
  """A crop `[size, size, 3]` of a Pillow image; its shorter side is drawn from the integers in `sides`.

  References:
    He et al., `Deep Residual Learning for Image Recognition`, 2016, section 3.4.
  """
  low, high = sides
  image = _scaled(image, int(generator.integers(low, high + 1)))
  left, top = (int(generator.integers(side - size + 1)) for side in image.size)
  mirrored = generator.random() < 0.5
  pixels = np.asarray(image.crop((left, top, left + size, top + size)))
  return np.ascontiguousarray(pixels[:, ::-1]) if flip and mirrored else pixels


def _scaled(image: Any, shorter: int) -> Any:
  """A Pillow image, scaled so that its shorter side is `shorter`."""
  from PIL import Image

  size = tuple(max(shorter, round(side * shorter / min(image.size))) for side in image.size)
  return image if size == image.size else image.resize(size, Image.Resampling.BILINEAR)


def random_crop(
  generator: np.random.Generator,
  image: Any,
  *,
  size: int,
  area: tuple[float, float],
  aspect: tuple[float, float],
  flip: bool,
) -> np.ndarray:
  """A crop of a Pillow image with a random area, aspect and place, resized to `[size, size, 3]`.

  References:
    Szegedy et al., `Going Deeper with Convolutions`, 2015, section 6.
  """
  from PIL import Image

  box = draw_box(generator, *image.size, area=area, aspect=aspect)
  crop = image.crop(box)
  if crop.size != (size, size):
    crop = crop.resize((size, size), Image.Resampling.BILINEAR)
  mirrored = generator.random() < 0.5
  pixels = np.asarray(crop)
  return np.ascontiguousarray(pixels[:, ::-1]) if flip and mirrored else pixels


def draw_box(
  generator: np.random.Generator,
  width: int,
  height: int,
  *,
  area: tuple[float, float],
  aspect: tuple[float, float],
) -> tuple[int, int, int, int]:
  """Draws the left, top, right and bottom of a crop.

  The area, the logarithm of the aspect, and then the place are uniform. A crop that does not fit is drawn
  again; after `ATTEMPTS` attempts, the result is the largest centre crop of an allowed aspect.
  """
  for _ in range(ATTEMPTS):
    pixels = generator.uniform(*area) * width * height
    ratio = math.exp(generator.uniform(math.log(aspect[0]), math.log(aspect[1])))
    across, down = round(math.sqrt(pixels * ratio)), round(math.sqrt(pixels / ratio))
    if 0 < across <= width and 0 < down <= height:
      left = int(generator.integers(width - across + 1))
      top = int(generator.integers(height - down + 1))
      return left, top, left + across, top + down
  ratio = min(max(width / height, aspect[0]), aspect[1])
  across = min(width, max(1, round(height * ratio)))
  down = min(height, max(1, round(width / ratio)))
  left, top = (width - across) // 2, (height - down) // 2
  return left, top, left + across, top + down

"""Crops of decoded images: the centre for an evaluation, random ones for training."""

import math
from typing import Any

import numpy as np

ATTEMPTS = 10  # to find a crop that fits into the image


def centre_crop(image: Any, *, size: int, resize: int) -> np.ndarray:
  """The centre `[size, size, 3]` of a Pillow image, scaled so that its shorter side is `resize`."""
  scaled = _scaled(image.size, resize)
  return np.asarray(_window(image, scaled, [(side - size) // 2 for side in scaled], size))


def scaled_crop(
  generator: np.random.Generator, image: Any, *, size: int, sides: tuple[int, ...], flip: bool
) -> np.ndarray:
  """A crop `[size, size, 3]` of a Pillow image; its shorter side is drawn from the integers in `sides`.

  References:
    He et al., `Deep Residual Learning for Image Recognition`, 2016, section 3.4.
  """
  low, high = sides
  scaled = _scaled(image.size, int(generator.integers(low, high + 1)))
  place = [int(generator.integers(side - size + 1)) for side in scaled]
  mirrored = generator.random() < 0.5
  pixels = np.asarray(_window(image, scaled, place, size))
  return np.ascontiguousarray(pixels[:, ::-1]) if flip and mirrored else pixels


def _scaled(size: tuple[int, int], shorter: int) -> tuple[int, int]:
  """The width and height of an image, scaled so that its shorter side is `shorter`."""
  width, height = (max(shorter, round(side * shorter / min(size))) for side in size)
  return width, height


def _window(image: Any, scaled: tuple[int, int], place: list[int], size: int) -> Any:
  """The square of side `size` at `place`, left and top, of a Pillow image resized to `scaled`.

  Only the square and the pixels around it that it depends on are resized: the whole of a thin image could be
  very large.
  """
  from PIL import Image

  if scaled == image.size:
    return image.crop((*place, *(start + size for start in place)))
  lows, highs = [], []
  for start, new, old in zip(place, scaled, image.size):
    margin = math.ceil(max(1, new / old)) + 1  # a bilinear filter reaches as far as one pixel of either image
    lows.append(max(0, start - margin))
    highs.append(min(new, start + size + margin))
  ratios = [old / new for new, old in zip(scaled, image.size)]
  box = [at * ratio for ends in (lows, highs) for at, ratio in zip(ends, ratios)]
  box[2:] = map(min, box[2:], image.size)  # rounding must not lead out of the image
  part = image.resize(tuple(np.subtract(highs, lows).tolist()), Image.Resampling.BILINEAR, box=tuple(box))
  left, top = (start - low for start, low in zip(place, lows))
  return part.crop((left, top, left + size, top + size))


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

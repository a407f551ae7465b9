"""Images that are decoded when a batch is made: an array of references to them, and their crops."""

import dataclasses
import io
import math
from typing import Any, Protocol

import numpy as np

from jaxreg.train.errors import RunError, one_line

ATTEMPTS = 10  # to find a crop that fits into the image
MOST_BYTES = 2**34  # of images decoded into one array
FORMATS = ("JPEG", "PNG", "GIF", "BMP")  # Pillow knows forty more, and some of them run other programs
MOST_PIXELS = 2**26  # of one image, because a small file may claim very many
MODES = {1: "L", 3: "RGB", 4: "RGBA"}  # by the number of channels


@dataclasses.dataclass(frozen=True)
class Decoding:
  """How an image becomes an input `[size, size, 3]`, and how many processes decode images.

  Attributes:
    size: height and width of the crop.
    resize: the shorter side before the centre crop of evaluation.
    area: for training, bounds of the crop's area as a fraction of the image's area.
    aspect: for training, bounds of the crop's width over its height.
    sides: for training, bounds of the image's shorter side, to which it is scaled before a crop of `size`
      from anywhere in it; () takes crops by area and aspect instead.
    flip: for training, mirror each image with probability one half.
    workers: processes that decode; 0: threads of this process decode.
  """

  size: int = 224
  resize: int = 256
  area: tuple[float, float] = (0.08, 1.0)
  aspect: tuple[float, float] = (0.75, 4 / 3)
  sides: tuple[int, ...] = ()
  flip: bool = True
  workers: int = 0


class Store(Protocol):
  """Encoded images by number; it can be sent to another process."""

  def read(self, number: int) -> bytes: ...

  def name(self, number: int) -> str:
    """The name of the image, for an error."""
    ...

  def fingerprint(self, numbers: np.ndarray) -> tuple[np.ndarray, ...]:
    """Arrays that differ if the images differ, computed without decoding."""
    ...


@dataclasses.dataclass(frozen=True)
class Images:
  """Encoded images of any size, with the interface of an array of bytes `[n, size, size, 3]`.

  Indexing selects images without decoding them. Converted to a NumPy array, they are an evaluation's inputs.
  """

  store: Store
  numbers: np.ndarray
  decoding: Decoding = dataclasses.field(default_factory=Decoding)

  dtype = np.dtype(np.uint8)
  ndim = 4

  @property
  def shape(self) -> tuple[int, ...]:
    return (len(self.numbers), self.decoding.size, self.decoding.size, 3)

  @property
  def nbytes(self) -> int:
    return math.prod(self.shape)

  def __len__(self) -> int:
    return len(self.numbers)

  def __getitem__(self, index: Any) -> "Images":
    return dataclasses.replace(self, numbers=self.numbers[index])

  def joined(self, other: "Images") -> "Images":
    """These images, followed by others of the same store."""
    return dataclasses.replace(self, numbers=np.concatenate([self.numbers, other.numbers]))

  def fingerprint(self) -> tuple[np.ndarray, ...]:
    return self.store.fingerprint(self.numbers)

  def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
    if self.nbytes > MOST_BYTES:
      raise RunError(f"data.limit: {len(self)} images are too many for one array; give fewer")
    decoded = np.empty(self.shape, np.uint8)
    for position in range(len(self)):
      decoded[position] = self.cut(position)
    return decoded if dtype is None else decoded.astype(dtype)

  def cut(self, position: int, generator: np.random.Generator | None = None) -> np.ndarray:
    """One image `[size, size, 3]`: a crop that `generator` draws, or the centre if it is None.

    Raises:
      RunError: with the name of the image, if it cannot be decoded.
    """
    from PIL import UnidentifiedImageError

    number = int(self.numbers[position])
    try:
      rgb = decode(self.store.read(number))
      if generator is None:
        return centre_crop(rgb, size=self.decoding.size, resize=self.decoding.resize)
      return self._draw(generator, rgb)
    except UnidentifiedImageError as error:
      raise RunError(
        f"{self.store.name(number)} cannot be decoded (it is no {', '.join(FORMATS)} image)"
      ) from error
    except Exception as error:  # Pillow has no common error for damaged files
      raise RunError(f"{self.store.name(number)} cannot be decoded ({one_line(error)})") from error

  def _draw(self, generator: np.random.Generator, image: Any) -> np.ndarray:
    how = self.decoding
    if how.sides:
      return scaled_crop(generator, image, size=how.size, sides=how.sides, flip=how.flip)
    return random_crop(generator, image, size=how.size, area=how.area, aspect=how.aspect, flip=how.flip)


def decode(encoded: bytes, channels: int = 3) -> Any:
  """The image of these bytes as a Pillow image with `channels` channels of 8 bits.

  From 16 bits, the higher 8 are taken. Without an alpha channel, transparency is dropped: the colours stay.

  Raises:
    Exception: one of Pillow's many types, if the image cannot be decoded.
  """
  from PIL import Image

  with Image.open(io.BytesIO(encoded), formats=FORMATS) as image:
    if math.prod(image.size) > MOST_PIXELS:
      raise ValueError(f"it has {math.prod(image.size)} pixels, and at most {MOST_PIXELS} are decoded")
    if image.mode.startswith("I"):  # 16 bits, which Pillow would cut off at 255
      image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif image.mode == "P" and "transparency" in image.info:  # else Pillow warns about each such image
      image = image.convert("RGBA")
    return image.convert(MODES.get(channels, "RGB"))


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

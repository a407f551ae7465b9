"""Images that are decoded when a batch is made: an array of references to them, and how they are cut."""

import dataclasses
import io
import math
from typing import Any, Protocol

import numpy as np

from jaxreg.train.errors import RunError, one_line

ATTEMPTS = 10  # to find a crop that fits into the image
MOST_BYTES = 2**34  # of what is decoded into one array
FORMATS = ("JPEG", "PNG", "GIF", "BMP")  # Pillow knows forty more, and some of them run other programs
MOST_PIXELS = 2**26  # of one image: a small file may promise very many
MODES = {1: "L", 3: "RGB", 4: "RGBA"}  # by the number of channels


@dataclasses.dataclass(frozen=True)
class Decoding:
  """How an image becomes an input `[size, size, 3]`, and how many processes do it.

  Attributes:
    size: height and width of the crop.
    resize: the shorter side before the centre crop of evaluation.
    area: for training, bounds of the crop's area as a fraction of the image's.
    aspect: for training, bounds of the crop's width over its height.
    sides: for training, bounds of the shorter side to which the image is scaled before a crop of `size` from
      anywhere in it, instead of crops by area and aspect; () for those.
    flip: for training, mirror every other image.
    workers: processes that decode; with 0, threads of this one do.
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
    """The image, for an error."""
    ...

  def fingerprint(self, numbers: np.ndarray) -> tuple[np.ndarray, ...]:
    """Arrays that are others when these images are, found without decoding them."""
    ...


@dataclasses.dataclass(frozen=True)
class Images:
  """Encoded images of any size; to whom does not decode them, an array of bytes `[n, size, size, 3]`.

  Indexing gives fewer of them, undecoded. As a NumPy array they are what an evaluation sees.
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
    """These and then others of the same store."""
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
    """One image `[size, size, 3]`: a crop that `generator` draws, or without one the centre.

    Raises:
      RunError: if it cannot be decoded, naming it.
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
    except Exception as error:  # Pillow has no error that all damages share
      raise RunError(f"{self.store.name(number)} cannot be decoded ({one_line(error)})") from error

  def _draw(self, generator: np.random.Generator, image: Any) -> np.ndarray:
    how = self.decoding
    if how.sides:
      return scaled_crop(generator, image, size=how.size, sides=how.sides, flip=how.flip)
    return random_crop(generator, image, size=how.size, area=how.area, aspect=how.aspect, flip=how.flip)


def decode(encoded: bytes, channels: int = 3) -> Any:
  """The image of these bytes as a Pillow image of so many channels, each of 8 bits.

  Of 16 bits, the higher 8 are taken. Without an alpha channel, transparency is left out: the colours stay.

  Raises:
    Exception: of many kinds, as Pillow has them, if it cannot be decoded.
  """
  from PIL import Image

  with Image.open(io.BytesIO(encoded), formats=FORMATS) as image:
    if math.prod(image.size) > MOST_PIXELS:
      raise ValueError(f"it has {math.prod(image.size)} pixels, and at most {MOST_PIXELS} are decoded")
    if image.mode.startswith("I"):  # of 16 bits: Pillow would cut them off at 255
      image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif image.mode == "P" and "transparency" in image.info:  # else Pillow recommends this, for each image
      image = image.convert("RGBA")
    return image.convert(MODES.get(channels, "RGB"))


def centre_crop(image: Any, *, size: int, resize: int) -> np.ndarray:
  """The centre `[size, size, 3]` of a Pillow image whose shorter side was made `resize` long."""
  image = _scaled(image, resize)
  left, top = ((side - size) // 2 for side in image.size)
  return np.asarray(image.crop((left, top, left + size, top + size)))


def scaled_crop(
  generator: np.random.Generator, image: Any, *, size: int, sides: tuple[int, ...], flip: bool
) -> np.ndarray:
  """A part `[size, size, 3]` of a Pillow image whose shorter side is drawn from the whole numbers in `sides`.

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
  """A Pillow image with its shorter side made `shorter` long."""
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
  """A part of a Pillow image, of a drawn area, shape and place, made `[size, size, 3]`.

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
  """Left, top, right and bottom of a crop: its area uniform, the logarithm of its aspect too, then its place.

  What does not fit is drawn again; after some attempts it is the largest centre crop of an allowed aspect.
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

"""Images that are decoded when a batch is made: an array of references to them."""

import dataclasses
import io
import math
from typing import Any, Protocol

import numpy as np

from jaxreg.train.data.crops import centre_crop, random_crop, scaled_crop
from jaxreg.train.errors import RunError, one_line

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

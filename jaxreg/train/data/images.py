"""Images that are decoded when a batch is made, and the crops that become inputs.

`Images` is an array of references to encoded images. An evaluation takes the centre of each, training random
crops.
"""

import concurrent.futures
import contextlib
import dataclasses
import io
import math
import os
import sys
import time
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import numpy as np

from jaxreg.train.errors import ArgumentError, RunError, one_line, printable

if TYPE_CHECKING:
  from PIL import Image, ImageFile

PROBED = 64  # images of a split that a check reads
DARK = 64  # of 256: images of 16 bits with fewer levels leave at least two bits unused
CHUNK = 256  # examples that a thread reads between two steps of the progress bar
SECONDS = 60  # between two lines in a log, where no bar can be shown
MOST_BYTES = 2**34  # of images decoded into one array
# Pillow knows forty formats more, and some of them run other programs.
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF")
SUFFIXES = (".bmp", ".gif", ".jfif", ".jpe", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
MOST_PIXELS = 2**26  # of one image, because a small file may claim very many
# For training, bounds of a crop's area as a fraction of the image's, and of its width over its height.
AREA, ASPECT = (0.08, 1.0), (3 / 4, 4 / 3)
ATTEMPTS = 10  # to find a random crop that fits into the image
MODES = {1: "L", 3: "RGB", 4: "RGBA"}  # by the number of channels

# Damaged EXIF is common and does no harm. A filter around each call would not be safe with threads.
warnings.filterwarnings("ignore", "Corrupt EXIF data", UserWarning)


@dataclasses.dataclass(frozen=True)
class Decoding:
  """How an image becomes an input `[size, size, 3]`, and how many processes decode images.

  Attributes:
    size: height and width of the crop.
    sides: for training, bounds of the image's shorter side, to which it is scaled before a crop of `size`
      from anywhere in it; () takes crops by area and aspect instead.
    workers: processes that decode; 0: threads of this process decode.
  """

  size: int = 224
  sides: tuple[int, ...] = ()
  workers: int = 0

  @property
  def resize(self) -> int:
    """The shorter side before the centre crop of evaluation: 256 for a crop of 224."""
    return -(-self.size * 8 // 7)


class Store(Protocol):
  """Encoded images by number; it can be sent to another process.

  `name` is for errors. The arrays of `fingerprint` differ if the images differ, and are computed without
  decoding. The arrays of `stamp` also differ for another folder, and if a file was written again.
  """

  def read(self, number: int) -> bytes: ...
  def name(self, number: int) -> str: ...
  def fingerprint(self, numbers: np.ndarray) -> tuple[np.ndarray, ...]: ...
  def stamp(self, numbers: np.ndarray) -> tuple[np.ndarray, ...]: ...


@dataclasses.dataclass(frozen=True)
class Images:
  """Encoded images of any size, with the interface of an array of bytes `[n, size, size, 3]`.

  Indexing selects images without decoding them. Converted to a NumPy array, they are an evaluation's inputs.
  """

  store: Store
  numbers: np.ndarray  # of the images in the store
  decoding: Decoding = dataclasses.field(default_factory=Decoding)
  hint: str = ""  # ends the error of an image that cannot be decoded

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

  def __getitem__(self, index: slice | np.ndarray) -> "Images":
    return dataclasses.replace(self, numbers=self.numbers[index])

  def joined(self, other: "Images") -> "Images":
    """Concatenates these images and others of the same store."""
    return dataclasses.replace(self, numbers=np.concatenate([self.numbers, other.numbers]))

  def fingerprint(self) -> tuple[np.ndarray, ...]:
    return self.store.fingerprint(self.numbers)

  def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> np.ndarray:
    if self.nbytes > MOST_BYTES:
      raise ArgumentError("limit", f"{len(self)} images are too many for one array; give fewer")
    decoded = np.empty(self.shape, np.uint8)
    for position in range(len(self)):
      decoded[position] = self.cut(position)
    return decoded if dtype is None else decoded.astype(dtype)

  def encoded(self, position: int) -> bytes:
    """Reads one encoded image."""
    return self.store.read(int(self.numbers[position]))

  def repeats(self, other: "Images") -> bool:
    """Tells whether `other` has as many images, and the same bytes at some evenly spaced positions."""
    with contextlib.suppress(Exception):  # an image that cannot be read is told where it is decoded
      return len(self) == len(other) and all(self.encoded(k) == other.encoded(k) for k in probed(len(self)))
    return False

  def cut(self, position: int, generator: np.random.Generator | None = None) -> np.ndarray:
    """Cuts one image `[size, size, 3]`: a crop that `generator` draws, or the centre if it is None."""
    rgb, how = self.decoded(position), self.decoding
    return centre_crop(rgb, how) if generator is None else random_crop(generator, rgb, how)

  def decoded(self, position: int, channels: int = 3) -> "Image.Image":
    """Decodes one whole image to a Pillow image of `channels` channels."""
    from PIL import UnidentifiedImageError

    try:
      return decode(self.encoded(position), channels)
    except Exception as error:  # Pillow has no common error for damaged files
      unknown = isinstance(error, UnidentifiedImageError)
      reason = f"it is not a {', '.join(FORMATS)} image" if unknown else one_line(error)
      name = self.store.name(int(self.numbers[position]))
      raise RunError(f"{name} cannot be decoded ({reason}){self.hint}") from error


def decode(encoded: bytes, channels: int = 3) -> "Image.Image":
  """Decodes these bytes to an `upright` Pillow image; of several frames or pages, the first is taken."""
  from PIL import Image

  with Image.open(io.BytesIO(encoded), formats=FORMATS) as image:
    if math.prod(image.size) > MOST_PIXELS:
      raise ValueError(f"it has {math.prod(image.size)} pixels, and at most {MOST_PIXELS} are decoded")
    # Pillow scales pixels of 2 and 4 bits to 8, but not the grey that is transparent.
    factor = {"L;2": 85, "L;4": 17}.get(_layout(image))
    if factor and "transparency" in image.info:
      image.info["transparency"] *= factor
    image.load()
    return upright(image, channels)


def upright(image: "Image.Image", channels: int = 3) -> "Image.Image":
  """Converts a loaded Pillow image, which may change, to an upright one with `channels` channels of 8 bits.

  The orientation in the image's EXIF is applied. From 16 bits, the higher 8 are taken. Without an alpha
  channel in the result, transparent parts show white.
  """
  from PIL import Image, ImageOps

  mode = MODES.get(channels, "RGB")
  with contextlib.suppress(Exception):  # damaged EXIF raises many errors; the image is taken as upright
    ImageOps.exif_transpose(image, in_place=True)
  if image.mode.startswith(("I", "F")):
    image = _higher_byte(image)
  elif "A" not in mode and image.has_transparency_data:
    image = image.convert("RGBA")
    image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
  return image.convert(mode)


def _higher_byte(image: "Image.Image") -> "Image.Image":
  """Takes the higher 8 of 16 bits, which Pillow would cut off at 255; a transparent grey becomes white."""
  from PIL import Image

  grey = np.asarray(image)
  if not np.issubdtype(grey.dtype, np.integer) or grey.min() < 0 or grey.max() >= 2**16:
    raise ValueError("its pixels are not of 8 or 16 bits")
  higher = (grey >> 8).astype(np.uint8)
  if isinstance(transparent := image.info.get("transparency"), int):
    higher[grey == transparent] = 255
  return Image.fromarray(higher)


def probed(number: int) -> list[int]:
  """Returns up to `PROBED` evenly spaced positions of `number` images."""
  return np.unique(np.linspace(0, number - 1, PROBED).astype(int)).tolist()


def depth_remark(read: Callable[[int], bytes], number: int, where: str = "") -> str:
  """Returns a line, after `where`, if most images of 16 bits use few of the higher bits, or "".

  Reads some of `number` encoded images, evenly spaced. Damaged images are skipped.
  """
  found = []
  for position in probed(number):
    with contextlib.suppress(Exception):  # Pillow has no common error for damaged files
      found.append(_levels(read(position)))
  found = [levels for levels in found if levels]
  if not found or (levels := int(np.median(found))) >= DARK:
    return ""
  return (
    f"{where}{len(found)} images of 16 bits were looked at, and the values of most lie within "
    f"{256 * levels} of 65536; the higher 8 bits are taken, so that about {levels} of 256 levels are left; "
    "spread the values, or save 8 bits"
  )


def _layout(image: "ImageFile.ImageFile") -> str:
  """Returns Pillow's name of the layout in an opened file, such as RGB;16B."""
  return str(image.tile[0].args if image.tile else "")


def _levels(encoded: bytes) -> int:
  """Counts the levels of 8 bits between the darkest and the brightest hundredth; 0 for images of 8 bits."""
  from PIL import Image

  with Image.open(io.BytesIO(encoded), formats=FORMATS) as image:
    form = _layout(image)
    grey = image.mode.startswith("I")
    if not (grey or ";16" in form) or math.prod(image.size) > MOST_PIXELS:
      return 0
    pixels = np.asarray(image)
    # Pillow has the higher bytes of colours already. The transparency does not count.
    higher = pixels >> 8 if grey else pixels[..., : 1 if "LA" in form else 3]
    low, high = np.percentile(higher, (1, 99), method="nearest")
    return int(high) - int(low) + 1


def is_grey(encoded: bytes) -> bool:
  """Tells whether these bytes are an image of one channel."""
  from PIL import Image

  with Image.open(io.BytesIO(encoded), formats=FORMATS) as image:
    return image.mode in ("1", "L", "I;16")


def decode_all(
  images: Callable[[range], list["Image.Image"]], number: int, first: "Image.Image", what: str
) -> np.ndarray:
  """Decodes `images(positions)`, all of the size of `first`, to `[number, height, width, channels]`."""
  shape = np.atleast_3d(np.asarray(first)).shape
  pixels = np.empty((number, *shape), np.uint8)

  def read(positions: range) -> None:
    for position, image in zip(positions, images(positions), strict=True):
      array = np.atleast_3d(np.asarray(image))
      if array.shape != shape:
        problem = f"must be True for images of unequal sizes, for instance {shape} and {array.shape}"
        raise ArgumentError("stream", f"{problem}, got False")
      pixels[position] = array

  in_chunks(read, number, what)
  return pixels


def in_chunks(read: Callable[[range], None], number: int, what: str, *, size: int = CHUNK) -> None:
  """Calls `read(positions)` in threads for all positions below `number`, at most `size` at a time.

  A terminal shows a bar with the text `what`; a log gets a line a minute.
  """
  from tqdm import tqdm

  terminal, said = sys.stderr.isatty(), time.monotonic()
  chunks = [range(number)[start : start + size] for start in range(0, number, size)]
  with (
    concurrent.futures.ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool,
    tqdm(total=number, desc=printable(what), unit="image", disable=not terminal) as bar,
  ):
    for chunk, _ in zip(chunks, pool.map(read, chunks), strict=True):
      bar.update(len(chunk))
      if not terminal and time.monotonic() - said > SECONDS:
        said = time.monotonic()
        print(f"{printable(what)}: {chunk.stop} of {number}", file=sys.stderr, flush=True)


def centre_crop(image: "Image.Image", how: Decoding) -> np.ndarray:
  """Crops the centre `[size, size, 3]` of a Pillow image, scaled so that its shorter side is `resize`."""
  scaled = _scaled(image.size, how.resize)
  return np.asarray(_window(image, scaled, [(side - how.size) // 2 for side in scaled], how.size))


def random_crop(generator: np.random.Generator, image: "Image.Image", how: Decoding) -> np.ndarray:
  """Crops a random part `[size, size, 3]` of a Pillow image, mirrored with probability one half.

  With `sides`, the image is scaled to a random shorter side, and the crop is from anywhere in it. Otherwise a
  crop of random area, aspect and place is resized.

  References:
    He et al., `Deep Residual Learning for Image Recognition`, 2016, section 3.4: with `sides`.
    Szegedy et al., `Going Deeper with Convolutions`, 2015, section 6: without.
  """
  from PIL import Image

  size = how.size
  if how.sides:
    low, high = how.sides
    scaled = _scaled(image.size, int(generator.integers(low, high + 1)))
    crop = _window(image, scaled, [int(generator.integers(side - size + 1)) for side in scaled], size)
  else:
    crop = image.crop(draw_box(generator, image.size))
    if crop.size != (size, size):
      crop = crop.resize((size, size), Image.Resampling.BILINEAR)
  mirrored = generator.random() < 0.5
  pixels = np.asarray(crop)
  return np.ascontiguousarray(pixels[:, ::-1]) if mirrored else pixels


def _scaled(size: tuple[int, int], shorter: int) -> tuple[int, int]:
  """Computes an image's width and height, scaled so that its shorter side is `shorter`."""
  width, height = (max(shorter, round(side * shorter / min(size))) for side in size)
  return width, height


def _window(image: "Image.Image", scaled: tuple[int, int], place: list[int], size: int) -> "Image.Image":
  """Cuts the square of side `size` at `place` (left, top) of a Pillow image resized to `scaled`.

  Only the square and the pixels around it that it depends on are resized: the whole of a thin image could be
  very large.
  """
  from PIL import Image

  if scaled == image.size:
    return image.crop((place[0], place[1], place[0] + size, place[1] + size))
  lows, highs = [], []
  for start, new, old in zip(place, scaled, image.size):
    margin = math.ceil(max(1, new / old)) + 1  # a bilinear filter reaches as far as one pixel of either image
    lows.append(max(0, start - margin))
    highs.append(min(new, start + size + margin))
  ratios = [old / new for new, old in zip(scaled, image.size)]
  box = [at * ratio for ends in (lows, highs) for at, ratio in zip(ends, ratios)]
  box[2:] = map(min, box[2:], image.size)  # rounding must not lead out of the image
  across, down = np.subtract(highs, lows).tolist()
  part = image.resize((across, down), Image.Resampling.BILINEAR, box=(box[0], box[1], box[2], box[3]))
  left, top = (start - low for start, low in zip(place, lows))
  return part.crop((left, top, left + size, top + size))


def draw_box(generator: np.random.Generator, size: tuple[int, int]) -> tuple[int, int, int, int]:
  """Draws the left, top, right and bottom of a crop.

  The area, the logarithm of the aspect, and then the place are uniform. A crop that does not fit is drawn
  again; after `ATTEMPTS` attempts, the result is the largest centre crop of an allowed aspect.
  """
  width, height = size
  narrow, wide = ASPECT
  for _ in range(ATTEMPTS):
    pixels = generator.uniform(*AREA) * width * height
    ratio = math.exp(generator.uniform(math.log(narrow), math.log(wide)))
    across, down = round(math.sqrt(pixels * ratio)), round(math.sqrt(pixels / ratio))
    if 0 < across <= width and 0 < down <= height:
      left = int(generator.integers(width - across + 1))
      top = int(generator.integers(height - down + 1))
      return left, top, left + across, top + down
  ratio = min(max(width / height, narrow), wide)
  across = min(width, max(1, round(height * ratio)))
  down = min(height, max(1, round(width / ratio)))
  left, top = (width - across) // 2, (height - down) // 2
  return left, top, left + across, top + down

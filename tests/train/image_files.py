"""Tiny folders of images and files of the idx format."""

import gzip
import struct
import zlib

import numpy as np
from PIL import Image

CLASSES = ("cat", "dog")
SPLITS = {"train": 20, "val": 6}  # images a class


def noise(seed, height, width):
  return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def make_folder(root, *, splits=SPLITS, classes=CLASSES, side=(9, 13)):
  """Images of one colour each, which tells which one it is, whatever is cut out of it: its red in `train`."""
  generator = np.random.default_rng(0)
  for split, number in splits.items():
    for label, name in enumerate(classes):
      (root / split / name).mkdir(parents=True)
      for i in range(number):
        height, width = generator.integers(*side, 2, endpoint=True)
        colour = (label * number + i, 255 * (split == "train"), generator.integers(256))
        Image.new("RGB", (int(width), int(height)), tuple(map(int, colour))).save(
          root / split / name / f"{i:03d}.{'png' if i % 2 else 'PNG'}"
        )
  return root


def make_noisy_folder(root, **options):
  """Images that show how they were cut."""
  make_folder(root, **options)
  for number, file in enumerate(sorted((root / "train").rglob("*.*"))):
    Image.fromarray(noise(number, 12, 9)).save(file)
  return root


def idx(array):
  """The content of an idx file of bytes."""
  return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


def write_idx(folder, arrays, *, zipped=True):
  """An idx file for each array, by its name, and the folder."""
  folder.mkdir(parents=True, exist_ok=True)
  for name, array in arrays.items():
    (folder / f"{name}{'.gz' if zipped else ''}").write_bytes(
      gzip.compress(idx(array)) if zipped else idx(array)
    )
  return folder


def png(pixels, *, transparent=None, packed=1):
  """A PNG file of integers `[height, width, channels]` of 8 or 16 bits, written from its specification.

  Each integer holds `packed` greys of fewer bits. `transparent` is a transparent grey.
  """
  height, width, channels = pixels.shape
  kind = {1: 0, 2: 4, 3: 2, 4: 6}[channels]
  head = struct.pack(">IIBBBBB", width * packed, height, 8 * pixels.itemsize // packed, kind, 0, 0, 0)
  rows = b"".join(b"\0" + row.astype(pixels.dtype.newbyteorder(">")).tobytes() for row in pixels)
  clear = [] if transparent is None else [(b"tRNS", struct.pack(">H", transparent))]
  parts = [(b"IHDR", head), *clear, (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
  return b"\x89PNG\r\n\x1a\n" + b"".join(
    struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    for name, data in parts
  )

"""Packed files of other people, unpacked up to what the memory holds: few bytes may promise very many."""

import gzip
import io
import os
import zipfile
import zlib
from pathlib import Path

import numpy as np

# What reading a damaged file raises.
ERRORS = (ValueError, OSError, EOFError, KeyError, NotImplementedError, zipfile.BadZipFile, zlib.error)
BLOCK = 2**24


def most_bytes() -> int:
  """Half of the memory of this machine."""
  return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def gunzip(packed: bytes) -> bytearray:
  """The contents of a gzipped file.

  Raises:
    ValueError: if they are more than half of the memory.
    Exception: one of `ERRORS`, if it is damaged.
  """
  content, most = bytearray(), most_bytes()
  with gzip.GzipFile(fileobj=io.BytesIO(packed)) as stream:
    while block := stream.read(BLOCK):
      content += block
      if len(content) > most:
        raise _too_much(most)
  return content


def read_npz(file: Path) -> dict[str, np.ndarray]:
  """The arrays of an `.npz` file, whose checksums are right; nothing is unpickled.

  Raises:
    ValueError: if they are more than half of the memory.
    Exception: one of `ERRORS`, if it is damaged.
  """
  most = most_bytes()
  # Opened as what it must be: NumPy would take a lone array, or a pickle, for one too.
  with zipfile.ZipFile(file) as archive:
    # No member gives more than it says here.
    if sum(member.file_size for member in archive.infolist()) > most:
      raise _too_much(most)
    # NumPy alone may stop before a checksum's end.
    if damaged := archive.testzip():
      raise ValueError(f"{damaged} does not match its checksum")
  try:
    with np.load(file, allow_pickle=False) as arrays:
      return {name: arrays[name] for name in arrays.files}
  except MemoryError as error:  # by the shape that it says
    raise ValueError(f"it promises too much: {error}") from error


def _too_much(most: int) -> ValueError:
  return ValueError(f"it unpacks to more than {most} bytes, half of the memory here")

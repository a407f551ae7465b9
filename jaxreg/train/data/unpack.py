"""Unpacks files of other people, up to half of the memory: a few packed bytes may hold very many."""

import gzip
import io
import os
import zipfile
import zlib
from pathlib import Path

import numpy as np

# The errors that reading a damaged file raises.
ERRORS = (ValueError, OSError, EOFError, KeyError, NotImplementedError, zipfile.BadZipFile, zlib.error)
BLOCK = 2**24


def most_bytes() -> int:
  """Half of the memory of this machine."""
  return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def gunzip(packed: bytes) -> bytearray:
  """The contents of a gzipped file.

  Raises:
    ValueError: if the contents are larger than half of the memory.
    Exception: one of `ERRORS`, if the file is damaged.
  """
  content, most = bytearray(), most_bytes()
  with gzip.GzipFile(fileobj=io.BytesIO(packed)) as stream:
    while block := stream.read(BLOCK):
      content += block
      if len(content) > most:
        raise _too_much(most)
  return content


def read_npz(file: Path) -> dict[str, np.ndarray]:
  """The arrays of an `.npz` file after a check of its checksums; nothing is unpickled.

  Raises:
    ValueError: if the arrays are larger than half of the memory.
    Exception: one of `ERRORS`, if the file is damaged.
  """
  most = most_bytes()
  # Opened as a zip archive, because NumPy would also accept a single array or a pickle.
  with zipfile.ZipFile(file) as archive:
    # No member unpacks to more than the size that it states here.
    if sum(member.file_size for member in archive.infolist()) > most:
      raise _too_much(most)
    # NumPy itself may stop reading before it reaches a checksum.
    if damaged := archive.testzip():
      raise ValueError(f"{damaged} does not match its checksum")
  try:
    with np.load(file, allow_pickle=False) as arrays:
      return {name: arrays[name] for name in arrays.files}
  except MemoryError as error:  # an array's header may state any shape
    raise ValueError(f"it promises too much: {error}") from error


def _too_much(most: int) -> ValueError:
  return ValueError(f"it unpacks to more than {most} bytes, half of the memory here")

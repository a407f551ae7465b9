"""Reads files only as far as memory allows: a few packed bytes may hold very many."""

import gzip
import math
import os
import zipfile
from pathlib import Path
from typing import IO

import numpy as np

from jaxreg._atomic_files import UNPACKING, check_no_pipe

# The errors that reading a damaged file raises.
ERRORS = (ValueError, OSError, EOFError, KeyError, NotImplementedError, *UNPACKING)
BLOCK = 2**24
ENCRYPTED = 1  # the bit among the flags of a zip file's member
TABLE_FACTOR = 4  # the memory that reading a table takes, per byte of its unpacked values


def most_bytes() -> int:
  """Returns half of this machine's memory."""
  return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def plain_or_gzipped(folder: Path, name: str) -> Path | None:
  """Returns the file `name` or `name.gz` in the folder, or None."""
  return next((file for file in (folder / name, folder / f"{name}.gz") if file.is_file()), None)


def unpacked(file: Path) -> IO[bytes] | gzip.GzipFile:
  """Opens a file to read its bytes, gzipped or not."""
  check_no_pipe(file)
  return gzip.open(file) if file.suffix.lower() == ".gz" else open(file, "rb")


def check_table(num_bytes: int) -> None:
  """Checks that reading a table whose values take `num_bytes` needs at most half of the memory."""
  if num_bytes > most_bytes() // TABLE_FACTOR:
    raise _too_much(most_bytes() // TABLE_FACTOR)


def check_text_table(file: Path) -> None:
  """Checks the unpacked size of a table of text, block by block."""
  with unpacked(file) as stream:
    size = 0
    while block := stream.read(BLOCK):
      size += len(block)
      check_table(size)


def read_text(file: Path) -> str:
  """Reads the text of a file in UTF-8, gzipped or not."""
  most = most_bytes()
  with unpacked(file) as stream:
    content = read_up_to(stream, most + 1)
  if len(content) > most:
    raise _too_much(most)
  return content.decode("utf-8")


def read_up_to(stream: IO[bytes] | gzip.GzipFile, most: int) -> bytearray:
  """Reads the next bytes of a stream, at most `most`; memory is taken only for bytes that are there."""
  content = bytearray()
  while block := stream.read(min(BLOCK, most - len(content))):
    content += block
  return content


def read_idx(file: Path, rank: int) -> np.ndarray:
  """Reads the array of an idx file of bytes, gzipped or not; unpacks no more than its header promises.

  The file has two zero bytes, the type 8, the rank, the sizes big-endian, and the data.
  """
  with unpacked(file) as stream:
    if read_up_to(stream, 4) != bytes([0, 0, 8, rank]):
      raise ValueError(f"it does not begin as an idx file of {rank}-dimensional bytes does")
    sizes = read_up_to(stream, 4 * rank)
    if len(sizes) < 4 * rank:
      raise ValueError("it ends within its header")
    shape = tuple(int(n) for n in np.frombuffer(sizes, ">u4"))
    promised, most = math.prod(shape), most_bytes()
    if promised > most:
      raise _too_much(most)
    data = read_up_to(stream, promised + 1)  # to its end, where gzip has its checksum
  if len(data) != promised:
    has = "more" if len(data) > promised else len(data)
    raise ValueError(f"its header promises {promised} bytes of data, it has {has}")
  return np.frombuffer(data, np.uint8).reshape(shape)


def read_npz(file: Path) -> dict[str, np.ndarray]:
  """Reads the arrays of an `.npz` file after a check of its checksums; nothing is unpickled."""
  most = most_bytes()
  check_no_pipe(file)
  # Opened as a zip archive, because NumPy would also accept a single array or a pickle.
  with zipfile.ZipFile(file) as archive:
    if locked := next((member.filename for member in archive.infolist() if member.flag_bits & ENCRYPTED), ""):
      raise ValueError(f"{locked} is encrypted")
    # No member unpacks to more than the size that it states here.
    if sum(member.file_size for member in archive.infolist()) > most:
      raise _too_much(most)
    # NumPy itself may stop reading before it reaches a checksum.
    if damaged := archive.testzip():
      raise ValueError(f"{damaged} does not match its checksum")
    members = archive.namelist()
  try:
    with np.load(file, allow_pickle=False) as arrays:
      read = {name: arrays[name] for name in arrays.files}
  except MemoryError as error:  # an array's header may state any shape
    raise ValueError(f"it promises too much: {error}") from error
  # NumPy returns other members as bytes.
  other = {name for name, each in read.items() if not isinstance(each, np.ndarray)}
  if wrong := [name for name in sorted(other) if f"{name}.npy" in members]:
    raise ValueError(f"{wrong[0]}.npy is not an array")
  return {name: each for name, each in read.items() if name not in other}


def _too_much(most: int) -> ValueError:
  return ValueError(f"it unpacks to more than {most} bytes, and the memory here allows no more")

"""Arrays that are saved as they are computed, so that an interrupted analysis continues where it was."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from jax.typing import ArrayLike
from tqdm import tqdm

from jaxreg._atomic_files import replaced
from jaxreg.train.data.unpack import ERRORS, read_npz
from jaxreg.train.errors import printable

Arrays = dict[str, np.ndarray]


class ArrayCache:
  """A folder of named arrays: an array that is there is not computed again."""

  def __init__(self, folder: Path):
    self.folder = folder

  def arrays(self, name: str, compute: Callable[[], Mapping[str, ArrayLike]]) -> Arrays:
    """The arrays of that name, from disk or from `compute`; a file is either whole or not there."""
    file = self.folder / f"{name}.npz"
    found = _read(file)
    if found is None:
      found = {key: np.asarray(value) for key, value in compute().items()}
      with replaced(file) as stream:
        np.savez(stream, **found)  # type: ignore[arg-type]
    return found

  def blocks(
    self, name: str, total: int, compute: Callable[[int, int], Mapping[str, ArrayLike]], *, size: int
  ) -> Arrays:
    """`compute(first, number)` over the blocks of `total` rows, with a progress bar.

    Each block is saved until all are there.
    """
    # A block of another size is another one.
    blocks = {f"{name}-{start}+{size}": (start, min(size, total - start)) for start in range(0, total, size)}

    def join() -> Mapping[str, ArrayLike]:
      parts = []
      for block, rows in tqdm(blocks.items(), desc=name, unit="block", leave=False, disable=None):
        parts.append(self.arrays(block, lambda rows=rows: compute(*rows)))
      return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}

    joined = self.arrays(name, join)
    for block in blocks:
      (self.folder / f"{block}.npz").unlink(missing_ok=True)
    return joined


def _read(file: Path) -> Arrays | None:
  """The arrays in the file; None if it is missing or damaged."""
  if not file.is_file():  # opening a pipe would wait for its writer
    return None
  try:
    return read_npz(file)
  except ERRORS:
    print(f"{printable(str(file))} is damaged and made again", file=sys.stderr)
    return None

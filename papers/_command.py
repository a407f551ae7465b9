"""Parts of the scripts of this folder: one line for a mistake, and the folder of a finished comparison."""

import contextlib
import re
import sys
from collections.abc import Iterator
from typing import Any

from etils.epath import Path

from jaxreg.train import RunError
from jaxreg.train.sealed_tables import parse_table


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
  """Ends the program with status 1 and one line where a folder cannot be used."""
  try:
    yield
  except (RunError, OSError) as error:
    print(error, file=sys.stderr)
    sys.exit(1)


def read_comparison(folder: Path) -> dict[str, Any]:
  """The content of `compare.json` in the folder of a finished comparison."""
  try:
    return parse_table((folder / "compare.json").read_bytes())
  except (OSError, ValueError) as error:
    raise RunError(f"folder: {folder} has no compare.json of a finished comparison") from error


def row_folder(folder: Path, label: str) -> Path:
  """The work directory of one row of a comparison."""
  name = re.sub(r"[^0-9A-Za-z_]+", "_", label).strip("_")
  found = list((folder / "rows").glob(f"{name}-????????"))
  if len(found) != 1:
    raise RunError(f"folder: {folder}/rows must have one folder of the row {label!r}, got {len(found)}")
  return found[0]

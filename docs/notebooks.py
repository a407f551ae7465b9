"""The notebooks of the tutorials: the cell that installs jaxreg, and where GitHub's workflow puts them.

The branch `notebooks` of the repository has the executed notebooks and the wheel that they ran with.
"""

CELL = """\
# No package index has jaxreg yet. WHEEL is the address, or a file beside this notebook, of a wheel that
# `python -m build --wheel` made in a clone of the repository.
WHEEL = "{wheel}"

import importlib.util
from pathlib import Path

spec = importlib.util.find_spec("jaxreg")
if spec is None or spec.origin is None:  # a folder of this name, such as a clone, has no origin
  address = WHEEL if "://" in WHEEL else Path(WHEEL).resolve().as_uri()
  %pip install --quiet "jaxreg[train] @ {{address}}"
"""


def first_cell(repository: str | None, version: str) -> str:
  """Returns the first cell; without the name of a repository, the wheel is a file beside the notebook."""
  place = f"https://raw.githubusercontent.com/{repository}/notebooks/" if repository else ""
  return CELL.format(wheel=f"{place}jaxreg-{version}-py3-none-any.whl")


def colab(repository: str, name: str) -> str:
  """Returns the address that opens a notebook in Colab."""
  return f"https://colab.research.google.com/github/{repository}/blob/notebooks/{name}.ipynb"

"""How an extra is installed, for the messages about a package that is missing."""

import importlib.metadata
import json
import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def install(extra: str) -> str:
  """The command that installs an extra from where jaxreg came: a clone, an address or an index."""
  if (ROOT / "pyproject.toml").is_file():
    return f"pip install -e '{'.' if os.getcwd() == str(ROOT) else ROOT}[{extra}]'"
  url = _origin()
  return f"pip install 'jaxreg[{extra}]{f' @ {url}' if url else ''}'"


def needs(what: str, error: ModuleNotFoundError, extra: str = "train") -> ModuleNotFoundError:
  """The error that names the missing package of `error`, who needs it, and the command that installs it."""
  return ModuleNotFoundError(f"{what} needs {error.name}: {install(extra)}", name=error.name, path=error.path)


def _origin() -> str | None:
  """The address that pip installed jaxreg from; None for an index."""
  try:
    text = importlib.metadata.distribution("jaxreg").read_text("direct_url.json")
  except importlib.metadata.PackageNotFoundError:
    return None
  return json.loads(text).get("url") if text else None

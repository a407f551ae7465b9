"""Objects of a user's own modules, which a configuration names as `my_package.my_module:NAME`."""

import difflib
import importlib
import os
import sys
from types import ModuleType
from typing import Any

from jaxreg.train.errors import RunError, one_line


def is_yours(name: object) -> bool:
  """Tells whether a name is of the form `module:NAME`."""
  return isinstance(name, str) and ":" in name


def short(name: object) -> str:
  """Returns the name of a choice's options and of its term: `NAME` for `module:NAME`."""
  return str(name).rpartition(":")[2]


def look_here() -> None:
  """Makes modules of the current directory importable, after all others so that they hide none."""
  if os.getcwd() not in sys.path:
    sys.path.append(os.getcwd())
    importlib.invalidate_caches()


def check_imported(name: str, field: str) -> None:
  """Checks that a name needs no import: a work directory may come from others, and an import runs code."""
  module = name.rpartition(":")[0]
  if is_yours(name) and module not in sys.modules:
    raise RunError(
      f"{field} is {name}, and no module is imported because a work directory names it; if you trust it, "
      f"give the same --config.{field} again, or in Python import {module} first"
    )


def imported(name: str, field: str) -> Any:
  """Imports the object that `field` names as `module:NAME`."""
  module_name, _, attribute = name.partition(":")
  parts = (*module_name.split("."), attribute)
  if not all(part.isidentifier() for part in parts):
    raise RunError(f"{field}: got {name!r}; give MODULE:NAME, as my_package.my_module:NAME")
  module = _module(module_name, field)
  if not hasattr(module, attribute):
    near = difflib.get_close_matches(attribute, dir(module), n=3, cutoff=0.6)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    raise RunError(f"{field}: the module {module_name} has no {attribute}{hint}")
  return getattr(module, attribute)


def _module(name: str, field: str) -> ModuleType:
  if name in sys.modules:
    return sys.modules[name]
  look_here()
  try:
    return importlib.import_module(name)
  except ModuleNotFoundError as error:
    if error.name and f"{name}.".startswith(f"{error.name}."):
      raise RunError(
        f"{field}: there is no module {error.name}, neither installed nor in {os.getcwd()}; set PYTHONPATH "
        "if it is elsewhere"
      ) from error
    raise RunError(f"{field}: the module {name} needs {error.name}, which is not installed") from error
  except (Exception, SystemExit) as error:  # A module is a user's program: anything can be wrong with it.
    raise RunError(
      f"{field}: the module {name} cannot be imported ({type(error).__name__}: {one_line(error)})"
    ) from error

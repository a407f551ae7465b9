"""Finds a function or class by its name: a row of a table, or `my_package.my_module:NAME` of any module."""

import difflib
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from jaxreg.train.errors import RunError, one_line, unknown


def is_yours(name: object) -> bool:
  """Whether a name is of the form `module:NAME`."""
  return isinstance(name, str) and ":" in name


def short(name: object) -> str:
  """The short name for a choice's options and its term: `NAME` for `module:NAME`."""
  return str(name).rpartition(":")[2]


def find(name: str, table: Mapping[str, Any], field: str, kind: str, fits: Callable[[Any], bool]) -> Any:
  """The function or class that `field` names.

  Args:
    name: a key of the table, or `module:NAME`.
    table: our functions and classes by name; rows added later are found, too.
    field: the field for the messages, such as `method.name`.
    kind: the required kind, in words.
    fits: whether an object from a module is of that kind.
  """
  if not is_yours(name):
    if not isinstance(name, str) or name not in table:
      raise unknown(field, name, table, others=" or MODULE:NAME")
    return table[name]
  found = _attribute(name, field)
  if short(name) in table and found is not table[short(name)]:
    raise RunError(
      f"{field}: {name} has the name of one of jaxreg's own, which would share its options; rename it"
    )
  if not fits(found):
    raise RunError(f"{field}: {name} must be {kind}, got {_shown(found)}")
  return found


def takes(function: Any, *names: str) -> bool:
  """Whether the first parameters of a function have these names."""
  return parameters(function)[: len(names)] == names


def parameters(function: Any) -> tuple[str, ...]:
  """The names of a function's parameters; none for an object that is not a function."""
  try:
    return tuple(inspect.signature(function).parameters)
  except (TypeError, ValueError):
    return ()


def look_here() -> None:
  """Makes modules in the current directory importable, after all others, so that they hide no other one."""
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


def _attribute(name: str, field: str) -> Any:
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


def _module(name: str, field: str) -> Any:
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


def _shown(thing: Any) -> str:
  if inspect.isfunction(thing):
    return f"a function of ({', '.join(parameters(thing))})"
  return f"the class {thing.__name__}" if isinstance(thing, type) else f"a {type(thing).__name__}"

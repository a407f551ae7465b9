"""What a configuration can name: an entry, its options, and the import of `my_package.my_module:NAME`."""

import dataclasses
import difflib
import functools
import importlib
import inspect
import os
import sys
from collections.abc import Collection, Mapping
from types import ModuleType
from typing import Any

from jaxreg.train.errors import RunError, one_line

Fields = dict[str, Any]
Options = Mapping[str, Any]  # of a function, by name


def is_yours(name: object) -> bool:
  """Whether a name is of the form `module:NAME`."""
  return isinstance(name, str) and ":" in name


def short(name: object) -> str:
  """Returns the name of a choice's options and of its term: `NAME` for `module:NAME`."""
  return str(name).rpartition(":")[2]


@dataclasses.dataclass(frozen=True)
class Entry:
  """A function or class that a configuration can name.

  Attributes:
    function: the function or class; for a method, the `Method`.
    kind: how the trainer calls it, one of `registry.KINDS`.
    defaults: the defaults of options that have none in the signature. An argument with another default than
      a number, a text, a tuple or None is no option.
    needs: the arguments that the trainer gives, by their names.
  """

  function: Any
  kind: str
  defaults: Options = dataclasses.field(default_factory=dict)
  needs: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Chosen:
  """An entry with the options that a configuration gives; `name` is the short name, as in the metrics."""

  name: str
  entry: Entry
  options: Options

  @property
  def kind(self) -> str:
    return self.entry.kind

  def without(self, *names: str) -> "Chosen":
    options = {name: value for name, value in self.options.items() if name not in names}
    return dataclasses.replace(self, options=options)

  def needs(self, name: str) -> bool:
    return name in self.entry.needs

  def bound(self, **arguments: object) -> functools.partial[Any]:
    """Binds the options, and those of the arguments that the function needs."""
    needed = {name: value for name, value in arguments.items() if name in self.entry.needs}
    return functools.partial(self.entry.function, **self.options, **needed)


def parameters(function: object) -> Mapping[str, inspect.Parameter]:
  """Returns the parameters of a function by name; none for an object that is not callable."""
  if isinstance(function, type) and type(function).__call__ is not type.__call__:
    # A class whose metaclass makes the objects, as NNX's does, hides the parameters of its constructor.
    function = functools.partial(function.__init__, None)
  try:
    return inspect.signature(function).parameters if callable(function) else {}
  except (TypeError, ValueError):
    return {}


def takes_any(function: object) -> bool:
  """Whether a function takes any keyword argument."""
  return any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters(function).values())


def options(function: object, skip: Collection[str] = (), defaults: Options | None = None) -> Fields:
  """Returns the parameters with plain defaults, except `skip`; `defaults` take precedence."""
  own = {name: parameter.default for name, parameter in parameters(function).items()}
  every = {**own, **(defaults or {})}
  return {name: value for name, value in every.items() if name not in skip and _is_plain(value)}


def _is_plain(value: object) -> bool:
  return value is None or isinstance(value, bool | int | float | str) or type(value) is tuple


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


def shown(thing: object) -> str:
  """Describes an object for a message."""
  if inspect.isfunction(thing):
    return f"a function of ({', '.join(parameters(thing))})"
  return f"the class {thing.__name__}" if isinstance(thing, type) else f"a {type(thing).__name__}"

"""Public names of a module: `__all__`, what `dir` lists, and suggestions for a misspelt name."""

import difflib
import importlib
from collections.abc import Mapping, MutableMapping
from typing import Any


def suggest_names(module: MutableMapping[str, Any], lazy: Mapping[str, str] | None = None) -> None:
  """Gives a module, by its `globals()`, a `dir` of its public names and an AttributeError with suggestions.

  A folder's public names are the functions and classes that its `__init__` imports from its own files, and
  those of `lazy`: names with the modules that they are imported from on first use. Any other module has a
  list `__all__`. The error lists close names, or else all names. This is a call, because with a `__getattr__`
  in the module a type checker would accept any name.
  """
  name_of, lazy = module["__name__"], lazy or {}
  own = lambda value: getattr(value, "__module__", "").startswith(f"{name_of}._")
  imported = [name for name, value in module.items() if not name.startswith("_") and own(value)]
  names = module.setdefault("__all__", sorted([*imported, *lazy]))

  def missing(name: str) -> Any:
    if name in lazy:
      return getattr(importlib.import_module(lazy[name]), name)
    if name.startswith("__"):
      raise AttributeError(f"module {name_of!r} has no attribute {name!r}", name=name)
    by_letters = {known.replace("_", "").lower(): known for known in names}
    close = difflib.get_close_matches(name.replace("_", "").lower(), by_letters, 3)
    known = " or ".join(by_letters[letters] for letters in close)
    hint = f"did you mean {known}?" if known else f"it has {', '.join(names)}"
    raise AttributeError(f"module {name_of!r} has no attribute {name!r}; {hint}", name=name)

  module["__getattr__"] = missing
  module["__dir__"] = lambda: list(names)

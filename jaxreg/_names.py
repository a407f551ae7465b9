"""Public names of a module: what `dir` lists, and suggestions for a misspelt name."""

import difflib
from collections.abc import MutableMapping
from typing import Any


def suggest_names(module: MutableMapping[str, Any]) -> None:
  """Gives a module, by its `globals()`, a `dir` of its public names and an AttributeError with suggestions.

  The error lists close names, or else all names. This is a call, because with a `__getattr__` in the module a
  type checker would accept any name.
  """
  name_of, names = module["__name__"], module["__all__"]

  def missing(name: str) -> Any:
    if name.startswith("__"):
      raise AttributeError(f"module {name_of!r} has no attribute {name!r}", name=name)
    by_letters = {known.replace("_", "").lower(): known for known in names}
    close = difflib.get_close_matches(name.replace("_", "").lower(), by_letters, 3)
    known = " or ".join(by_letters[letters] for letters in close)
    hint = f"did you mean {known}?" if known else f"it has {', '.join(names)}"
    raise AttributeError(f"module {name_of!r} has no attribute {name!r}; {hint}", name=name)

  module["__getattr__"] = missing
  module["__dir__"] = lambda: list(names)

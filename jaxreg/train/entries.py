"""What a configuration can name: a function or class with the options that its signature gives."""

import dataclasses
import functools
import inspect
from collections.abc import Collection, Mapping
from typing import Any

Fields = dict[str, Any]
Options = Mapping[str, Any]  # of a function or a configuration, by name


@dataclasses.dataclass(frozen=True)
class Entry:
  """A function or class that a configuration can name.

  Attributes:
    function: the function or class; for a method, the `Method`.
    kind: how the trainer calls it, one of `registry.KINDS`.
    defaults: the defaults of options that have none in the signature. An argument with another default than
      a number, a text, a tuple or None is not an option.
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
    """Binds the options, and of the arguments only what the function needs."""
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
  """Tells whether a function takes any keyword argument."""
  return any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters(function).values())


def options(function: object, skip: Collection[str] = (), defaults: Options | None = None) -> Fields:
  """Returns the parameters with plain defaults, except `skip`; `defaults` take precedence."""
  own = {name: parameter.default for name, parameter in parameters(function).items()}
  every = {**own, **(defaults or {})}
  return {name: value for name, value in every.items() if name not in skip and _is_plain(value)}


def _is_plain(value: object) -> bool:
  return value is None or isinstance(value, bool | int | float | str) or type(value) is tuple


def shown(thing: object) -> str:
  """Describes an object for a message."""
  if inspect.isfunction(thing):
    return f"a function of ({', '.join(parameters(thing))})"
  return f"the class {thing.__name__}" if isinstance(thing, type) else f"a {type(thing).__name__}"

"""What a field means and what it may be, from the table or the function whose parameter the field is."""

import functools
import inspect
import itertools
import re
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Literal

from jaxreg import adversarial, averaging, losses, penalties
from jaxreg.train.config.choices import CHOICES, named_in, option
from jaxreg.train.config.fields import FIELDS, Flat, row_of
from jaxreg.train.lookup import is_yours, short
from jaxreg.train.registry import REGISTRY, find, takes_modules

WIDTH = 80
NOTHING: Flat = types.MappingProxyType({})
SEQUENCES = (tuple, Sequence, Collection, Iterable)
WORDS: dict[object, tuple[str, str]] = {
  bool: ("True or False", "truth values"),
  int: ("an integer", "integers"),
  float: ("a number", "numbers"),
  str: ("a text", "texts"),
  dict: ("a table", "tables"),
  tuple: ("a tuple", "tuples"),
}


def described(flat: Flat, fields: Iterable[str]) -> str:
  """The fields with their values, and below each its description and its allowed values."""
  lines = []
  for field in fields:
    lines.append(f"  --config.{field}={flat[field]}")
    names, interval = allowed(field, flat), row_of(field).allowed
    shown = f" In {interval}." if interval and re.match(r"[\[(]\d", interval) else ""
    text = describe(field, flat) + (f" {' | '.join(names)}." if names else shown)
    lines += textwrap.wrap(
      text, WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6, break_on_hyphens=False
    )
  return "\n".join(lines)


def describe(field: str, flat: Flat = NOTHING) -> str:
  """The description of a field in one sentence, or ""; `flat` gives the names of choices from outside."""
  texts = (_parameters(function).get(name) for function, name in _functions(field, flat))
  return row_of(field).help or next(filter(None, texts), "")


def allowed(field: str, flat: Flat = NOTHING) -> tuple[str, ...]:
  """The names that a field may have; none for a number, a path or a list of the user's."""
  if field in CHOICES:
    group = CHOICES[field]
    return (*REGISTRY[group], *(["MODULE:NAME"] if takes_modules(group) else []))
  return names_of(kind_of(field, flat))


def names_of(kind: object) -> tuple[str, ...]:
  """The names in a `Literal`, alone or in a tuple."""
  of_items = typing.get_args(kind)[0] if typing.get_origin(kind) is tuple else kind
  return typing.get_args(of_items) if typing.get_origin(of_items) is Literal else ()


def kind_of(field: str, flat: Flat) -> object:
  """The type of a field: from the table, from an annotation with names or items, or from its value."""
  if field in FIELDS:
    return FIELDS[field].kind
  value = flat.get(field, "")
  for function, name in _functions(field, flat):
    hint = _hints(function).get(name)
    origin, items = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(value, str) and origin is Literal:
      return hint
    if isinstance(value, list) and origin in SEQUENCES:
      if len(items) == 2 and items[1] is not Ellipsis:
        return hint
      return tuple[tuple if typing.get_origin(items[0]) in SEQUENCES else items[0], ...]
  return {list: tuple, type(None): float | None}.get(type(value), type(value))


def fits(value: object, kind: Any) -> bool:
  """Whether a value has a type; a list is a tuple, and an integer a number."""
  origin, items = typing.get_origin(kind), typing.get_args(kind)
  if origin in (types.UnionType, typing.Union):
    return any(fits(value, each) for each in items)
  if tuple in (origin, kind):
    if not isinstance(value, list | tuple):
      return False
    if len(items) == 2 and items[1] is not Ellipsis:
      return len(value) == 2 and all(map(fits, value, items))
    of_items = items[0] if items else str | float | tuple
    return all(fits(item, of_items) for item in value)
  known = {float: (float, int), Literal: str}.get(origin or kind, origin or kind)
  try:
    return isinstance(value, known) and (kind is bool or not isinstance(value, bool))
  except TypeError:  # an annotation of a function from outside
    return True


def in_words(kind: object) -> str:
  """A type in words, as "a tuple of integers"."""
  origin, items = typing.get_origin(kind), typing.get_args(kind)
  if origin is types.UnionType:
    return in_words(items[0])
  item = str if names_of(kind) else items[0] if origin is tuple else None
  if origin is tuple and item in WORDS:
    return f"{'a tuple of' if items[1] is Ellipsis else len(items)} {WORDS[item][1]}"
  return WORDS[str if origin is Literal else origin or kind][0]


def _functions(field: str, flat: Flat) -> list[tuple[Callable[..., object], str]]:
  """The functions that have a field as a parameter, each with the parameter's name."""
  if not (found := option(field)):
    function = row_of(field).function
    return [(function, field.rpartition(".")[2])] if function else []
  group, choice, name = found
  places = {"method": (losses,), "regularizers": (penalties, adversarial, losses), "average": (averaging,)}
  ours = (vars(place).get(choice) for place in places.get(group, ()))
  functions = [*_entries(group, choice, flat), *ours]
  part, dot, name = name.rpartition(".")
  functions = [getattr(function, part, function) for function in functions] if dot else functions
  return [(getattr(function, "func", function), name) for function in functions if callable(function)]


def _entries(group: str, choice: str, flat: Flat) -> list[object]:
  """The function or class whose options are `group.choice`: one of ours, or one that `flat` names."""
  if choice in REGISTRY[group]:
    return [REGISTRY[group][choice].function]
  yours = (name for _, of, name in named_in(flat) if of == group and is_yours(name) and short(name) == choice)
  return [find(group, name).function for name in itertools.islice(yours, 1)]


@functools.cache
def _parameters(function: Callable[..., object]) -> dict[str, str]:
  """The first sentence on each parameter, from the section `Args` or `Attributes` of a docstring.

  A text that only refers to another function of the folder, `as in` its name, is the text there.
  """
  doc = inspect.getdoc(function) or ""
  section = re.search(r"^(?:Args|Attributes):\n((?: +.*\n?|\n)*)", doc, re.MULTILINE)
  found: dict[str, str] = {}
  for entry in re.split(r"\n(?=\S)", inspect.cleandoc(section[1])) if section else []:
    names, colon, text = entry.partition(":")
    for name in re.sub(r"\([^)]*\)|[`*]", "", names).split(",") if colon else []:
      found[name.strip()] = _elsewhere(function, name.strip(), text) or _sentence(" ".join(text.split()))
  return found


def _elsewhere(function: Callable[..., object], name: str, text: str) -> str:
  """The sentence on a parameter that a text refers to, in the same folder; empty for any other text."""
  refers = re.fullmatch(r"\s*as (?:in|for) `(\w+)`\.?", text)
  if not refers:
    return ""
  other = getattr(sys.modules.get(function.__module__.rpartition(".")[0]), refers[1], None)
  return _parameters(other).get(name, "") if callable(other) else ""


def _sentence(text: str) -> str:
  first = re.split(r"(?<=[a-z0-9)`\]])\. (?=[A-Z])", re.sub(r":\w+:`([^`]*)`", r"\1", text))[0].rstrip(".")
  return f"{first[:1].upper()}{first[1:]}." if first else ""


@functools.cache
def _hints(function: Callable[..., object]) -> dict[str, object]:
  try:
    return typing.get_type_hints(function)
  except (NameError, TypeError):  # a function from outside may have annotations that cannot be read
    return {}

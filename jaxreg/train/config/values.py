"""The values of one field: its type, how a text is parsed, what is checked, and what help says of it.

The table's row of a field has these. For an option they come from the function whose parameter it is.
"""

import ast
import difflib
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
from jaxreg._checks import check_range
from jaxreg._errors import ArgumentError
from jaxreg.train.config.choices import CHOICES, base_config, flatten, named_in, split_option
from jaxreg.train.config.fields import FIELDS, row_of
from jaxreg.train.entries import Options
from jaxreg.train.errors import RunError, shortened, unknown
from jaxreg.train.registry import REGISTRY, find, takes_modules
from jaxreg.train.user_modules import is_yours, short

WIDTH = 80  # columns of the help
NO_FIELDS: Options = types.MappingProxyType({})
SEQUENCES = (tuple, Sequence, Collection, Iterable)
WORDS: dict[object, tuple[str, str]] = {
  bool: ("True or False", "truth values"),
  int: ("an integer", "integers"),
  float: ("a number", "numbers"),
  str: ("a text", "texts"),
  dict: ("a table", "tables"),
  tuple: ("a tuple", "tuples"),
}
BOOLEANS = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}
# Fields in which a name may appear twice, and then counts twice.
WEIGHTED = re.compile(r"augment\.\w+\.operations$")


# The type.


def kind_of(field: str, flat: Options) -> object:
  """Returns the type of a field: from the table, a function's annotation, or the field's value."""
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


def names_of(kind: object) -> tuple[str, ...]:
  """Returns the names in a `Literal`, alone or in a tuple."""
  item = typing.get_args(kind)[0] if typing.get_origin(kind) is tuple else kind
  return typing.get_args(item) if typing.get_origin(item) is Literal else ()


def fits(value: object, kind: Any) -> bool:
  """Tells whether a value has a type; a list is a tuple, and an integer is a number."""
  origin, items = typing.get_origin(kind), typing.get_args(kind)
  if origin in (types.UnionType, typing.Union):
    return any(fits(value, each) for each in items)
  if tuple in (origin, kind):
    if not isinstance(value, list | tuple):
      return False
    if len(items) == 2 and items[1] is not Ellipsis:
      return len(value) == 2 and all(map(fits, value, items))
    item_kind = items[0] if items else str | float | tuple
    return all(fits(item, item_kind) for item in value)
  classes = {float: (float, int), Literal: str}.get(origin or kind, origin or kind)
  try:
    return isinstance(value, classes) and (kind is bool or not isinstance(value, bool))
  except TypeError:  # an annotation of a user's own function
    return True


def in_words(kind: object) -> str:
  """Describes a type, such as "a tuple of integers"."""
  origin, items = typing.get_origin(kind), typing.get_args(kind)
  if origin is types.UnionType:
    return in_words(items[0])
  item = str if names_of(kind) else items[0] if origin is tuple else None
  if origin is tuple and item in WORDS:
    return f"{'a tuple of' if items[1] is Ellipsis else len(items)} {WORDS[item][1]}"
  return WORDS[str if origin is Literal else origin or kind][0]


# From a text to a value.


def read_value(text: str, kind: object, where: str) -> object:
  """Reads the text of a value of this type; an error begins with `where`."""
  number = float if kind == float | None else kind
  try:
    if kind is bool:
      return BOOLEANS[text.lower()]
    if number in (int, float):
      return None if text == "None" and kind is not number else number(text)
  except (ValueError, KeyError):
    raise RunError(f"{where} must be {in_words(kind)}, got {shortened(repr(text), 80)}") from None
  return read_tuple(text, where) if tuple in (kind, typing.get_origin(kind)) else text


def read_tuple(text: str, where: str) -> tuple[object, ...]:
  """Reads a tuple; a text that is not a Python literal becomes a tuple of one item."""
  value = literal(text)
  if value == text and re.search(r"^[(\[{]|[,\s]", text):
    raise RunError(f"{where} must be a tuple, as \"('a', 'b')\", got {shortened(repr(text), 80)}")
  return tuple(value) if isinstance(value, list | tuple) else (value,)


def literal(text: str) -> object:
  """Reads a Python literal, such as a number or a tuple; any other text is returned as it is."""
  try:
    return ast.literal_eval(text.strip())
  except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
    return text


# What is checked.


def check_types(fields: Options) -> None:
  """Checks that the known fields of a flat configuration have values of their types."""
  known = flatten(base_config())
  for field, default in known.items():
    value, kind = fields.get(field, default), kind_of(field, known)
    if not fits(value, kind):
      raise RunError(f"{field}: must be {in_words(kind)}, got {_shown(value, repr)}")


def check_value(field: str, value: object, kind: object) -> None:
  """Checks that a value has allowed names, each once, and numbers in the field's interval."""
  values, names = value if isinstance(value, list) else [value], names_of(kind)
  if names and (wrong := [name for name in values if name not in names]):
    raise unknown(field, wrong[0], names)
  numbers = [each for each in values if isinstance(each, int | float) and not isinstance(each, bool)]
  others = [repr(each) for each in values if not isinstance(each, int | float)]
  if len(set(others)) < len(others) and not WEIGHTED.match(field):
    raise RunError(f"{field}: each must be named once, got {tuple(values)}")
  interval = row_of(field).allowed or "(-inf, inf)"
  if not all(_lies_in(interval, number) for number in numbers):
    raise RunError(f"{field}: must be {_interval_in_words(interval)}, got {_shown(value, str)}")


def _shown(value: object, text: Callable[[object], str]) -> str:
  return shortened(text(tuple(value) if isinstance(value, list) else value), 80)


def _lies_in(interval: str, value: float) -> bool:
  low, high = map(float, interval[1:-1].split(", "))
  try:
    check_range(value, "", low=low, high=high, open_low=interval[0] == "(", open_high=interval[-1] == ")")
  except ArgumentError:
    return False
  return True


def _interval_in_words(interval: str) -> str:
  low, high = interval[1:-1].split(", ")
  if low == "-inf":
    return "finite"
  most = f"{'below' if interval[-1] == ')' else 'at most'} {high}"
  return f"{'above' if interval[0] == '(' else 'at least'} {low} and {'finite' if high == 'inf' else most}"


def hint(field: str, known: Iterable[str]) -> str:
  """Suggests fields with similar names, or with the same last part."""
  near = difflib.get_close_matches(field, known, n=3, cutoff=0.6)
  near += [other for other in known if other.split(".")[-1] == field.split(".")[-1] and other not in near]
  return f"; did you mean {' or '.join(near[:4])}?" if near else ""


# What the help says.


def help_lines(flat: Options, fields: Iterable[str]) -> str:
  """Lists fields with their values, and below each its description and its allowed values."""
  lines = []
  for field in fields:
    lines.append(f"  --config.{field}={flat[field]}")
    names, interval = allowed_names(field, flat), row_of(field).allowed
    shown = f" In {interval}." if interval and re.match(r"[\[(]\d", interval) else ""
    text = describe(field, flat) + (f" {' | '.join(names)}." if names else shown)
    lines += textwrap.wrap(
      text, WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6, break_on_hyphens=False
    )
  return "\n".join(lines)


def describe(field: str, flat: Options = NO_FIELDS) -> str:
  """Describes a field in one sentence; `flat` has the names of a user's own choices."""
  texts = (_parameter_docs(function).get(name) for function, name in _functions(field, flat))
  return row_of(field).help or next(filter(None, texts), "")


def allowed_names(field: str, flat: Options = NO_FIELDS) -> tuple[str, ...]:
  """Returns the names that a field may have; none for a number, a path or a list of the user's."""
  if field in CHOICES:
    group = CHOICES[field]
    return (*REGISTRY[group], *(["MODULE:NAME"] if takes_modules(group) else []))
  return names_of(kind_of(field, flat))


def _functions(field: str, flat: Options) -> list[tuple[Callable[..., object], str]]:
  """Finds the functions that have a field as a parameter, each with the parameter's name."""
  option = split_option(field)
  if option is None:
    function = row_of(field).function
    return [(function, field.rpartition(".")[2])] if function else []
  group, choice, name = option
  places = {"method": (losses,), "regularizers": (penalties, adversarial, losses), "average": (averaging,)}
  ours = (vars(place).get(choice) for place in places.get(group, ()))
  functions = [*_entries(group, choice, flat), *ours]
  part, dot, name = name.rpartition(".")
  functions = [getattr(function, part, function) for function in functions] if dot else functions
  return [(getattr(function, "func", function), name) for function in functions if callable(function)]


def _entries(group: str, choice: str, flat: Options) -> list[object]:
  """Finds the function or class with the options `group.choice`: one of ours, or one that `flat` names."""
  if choice in REGISTRY[group]:
    return [REGISTRY[group][choice].function]
  yours = (name for _, of, name in named_in(flat) if of == group and is_yours(name) and short(name) == choice)
  return [find(group, name).function for name in itertools.islice(yours, 1)]


@functools.cache
def _parameter_docs(function: Callable[..., object]) -> dict[str, str]:
  """Reads the first sentence on each parameter in the section `Args` or `Attributes` of a docstring.

  Text that only refers to another function of the folder, as "as in `name`", stands for the text there.
  """
  doc = inspect.getdoc(function) or ""
  section = re.search(r"^(?:Args|Attributes):\n((?: +.*\n?|\n)*)", doc, re.MULTILINE)
  sentences: dict[str, str] = {}
  for entry in re.split(r"\n(?=\S)", inspect.cleandoc(section[1])) if section else []:
    names, colon, text = entry.partition(":")
    for name in re.sub(r"\([^)]*\)|[`*]", "", names).split(",") if colon else []:
      own = _first_sentence(" ".join(text.split()))
      sentences[name.strip()] = _referred(function, name.strip(), text) or own
  return sentences


def _referred(function: Callable[..., object], name: str, text: str) -> str:
  """Returns the sentence on a parameter that a text refers to, in the same folder; "" for any other text."""
  refers = re.fullmatch(r"\s*as (?:in|for) `(\w+)`\.?", text)
  if not refers:
    return ""
  other = getattr(sys.modules.get(function.__module__.rpartition(".")[0]), refers[1], None)
  return _parameter_docs(other).get(name, "") if callable(other) else ""


def _first_sentence(text: str) -> str:
  first = re.split(r"(?<=[a-z0-9)`\]])\. (?=[A-Z])", re.sub(r":\w+:`([^`]*)`", r"\1", text))[0].rstrip(".")
  return f"{first[:1].upper()}{first[1:]}." if first else ""


@functools.cache
def _hints(function: Callable[..., object]) -> dict[str, object]:
  try:
    return typing.get_type_hints(function)
  except (NameError, TypeError):  # a user's own function may have annotations that cannot be read
    return {}
